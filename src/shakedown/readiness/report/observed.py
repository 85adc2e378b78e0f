"""Sections of the report file about what was observed besides numbers: times, memory, graphs, operators, probes, profiles."""

from __future__ import annotations

from ..judge.amortise import Curve
from ..judge.measured import PooledTiming
from ..record import Record
from ..scan.results import SEVERITIES
from . import break_even, parity, payback, projection, shapes
from .words import Pairs, Section, Table, cases, name_of, pairs, seconds, share, side_of, size

LINES_SHOWN = 40  # operators of the attributed step, the slowest first


def sections(record: Record) -> list[Section]:
    """In the order of the questions: where, captured, how long, how much, what else."""
    of = pairs(record)
    made = [
        parity.section(record),
        _source(record),
        _operators(record, of),
        _graphs(record),
        _times(record),
        _curves(record),
        break_even.section(record),
        shapes.section(record),
        _memory(record),
        projection.section(record),
        payback.section(record),
        _probes(record),
        _profiles(record),
        _decisions(of),
    ]
    return [section for section in made if section]


def _source(record: Record) -> Section:
    """What the scan found in the workload's source, the most severe first, with whether it ran."""
    found = record.judgement.scan
    if found is None:
        return Section("The workload's source", ["It was not scanned, or the scan is damaged."])
    hits = sorted(found.hits, key=lambda hit: SEVERITIES.index(hit.severity))
    rows = [
        (
            f"{hit.path}:{hit.line}", hit.severity, hit.rule, hit.phase, hit.ran, hit.effort, f"`{hit.text}`",
            found.rules[hit.rule].instead,
        )
        for hit in hits
    ]  # fmt: skip
    effort = found.effort
    said = [
        f"{len(found.files)} files read, {len(hits)} places; changes that are needed: {effort.grade}, an estimated "
        f"{effort.required.low:g} to {effort.required.high:g} hours."
    ]
    said += [f"Not read: {one.path}, {one.reason}." for one in found.skipped]
    header = ("place", "severity", "rule", "phase", "in the trial", "effort", "source", "instead")
    return Section("The workload's source", said, [Table(header, rows)])


def _operators(record: Record, of: Pairs) -> Section:
    """The attributed step of the first case: which line asked for what, where it ran and how long it took."""
    shown = record.trial["cases"][0]
    tables, said = [], []
    for cell, case in cases(of):
        known = case.case == shown and cell.kind == "sequence" and cell.cache != "warm" and cell.mode != "reference"
        if not known or case.paths is None or case.paths.operators is None:
            continue
        found = sorted(case.paths.operators, key=lambda one: -(one.seconds or 0.0))
        rows = [
            (
                one.phase,
                f"`{one.name}`",
                "fell back" if one.fell_back else one.where,
                "not counted" if one.count is None else str(one.count),
                seconds(one.seconds),
                size(one.nbytes),
                ", ".join(one.lines[:3]) + (" ..." if len(one.lines) > 3 else ""),
            )
            for one in found[:LINES_SHOWN]
        ]
        header = (name_of(cell), "operator", "where", "calls", "time", "bytes", "lines")
        tables.append(Table(header, rows))
        host = case.paths.on_host
        if host is not None:
            part = host.reason if host.share is None else ("at least " if host.at_least else "") + share(host.share)
            said.append(f"{name_of(cell)}: share of a step in operators on the CPU: {part}.")
        if case.paths.unobservable:
            hidden = "; ".join(f"{kind}: {why}" for kind, why in case.paths.unobservable.items())
            said.append(f"{name_of(cell)}: unobservable: {hidden}.")
    intro = f"One step of case {shown}, slower than any other because every operator is timed and traced to the line behind it."
    return Section("Operators and the lines that ask for them", [intro, *said] if tables else [], tables)


def _graphs(record: Record) -> Section:
    by_id = {cell.id: cell for cell in record.cells}
    problems, ledger = [], []
    for cell, one in record.judgement.graphs.items():
        if by_id[cell].kind != "sequence":
            continue
        name = name_of(by_id[cell])
        problems += [(name, p.kind, p.cause, p.place or "–", str(p.count), p.text) for p in one.problems]
        ledger += [
            (name, row.case, row.shapes, str(row.calls), share(row.share), str(row.compiled), str(row.ran_eager))
            for row in one.ledger
        ]
    return Section(
        "Graphs",
        ["Capture, lowering and fallback are three problems with three remedies. The ledger counts calls of the compiled "
         "function by shape."] if problems or ledger else [],
        [
            Table(("process", "problem", "cause", "place", "count", "what"), problems),
            Table(("process", "case", "shapes", "calls", "share", "graphs compiled", "calls run eager"), ledger),
        ],
    )  # fmt: skip


def _times(record: Record) -> Section:
    rows = [_time(one) for one in record.judgement.timings]
    boundaries = {one.boundary for one in record.judgement.timings}
    said = [f"A step: {text}." for text in sorted(boundaries)] + [
        "Interval: bootstrap over processes, then steps. Throughput is one over the awaited step: what overlapping steps could "
        "gain is not in it. Calls returned: when the host was free again, before the work was complete."
    ]
    header = (
        "mode", "case", "median", "interval", "quartiles", "steps", "processes", "calls returned", "items/s", "percentiles",
        "against", "events and doubts",
    )  # fmt: skip
    return Section("Step times over all processes", said if rows else [], [Table(header, rows)])


