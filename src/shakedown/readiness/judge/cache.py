"""Was the cache in the state that was claimed, and did a second process get the same bits?"""

from __future__ import annotations

from pathlib import Path

from .. import evidence as ev
from ..errors import EvidenceError
from ..evidence import Evidence
from ..requirements import Requirements
from . import paths
from .results import Cell, Finding

_COMPARED = ("sequence", "single", "variation")


def findings(root: Path, cells: list[Cell], requirements: Requirements) -> list[Finding]:
    """``cache-not-cold``, ``cache-not-warm``: first steps compiled or loaded something else than the state of the cache
    explains, so that its start-up time is not the one it is called. ``not-repeatable``: a process on a warm cache gave other
    bits than the one on a cold cache, each within rounding. None of them fails a cell: the numbers are judged by themselves.
    """
    found: list[Finding] = []
    cold: dict[tuple[str, str, str], Evidence] = {}
    for cell in sorted(cells, key=lambda cell: cell.cache != "cold"):
        if cell.cache == "none" or cell.mode == "reference" or cell.kind not in _COMPARED:
            continue
        seen = {case: one for case in cell.cases if (one := _read(root, cell, case)) is not None}
        sees = all(one.paths.first_step is not None for one in seen.values())
        proved, proof = paths.cache_proof(list(seen.values()))
        if seen and sees and not proved:
            found.append(Finding(word=f"cache-not-{cell.cache}", cell=cell.id, text=proof, fails=False))
        for case, one in seen.items():
            key = cell.mode, cell.dtype, case
            if cell.cache == "cold":
                cold.setdefault(key, one)
            elif key in cold and cold[key].tensors_sha256 != one.tensors_sha256:
                text = f"the tensors of this process are not those of {cold[key].cell}, bit by bit"
                found.append(Finding(word="not-repeatable", cell=cell.id, case=case, text=text, fails=False))
    return found


def _read(root: Path, cell: Cell, case: str) -> Evidence | None:
    path = root / "evidence" / cell.id / f"{case}.json"
    if not path.exists():
        return None
    try:
        return ev.read(Evidence, path)
    except EvidenceError:
        return None  # judging the numbers names it
