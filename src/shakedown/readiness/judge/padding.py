"""Does padding a batch change what the workload computes? Asked of float64 truth, so no device has a part in the answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .. import evidence as ev
from ..errors import EvidenceError
from ..evidence import Evidence, Truth
from ..requirements import Requirements
from .formats import roundoff
from .numerics import norm
from .results import Cell, Finding

_STORED = "float32"  # the coarsest precision that truth is kept in; below it a difference could not be seen
_SUFFIX = "~padding"


def findings(root: Path, cells: list[Cell], requirements: Requirements) -> list[Finding]:
    """``padding-neutral`` or ``padding-changes-result`` for each padded case, once, from the first precision that has it.

    Loss and gradients of step 1 are compared with those of the plain case, from the same weights and batches. A change fails
    nothing: every device makes it alike, and whether it is meant is for the workload's owner to say.
    """
    found: dict[str, Finding] = {}
    for cell in cells:
        for case in cell.cases if cell.mode == "reference" and cell.kind == "sequence" else ():
            plain = case.removesuffix(_SUFFIX)
            if plain == case or case in found:
                continue
            try:
                pair = [_first_step(root, cell, name) for name in (plain, case)]
            except EvidenceError as error:
                found[case] = Finding(word="untested(padding)", cell=cell.id, case=case, text=str(error), fails=False)
                continue
            found[case] = _compared(cell, case, pair[0], pair[1], requirements)
    return list(found.values())


def _first_step(root: Path, cell: Cell, case: str) -> dict[str, np.ndarray]:
    """Loss and gradients that truth has for step 1 of a case."""
    seen = ev.read(Evidence, root / "evidence" / cell.id / f"{case}.json")
    truth = ev.read(Truth, root / "evidence" / "truth" / f"{seen.tensors_sha256[:16]}.json")
    wanted = ("step1/loss/", "step1/gradient/")
    return {
        name: value.astype(np.float64) for name, value in ev.tensors(truth, root).items() if name.startswith(wanted)
    }


def _compared(
    cell: Cell, case: str, plain: dict[str, np.ndarray], padded: dict[str, np.ndarray], requirements: Requirements
) -> Finding:
    shared = sorted(plain.keys() & padded.keys())
    if not shared:
        text = "there is neither a loss nor a gradient to compare; outputs differ in shape"
        return Finding(word="untested(padding)", cell=cell.id, case=case, text=text, fails=False)
    largest = max((norm(plain[name]) for name in shared if "/gradient/" in name), default=0.0)

    def gap(name: str) -> float:
        """Relative to the tensor's own size, or to the largest gradient's where that is far above it."""
        scale = max(norm(plain[name]), requirements.numerics.floor_share * largest if "/gradient/" in name else 0.0)
        difference = norm(plain[name] - padded[name])
        return difference / scale if scale else difference

    gaps = {name: gap(name) for name in shared}
    worst = max(gaps, key=lambda name: gaps[name])
    allowed = requirements.numerics.rounding_factor * roundoff(_STORED)
    loss = "step1/loss/loss"
    said = f"loss {plain[loss].item():.6g} plain and {padded[loss].item():.6g} padded; " if loss in gaps else ""
    changes = gaps[worst] > allowed
    text = said + (
        f"{worst} differs by {gaps[worst]:.1e} of its size in float64, on every device"
        if changes
        else f"in float64 nothing differs by more than {gaps[worst]:.1e} of its size"
    )
    word = "padding-changes-result" if changes else "padding-neutral"
    return Finding(word=word, cell=cell.id, case=case, text=text, fails=False)
