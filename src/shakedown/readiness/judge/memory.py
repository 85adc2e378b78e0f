"""What a step needs in memory, and whether that is within the budget, said only where the figure can carry it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal

from .. import evidence as ev
from ..errors import EvidenceError
from ..evidence.memory import OVERLAPPED, STEP, Memory, MemorySpan
from ..requirements import Requirements
from .measured import MemorySummary
from .results import Cell, Finding


def _difference(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one - other


def summarise(cell: str, case: str, document: Memory) -> MemorySummary:
    """The figures that a reader asks for."""
    nothing = MemorySpan(name="", host=None, device=None, device_before=None, device_after=None, samples=0)
    spans = {span.name: span for span in document.spans}
    step, overlapped = spans.get(STEP, nothing), spans.get(OVERLAPPED, nothing)
    host = [span.host for span in (step, overlapped) if span.host is not None]
    return MemorySummary(
        cell=cell,
        case=case,
        host_meter=document.host,
        device_meter=document.device,
        host=max(host, default=None),
        device=step.device,
        device_overlapped=overlapped.device,
        overlap=_difference(overlapped.device, step.device),
        kept=_difference(step.device_after, step.device_before),
    )


def read(root: Path, cells: list[Cell]) -> list[MemorySummary]:
    """Every case of every process that measured memory. Damaged documents are left out: :func:`findings` names them."""
    return [
        found for found in (_read(root, cell, case) for cell, case in _all(cells)) if not isinstance(found, str | None)
    ]


def _all(cells: list[Cell]) -> list[tuple[Cell, str]]:
    return [(cell, case) for cell in cells for case in cell.cases]


def _read(root: Path, cell: Cell, case: str) -> MemorySummary | str | None:
    """The summary; None where nothing was measured; why a document cannot be read."""
    path = root / "evidence" / cell.id / f"{case}.memory.json"
    if not path.exists():
        return None
    try:
        return summarise(cell.id, case, ev.read(Memory, path))
    except EvidenceError as error:
        return str(error)


# What every one of several steps must leave behind before it is called a leak: a device keeps a few bytes for each new
# number, and an allocator takes pages when it likes, but neither does so in step after step.
_GROWS = {"device": 4 << 10, "host": 256 << 10}
_LEAST_READINGS = 4


def grows(document: Memory) -> list[tuple[str, str]]:
    """Where memory grows with every step: ``device`` or ``host``, and a sentence."""
    found = []
    for where, least in _GROWS.items():
        held = [one.device if where == "device" else one.host for one in document.readings]
        known = [value for value in held if value is not None]
        if len(known) < _LEAST_READINGS or len(known) < len(held):
            continue
        more = [after - before for before, after in pairwise(known)]
        if min(more) >= least:
            found.append(
                (where, f"{len(known)} steps left {', '.join(f'{n / 2**10:.0f}' for n in more)} KiB behind each")
            )
    return found


def findings(root: Path, cells: list[Cell], requirements: Requirements) -> list[Finding]:
    """A step that needs more than the budget fails. A figure that is not a peak cannot show that it needs less.

    ``memory-grows(device)`` and ``memory-grows(host)`` where every step leaves something behind: a long run would end by it.
    """
    limit = requirements.budgets.device_memory
    made = []
    for cell, case in _all(cells):
        found = _read(root, cell, case)
        if isinstance(found, str):
            made.append(Finding(word="untested(memory)", cell=cell.id, case=case, text=found, fails=False))
            continue
        if found is None or cell.mode == "reference":
            continue
        for where, text in grows(ev.read(Memory, root / "evidence" / cell.id / f"{case}.memory.json")):
            word = f"memory-grows({where})"
            made.append(Finding(word=word, cell=cell.id, case=case, text=text, fails=True))
        if limit:
            word, text, fails = _against(found, limit)
            if word:
                made.append(Finding(word=word, cell=cell.id, case=case, text=text, fails=fails))
    return made


def _against(
    found: MemorySummary, limit: float
) -> tuple[Literal["", "over-budget(memory)", "untested(memory)"], str, bool]:
    known = [value for value in (found.device, found.device_overlapped) if value is not None]
    if not known:
        return "untested(memory)", f"unobservable: {found.device_meter.source}", False
    most = max(known)
    said = f"a step needs {most / 2**20:.1f} MiB on the device ({found.device_meter.kind}); the budget is {limit / 2**20:.1f}"
    if most > limit:
        return "over-budget(memory)", said, True
    if found.device_meter.kind != "peak":
        return "untested(memory)", f"{said}, but the figure is no peak: {found.device_meter.source}", False
    if found.device_overlapped is None:
        return "untested(memory)", f"{said}, but it was not measured with the next batch on the device", False
    return "", "", False
