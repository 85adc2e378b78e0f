"""Where the time of a profiled step went: every moment of it belongs to exactly one part, so the parts add up to all of it.

A moment belongs to the first of these that is going on: compilation, an operator on the CPU (with the copies that it needs),
a copy between host and device, work on the device or waiting for it; else to what the host does in the phase of the moment:
preparing data, post-processing (reading and printing results), or host overhead in forward, backward and optimizer. Outside
every phase it is *not attributed*.

Compilation is all that makes a program: capture, tracing, lowering, the compiler, loading from a cache. So an operator whose
call compiles counts as compilation from its beginning to its end, its first run included, which cannot be told apart.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from pathlib import Path
from typing import Any, Literal, get_args

from .. import evidence as ev
from ..errors import EvidenceError
from ..evidence import Frozen
from ..evidence.memory import MemorySpan
from ..evidence.traces import Trace
from ..requirements import Requirements
from .results import Cell, Finding

Part = Literal[
    "compilation",
    "operators on the CPU",
    "transfer",
    "device",
    "data preparation",
    "post-processing",
    "host overhead",
    "not attributed",
]
PARTS: tuple[Part, ...] = get_args(Part)
STEP, PHASE = "shakedown.step", "shakedown.phase"

# Categories of events: the embedded device's kinds, and those of PyTorch's profiler (Kineto).
_CATEGORIES: dict[str, Part] = {
    "shakedown.compile": "compilation",
    "compile": "compilation",
    "fallback": "operators on the CPU",
    "transfer": "transfer",
    "gpu_memcpy": "transfer",
    "execute": "device",
    "synchronize": "device",
    "kernel": "device",
    "gpu_memset": "device",
}
_RANK = {part: number for number, part in enumerate(PARTS)}
_OF_PHASE: dict[str, Part] = {"data": "data preparation", "logging": "post-processing", "": "not attributed"}


class StepParts(Frozen):
    """Seconds of one profiled step by part; they add up to ``seconds``."""

    name: Literal["first", "later"]
    seconds: float
    parts: dict[Part, float]


class TraceSummary(Frozen):
    """Shares of the first step, and of the later ones together, by part; they add up to one. Seconds are of profiled steps,
    which are slower than others. ``memory`` has bytes, with what kind of figure they are in ``memory_kinds``.
    """

    case: str
    source: str
    file: str
    first_seconds: float
    first: dict[Part, float]
    later_seconds: float | None
    later: dict[Part, float] | None
    memory: list[MemorySpan]
    memory_kinds: dict[str, str]


def parts(events: list[dict[str, Any]], on_host: bool) -> list[StepParts]:
    """Split each step of a trace into parts. `on_host`: the device is the CPU, so operators there are the device's work,
    unless they prepare data or results.

    Raises:
        EvidenceError: the trace has no step.
    """
    spans = [event for event in events if event.get("ph") == "X" and event.get("cat") and event.get("dur")]
    steps = [event for event in spans if event["cat"] == STEP]
    if not steps:
        raise EvidenceError("the trace has no step in it")
    compilations = sorted(event["ts"] for event in spans if _CATEGORIES.get(event["cat"]) == "compilation")
    found = []
    for step in sorted(steps, key=lambda event: event["ts"]):
        begin, end = step["ts"], step["ts"] + step["dur"]
        changes: list[tuple[float, int, int, str]] = []  # moment, +1 or -1, rank of the part or -1, phase
        for event in spans:
            start, stop = max(begin, event["ts"]), min(end, event["ts"] + event["dur"])
            if start >= stop:
                continue
            category = event["cat"]
            if category == PHASE:
                rank, phase = -1, event["name"]
            else:
                part = _CATEGORIES.get(category) or ("device" if on_host and category == "cpu_op" else None)
                if part is None:
                    continue
                if category == "execute" and bisect_left(compilations, start) < bisect_left(compilations, stop):
                    part = "compilation"
                rank, phase = _RANK[part], ""
            changes += [(start, 1, rank, phase), (stop, -1, rank, phase)]
        found.append(
            StepParts(name=step["name"], seconds=step["dur"] / 1e6, parts=_sweep(begin, end, changes, on_host))
        )
    return found


def _sweep(begin: float, end: float, changes: list[tuple[float, int, int, str]], on_host: bool) -> dict[Part, float]:
    """Seconds of each part between `begin` and `end` (microseconds)."""
    spent: Counter[Part] = Counter(dict.fromkeys(PARTS, 0.0))
    going: Counter[int] = Counter()
    phases: Counter[str] = Counter()
    last = begin
    for moment, change, rank, phase in sorted(changes, key=lambda one: one[0]):
        spent[_part(going, phases, on_host)] += moment - last  # type: ignore[assignment]
        last = moment
        if rank < 0:
            phases[phase] += change
        else:
            going[rank] += change
    spent[_part(going, phases, on_host)] += end - last  # type: ignore[assignment]
    return {part: spent[part] / 1e6 for part in PARTS}


def _part(going: Counter[int], phases: Counter[str], on_host: bool) -> Part:
    phase = next((name for name, count in phases.items() if count), "")
    rank = min((rank for rank, count in going.items() if count), default=-1)
    if rank < 0:
        return _OF_PHASE.get(phase, "host overhead")
    part = PARTS[rank]
    hosts = ("device", "transfer") if on_host else ("transfer",)
    if part in hosts and phase == "logging":
        return "post-processing"
    return "data preparation" if on_host and part == "device" and phase == "data" else part


def summarise(root: Path, trace: Trace, on_host: bool) -> TraceSummary:
    """Shares by part, from the trace file. Raises :class:`EvidenceError` when it is not the file that was written."""
    path = root / trace.file
    try:
        if ev.sha256(path) != trace.sha256:
            raise EvidenceError(f"{trace.file} is not the file that was written")
        events = json.loads(path.read_text())["traceEvents"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise EvidenceError(f"{trace.file} cannot be read: {error}") from None
    steps = parts(events, on_host)
    first = [step for step in steps if step.name == "first"]
    later = [step for step in steps if step.name == "later"]
    return TraceSummary(
        case=trace.case,
        source=trace.source,
        file=trace.file,
        first_seconds=sum(step.seconds for step in first),
        first=_shares(first),
        later_seconds=sum(step.seconds for step in later) / len(later) if later else None,
        later=_shares(later) if later else None,
        memory=trace.memory.spans,
        memory_kinds={"host": trace.memory.host.kind, "device": trace.memory.device.kind},
    )


def _shares(steps: list[StepParts]) -> dict[Part, float]:
    total = sum(step.seconds for step in steps)
    return {part: sum(step.parts[part] for step in steps) / total if total else 0.0 for part in PARTS}


def read(root: Path, cell: Cell) -> dict[str, Trace]:
    """The documents that `cell` left, by case. Raises :class:`EvidenceError` when one is damaged."""
    paths = {case: root / "evidence" / cell.id / f"{case}.trace.json" for case in cell.cases}
    return {case: ev.read(Trace, path) for case, path in paths.items() if path.exists()}


def of_cell(root: Path, cell: Cell) -> list[TraceSummary]:
    """All traces of one process. Raises :class:`EvidenceError` when a file is damaged."""
    return [summarise(root, trace, on_host=cell.target == "cpu") for trace in read(root, cell).values()]


def findings(root: Path, cells: list[Cell], requirements: Requirements) -> list[Finding]:
    """A trace that is damaged says nothing."""
    found: list[Finding] = []
    for cell in cells:
        try:
            of_cell(root, cell)
        except EvidenceError as error:
            found.append(Finding(word="untested(trace)", cell=cell.id, text=str(error), fails=False))
    return found