def _time(one: PooledTiming) -> tuple[str, ...]:
    processes = f"{one.used} of {one.launched}"
    doubts = [*one.warnings, *(f"{e.cell}: {e.event.kind} at step {e.event.step}" for e in one.events)]
    if one.median is None:
        return (side_of(one.mode, one.dtype), one.case, "withheld", *["–"] * 3, processes, *["–"] * 4, one.withheld)
    ratios = [
        f"{ratio.over}: "
        + (
            f"{ratio.value:.2f}x ({ratio.claim if ratio.claim != 'none' else 'no claim: ' + ratio.why})"
            if ratio.value
            else ratio.why
        )
        for ratio in one.ratios
    ]
    span = f"{seconds(one.interval.low)} to {seconds(one.interval.high)}" if one.interval else "one process"
    items = "–"
    if one.throughput is not None:
        items = f"{one.throughput.items:.4g}"
        if one.throughput.items_low is not None and one.throughput.items_high is not None:
            items += f" ({one.throughput.items_low:.4g} to {one.throughput.items_high:.4g})"
    return (
        side_of(one.mode, one.dtype),
        one.case,
        seconds(one.median),
        span,
        f"{seconds(one.q1)} to {seconds(one.q3)}",
        str(one.n),
        processes,
        seconds(one.dispatch),
        items,
        ", ".join(f"{name} {seconds(value)}" for name, value in one.percentiles.items()),
        "; ".join(ratios) or "–",
        "; ".join(doubts) or "none",
    )


def _curves(record: Record) -> Section:
    found = [(one, curve) for one in record.judgement.timings for curve in one.curves if "~" not in one.case]
    if not found:
        return Section("What a step costs once its share of the start is added")
    counts = [point.steps for point in found[0][1].points]
    rows = [(side_of(one.mode, one.dtype), one.case, curve.cache, *_points(curve, counts)) for one, curve in found]
    said = (
        "Average seconds of a step when start-up and the first step are spread over so many steps, with the interval where "
        "several starts were seen; in brackets, over the same on the CPU."
    )
    header = ("mode", "case", "cache", *(f"{count:,}" for count in counts))
    return Section("What a step costs once its share of the start is added", [said], [Table(header, rows)])


def _points(curve: Curve, counts: list[int]) -> list[str]:
    over = {point.steps: point.value for point in curve.over_cpu}
    said = {}
    for point in curve.points:
        text = seconds(point.value)
        if point.low is not None and point.high is not None:
            text += f" ({seconds(point.low)}–{seconds(point.high)})"
        if point.steps in over:
            text += f" [{over[point.steps]:.2f}x]"
        said[point.steps] = text
    return [said.get(count, "–") for count in counts]


def _memory(record: Record) -> Section:
    by_id = {cell.id: cell for cell in record.cells}
    rows = []
    meters: dict[str, None] = {}
    for one in record.judgement.memory:
        meters[f"Host: {one.host_meter.kind}, {one.host_meter.source}."] = None
        meters[f"Device: {one.device_meter.kind}, {one.device_meter.source}."] = None
        if by_id[one.cell].kind == "sequence":
            figures = (one.host, one.device, one.device_overlapped, one.overlap, one.kept)
            rows.append((name_of(by_id[one.cell]), one.case, *("–" if f is None else size(f) for f in figures)))
    header = ("process", "case", "host", "device", "device, next batch there", "that adds", "left behind")
    return Section("Memory of a step", list(meters) if rows else [], [Table(header, rows)])


def _probes(record: Record) -> Section:
    rows, words = [], []
    for one in record.judgement.probes:
        name = f"{one.mode} {one.dtype}"
        rows += [
            (
                name, v.variation, str(v.matches), str(v.differs), str(v.refused), str(v.refused_only_here),
                str(v.accepted_only_here), str(v.ended_process), str(v.untested),
            )
            for v in one.variations
        ]  # fmt: skip
        words += [(name, c.name, c.operation, c.word, c.text) for c in one.canaries]
    header = (
        "mode", "arguments", "match", "differ", "refused as on the CPU", "refused only here", "accepted only here",
        "ended the process", "untested",
    )  # fmt: skip
    said = ["Each distinct operator call of the workload again, as it was and with its neighbours' arguments."]
    return Section(
        "Neighbours and number formats",
        said if rows else [],
        [Table(header, rows), Table(("mode", "format", "operation", "word", "what"), words)],
    )


def _profiles(record: Record) -> Section:
    by_id = {cell.id: cell for cell in record.cells}
    rows = []
    parts: dict[str, None] = {}
    for found in record.judgement.traces.values():
        for one in found:
            parts |= dict.fromkeys(one.first)
    for cell, found in record.judgement.traces.items():
        for one in found:
            for when, took, shares in (
                ("first step", one.first_seconds, one.first), ("later steps", one.later_seconds, one.later)
            ):  # fmt: skip
                if shares is not None:
                    named = {str(part): value for part, value in shares.items()}
                    columns = (share(named.get(part, 0.0)) for part in parts)
                    rows.append((name_of(by_id[cell]), one.case, when, seconds(took), *columns, one.file))
    said = ["Profiled steps are slower than others: shares, not times. The files open in ui.perfetto.dev."]
    header = ("process", "case", "step", "in all", *parts, "file")
    return Section("Profiles", said if rows else [], [Table(header, rows)])


def _decisions(of: Pairs) -> Section:
    rows = [
        (
            name_of(cell), case.case, one.name, one.kind, str(one.rows), str(one.flips), str(one.near_ties), str(one.wrong),
            "–" if one.cpu_flips is None else str(one.cpu_flips), share(one.share_of_near_ties),
        )
        for cell, case in cases(of)
        if cell.kind != "single"
        for one in case.decisions
    ]  # fmt: skip
    header = (
        "process", "case", "output", "decision", "rows", "flips", "near ties", "wrong", "flips of the CPU", "rows near a tie",
    )  # fmt: skip
    said = ["A decision is the largest column of each row, or the side of a declared threshold, against float64 truth."]
    return Section("Decisions", said if rows else [], [Table(header, rows)])
