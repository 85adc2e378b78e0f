"""Charts of what is planned with: traffic by shape, the trade-off of buckets, and the projection on a published instance."""

from __future__ import annotations

from ...judge.shapes import ShapeLedger
from ...record import Record
from ..words import side_of
from . import charts
from .charts import Axis, Bar, Line, Point
from .figures import Figure, Missing, Part
from .files import Files

SHAPES_DRAWN = 24


def shapes(record: Record, files: Files) -> list[Part]:
    """Where the traffic is, and what more buckets would cost and save."""
    found = record.judgement.shapes
    if found is None:
        return [Missing("Traffic by shape", "not measured: the requirements name no distribution of lengths")]
    source = [files.judged("judgement.shapes")]
    rows = [Bar(f"{row.size} x {row.length}", (("share of traffic", row.share),)) for row in found.rows[:SHAPES_DRAWN]]
    left = max(len(found.rows) - SHAPES_DRAWN, 0) + found.rows_left_out
    requests = (
        f"n = {found.requests:,} requests" if found.requests is not None else "n is not known: only shares were given"
    )
    said = [f"Share of requests by shape, batch x length; {requests}, {found.distinct} lengths. From {found.source}."]
    said += [f"{left} more shapes are in record.json."] if left else []
    title = "Traffic by shape"
    made: list[Part] = [
        Figure(title, said, charts.bars("traffic", title, rows, Axis("share of traffic", "share")), source)
    ]
    return made + _trade_off(found, files)


def _trade_off(found: ShapeLedger, files: Files) -> list[Part]:
    plan = found.plan
    if plan is None or not plan.curve:
        return [Missing("Buckets: the trade-off", "withheld: there is no plan of buckets for this traffic")]
    source = [files.judged("judgement.shapes.plan")]
    chosen = plan.curve[plan.recommended] if 0 <= plan.recommended < len(plan.curve) else None
    marks = [(float(chosen.programs), "recommended")] if chosen else []
    programs = Axis("programs to compile", zero=False)
    waste = [Line("padding", [Point(p.programs, p.waste) for p in plan.curve])]
    title = "Buckets: padding against programs"
    said = [f"Share of computed positions that are padding, with the best edges for so many programs. {plan.reason}"]
    made: list[Part] = [
        Figure(
            title, said, charts.lines("waste", title, waste, programs, Axis("padding", "share"), marks=marks), source
        )
    ]
    parts = {
        "compiling, once": [Point(p.programs, p.compile_seconds) for p in plan.curve],
        "steps": [
            Point(p.programs, None if p.step_seconds is None else plan.steps * p.step_seconds) for p in plan.curve
        ],
        "together": [Point(p.programs, p.total_seconds) for p in plan.curve],
    }
    known = {name: [point for point in points if point.y is not None] for name, points in parts.items()}
    lines = [Line(name, points) for name, points in known.items() if points]
    title = "Buckets: seconds against programs"
    if not lines:
        return [*made, Missing(title, "not measured: the plan weighs padding alone")]
    said = [
        f"Seconds over {plan.steps:,} steps of this traffic, from {found.kind} costs; estimates between measured shapes."
    ]
    chart = charts.lines("bucket-seconds", title, lines, programs, Axis("time", "seconds"), marks=marks)
    return [*made, Figure(title, said, chart, source)]


def projection(record: Record, files: Files) -> list[Part]:
    """The least that a step can take on the published instance."""
    found = record.judgement.projection
    title = "PROJECTION: the least that a step can take"
    if found is None:
        return [Missing("Projection", "not made: no programs were counted, or the requirements name no instance")]
    rows = []
    for case in found.cases:
        for bound in case.bounds:
            label = f"{side_of(case.mode, case.dtype)}, {case.case}, one {bound.unit}"
            if bound.seconds is None:
                rows.append(Bar(label, missing=f"none: {bound.reason}"))
            else:
                rows.append(Bar(label, (("lower bound", bound.seconds),)))
    said = [
        f"A lower bound from counted operations and bytes and from figures published for {found.instance} ({found.chip}), "
        f"dated {found.dated}; nothing was measured there. Seconds of one step; no interval, since it is no sample. "
        f"{len(found.assumptions)} assumptions are listed below."
    ]
    counted = [f"evidence/{case.cell}/{case.case}.programs.json" for case in found.cases]
    chart = charts.bars("projection", title, rows, Axis("time at least", "seconds"))
    return [
        Figure(
            title,
            said,
            chart,
            [files.judged("judgement.projection"), *files.sources(counted, most=4)],
            look="projection",
        )
    ]
