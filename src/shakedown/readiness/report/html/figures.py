"""What a chart of the report is, and the charts of numbers, paths, times and memory. Values come from the record as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ...judge.measured import PooledTiming
from ...record import Record
from ..words import cases, name_of, pairs, side_of
from . import charts
from .charts import Axis, Bar, Chart, Dots, Line, Point
from .files import Files, Source
from .vectors import FILE, Entry, Vectors

Look = Literal["", "projection", "documented"]
ROLES = ("output", "loss", "gradient", "weight", "buffer", "state")


@dataclass(frozen=True)
class Figure:
    """A chart with its sentence: what it shows, in which unit, from how many, and where the data lie."""

    title: str
    said: list[str]
    chart: Chart
    sources: Sequence[Source] = ()
    look: Look = ""
    kind: str = field(default="figure", init=False)


@dataclass(frozen=True)
class Missing:
    """Something that a reader will look for, and why it is not there."""

    title: str
    why: str
    kind: str = field(default="missing", init=False)


Part = Figure | Missing


def numerics(record: Record, files: Files, vectors: Vectors) -> list[Part]:
    """Every tensor against its bound."""
    title = "Error of every tensor against its bound"
    if vectors.missing:
        return [Missing(title, vectors.missing)]
    names = {cell.id: side_of(cell.mode, cell.dtype) for cell in record.cells}
    found: dict[str, dict[str, list[Entry]]] = {}
    for one in vectors:
        if one.cell in names:
            found.setdefault(names[one.cell], {}).setdefault(one.role, []).append(one)
    if not found:
        return [Missing(title, "not measured: no tensor was compared")]
    if sum(len(roles) for roles in found.values()) <= 30:
        rows = [_dots(f"{side}, {role}", own[role]) for side, own in found.items() for role in sorted(own, key=_role)]
    else:
        rows = [_dots(side, [one for own in roles.values() for one in own]) for side, roles in found.items()]
    axis = Axis("relative L2 error over allowed error", "share", log=True)
    chart = charts.dots("numerics", title, rows, axis, 1.0, "bound: 100%")
    said = [
        "Each dot is one tensor of one case of one process, or several that lie together (the larger the more); a cross is a "
        "tensor that failed: beyond its bound, or by a row, a scale, a bias or an update of its own. Unit: share of the allowed "
        "error. Error: relative L2 distance to the float64 run on the CPU; allowed: what rounding explains, or a multiple of the "
        f"CPU's own error. n = {sum(len(r.values) for r in rows):,} tensors."
    ]
    return [Figure(title, said, chart, [files.source(FILE)])]


def _dots(label: str, found: Sequence[Entry]) -> Dots:
    return Dots(label, [one.margin for one in found], frozenset(i for i, one in enumerate(found) if one.failed))


def _role(role: str) -> int:
    return ROLES.index(role) if role in ROLES else len(ROLES)


def paths(record: Record, files: Files) -> list[Part]:
    """How many calls of one step ran where."""
    title = "Where the calls of one later step ran"
    shown = record.trial["cases"][0]
    rows, names = [], []
    for cell, case in cases(pairs(record)):
        usual = case.case == shown and cell.kind == "sequence" and cell.cache != "warm" and cell.mode != "reference"
        if not usual or case.paths is None:
            continue
        names.append(f"evidence/{cell.id}/{case.case}.json")
        phases = case.paths.phases
        if not phases:
            rows.append(Bar(name_of(cell), missing="not seen on this target"))
            continue
        left = [p.fallbacks for p in phases if p.fallbacks is not None]
        parts = [("on the device", float(sum(p.executed for p in phases)))]
        parts += [("left the device for the CPU", float(sum(left)))] if left else []
        host = [p.host for p in phases if p.host is not None]
        parts += [("on tensors of the CPU", float(sum(host)))] if any(host) else []
        rows.append(Bar(name_of(cell), tuple(parts)))
    if not rows:
        return [Missing(title, "not measured: no step on the target was observed")]
    said = [
        f"Calls at PyTorch's dispatcher in one step of case {shown}; n = 1 step a process. A fused or compiled program counts "
        "once."
    ]
    return [Figure(title, said, charts.bars("paths", title, rows, Axis("calls")), files.sources(names))]


def times(record: Record, files: Files) -> list[Part]:
    """Starts, and steps in the steady state."""
    return [_starts(record, files), _steady(record, files)]


def _starts(record: Record, files: Files) -> Part:
    first = record.trial["cases"][0]
    title = f"What starting costs, case {first}: cold and warm"
    rows = []
    for one in record.judgement.timings:
        for start in one.starts if one.case == first else ():
            setups = start.setups
            middle = sorted(range(len(setups)), key=setups.__getitem__)[len(setups) // 2] if setups else None
            label = side_of(one.mode, one.dtype) + (f", {start.cache}" if start.cache != "none" else "")
            if middle is None:
                rows.append(Bar(label, missing="not measured"))
                continue
            parts = (("start-up", start.start_up[middle]), ("first step", start.first_step[middle]))
            several = len(setups) > 1
            unproved = "" if start.proved or start.cache == "none" else ", NOT proved"
            low, high = (min(setups), max(setups)) if several else (None, None)
            rows.append(Bar(f"{label}{unproved}, n = {len(setups)}", parts, low, high))
    if not rows:
        return Missing(title, "not measured: no start was timed")
    said = [
        "Seconds from starting the process to the end of the first step; the process in the middle of n, the line spans all of "
        "them. Cold: an empty cache. Warm: what the cold process left."
    ]
    return Figure(
        title,
        said,
        charts.bars("starts", title, rows, Axis("time", "seconds")),
        _timing_sources(record, files, first),
    )


def _steady(record: Record, files: Files) -> Part:
    title = "What a step costs in the steady state"
    rows = []
    plain = [one for one in record.judgement.timings if "~" not in one.case]
    for one in plain:
        label = f"{side_of(one.mode, one.dtype)}, {one.case}"
        if one.median is None:
            rows.append(Bar(label, missing=f"withheld: {one.withheld}"))
            continue
        ends = (one.interval.low, one.interval.high) if one.interval else (None, None)
        rows.append(Bar(label, (("median", one.median),), *ends))
    if not rows:
        return Missing(title, "not measured: no step was timed")
    if not any(row.parts for row in rows):
        return Missing(title, "withheld: " + "; ".join(dict.fromkeys(one.withheld for one in plain)))
    said = [
        "Median of the processes' medians, each step awaited; the line is its interval by a bootstrap over processes, then "
        "steps. No line: one process, and so no interval. n of each is in the table of step times.",
        *_kinds(record.judgement.timings),
    ]
    names = _timing_sources(record, files, None)
    return Figure(title, said, charts.bars("steady", title, rows, Axis("time", "seconds")), names)


def _kinds(timings: Sequence[PooledTiming]) -> list[str]:
    if any(one.kind == "rehearsal" and one.mode != "reference" for one in timings):
        return ["REHEARSAL: times of the embedded device are this machine's, and say nothing of Trainium."]
    return []


def _timing_sources(record: Record, files: Files, case: str | None) -> list[Source]:
    timed = [
        f"evidence/{cell.id}/{c.case}.json" for cell, c in cases(pairs(record)) if c.timing and case in (None, c.case)
    ]
    return [files.judged("judgement.timings"), *files.sources(timed, most=3)]


def curves(record: Record, files: Files) -> list[Part]:
    """Seconds of a step once its share of the start is added, for each precision and state of the cache."""
    title = "What a step costs once its share of the start is added"
    first = record.trial["cases"][0]
    timings = [one for one in record.judgement.timings if one.case == first and one.curves]
    made: list[Part] = []
    for dtype in dict.fromkeys(one.dtype for one in timings):
        own = [one for one in timings if one.dtype == dtype]
        for cache in dict.fromkeys(c.cache for one in own for c in one.curves if one.mode != "reference"):
            lines = [
                Line(side_of(one.mode, dtype), [Point(p.steps, p.value, p.low, p.high) for p in curve.points])
                for one in own
                for curve in one.curves
                if curve.cache == cache or one.mode == "reference"
            ]
            n = sum(len(line.points) for line in lines)
            state = f", {cache} cache" if cache != "none" else ""
            name = f"{title}: {dtype}{state}, case {first}"
            said = [
                "Average seconds of a step over so many steps, start-up and first step included; both axes are logarithmic. A "
                f"band is the interval, where several starts were seen. n = {n} points, from the times above."
            ]
            axes = Axis("steps", log=True), Axis("time a step", "seconds", log=True)
            marks = [
                (even.steps.value, f"{even.mode} is paid for")
                for even in record.judgement.break_even
                if (even.case, even.dtype, even.cache, even.over) == (first, dtype, cache, "reference")
                and even.answer == "after"
                and even.steps is not None
            ]
            chart = charts.lines(f"curve-{len(made)}", name, lines, *axes, marks=marks)
            made.append(Figure(name, [*said, *_kinds(own)], chart, [files.judged("judgement.timings[].curves")]))
    return made or [
        Missing(title, "not measured: it needs a timed start and a steady step, and one of them is missing or withheld")
    ]


def memory(record: Record, files: Files) -> list[Part]:
    """What a step needs on the device, and on the host."""
    by_id = {cell.id: cell for cell in record.cells}
    shown = [one for one in record.judgement.memory if by_id[one.cell].kind == "sequence"]
    made: list[Part] = []
    for what in ("device", "host"):
        title = f"Memory of a step on the {what}"
        rows = []
        for one in shown:
            value, meter = (one.device, one.device_meter) if what == "device" else (one.host, one.host_meter)
            label = f"{name_of(by_id[one.cell])}, {one.case}"
            if what == "device" and by_id[one.cell].mode == "reference":
                continue
            missing = f"not known: {meter.source}" if value is None else ""
            rows.append(Bar(label, () if value is None else ((meter.kind, float(value)),), missing=missing))
        if not rows:
            made.append(Missing(title, "not measured"))
            continue
        said = [
            "Bytes in one step that is not timed; n = 1 step a process and case. Peak: the largest of all moments. Sampled: of "
            "those that were looked at, which a peak between two of them exceeds."
        ]
        chart = charts.bars(f"memory-{what}", title, rows, Axis("memory", "bytes"))
        names = [f"evidence/{one.cell}/{one.case}.memory.json" for one in shown]
        made.append(Figure(title, said, chart, files.sources(names, most=4)))
    return made
