"""The section about the shapes of the traffic, and the plan of buckets; `shakedown shapes` shows it without a record, too."""

from __future__ import annotations

from ...buckets import PlanPoint
from ..judge.shape_rows import ShapeFamily
from ..judge.shapes import ShapeLedger
from ..record import Record
from .words import Section, Table, seconds, share, side_of

ROWS = 40  # shapes shown, the most frequent first
_EDGES = 12
_PLAN = 24


def section(record: Record) -> Section:
    """The ledger of the trial's traffic; empty where the requirements say nothing about it."""
    found = record.judgement.shapes
    return Section("Shapes of the traffic") if found is None else of(found)


def of(found: ShapeLedger) -> Section:
    """A ledger as sentences and tables: the traffic, what each number of programs would cost, the recommended buckets."""
    tables = [
        Table(("shape now", *_COLUMNS), [_row(row, found) for row in found.rows[:ROWS]]),
    ]
    if found.plan is not None:
        points = found.plan.curve[:_PLAN]
        plan = [_point("as it is now", found.now, None)]
        plan += [_point("", one, number == found.plan.recommended) for number, one in enumerate(points)]
        tables.append(Table(("plan", "programs", "buckets", "padding", "compiling", "a step", "in all"), plan))
        tables.append(Table(("recommended bucket", *_COLUMNS), [_row(row, found) for row in found.buckets]))
    return Section("Shapes of the traffic", _sentences(found), tables)


_COLUMNS = (
    "of the traffic", "requests", "lengths", "padding", "compiled", "calls", "re-used", "ran eager", "loaded warm", "a step",
)  # fmt: skip


def _sentences(found: ShapeLedger) -> list[str]:
    counted = "requests not counted, only their shares" if found.requests is None else f"{found.requests:,} requests"
    marks = ", ".join(f"{name} {length}" for name, length in found.quantiles.items())
    said = [f"Traffic: {found.source}; {counted}, {found.distinct} distinct lengths ({marks})."]
    if found.kind == "none" and found.mode:
        said.append(f"No step of {side_of(found.mode, found.dtype)} has a time, so this is about padding only.")
    elif found.mode:
        said.append(f"Costs: {found.kind}, {side_of(found.mode, found.dtype)}.")
    if found.step_model is not None:
        worst = "" if found.step_model.worst is None else f", {found.step_model.worst:.1%} at worst"
        said.append(f"Steps that were not timed are estimates: {found.step_model.method}{worst}.")
    if found.compile_cost is not None:
        one = found.compile_cost
        said.append(
            f"A new shape costs {seconds(one.seconds)} ({seconds(one.low)} to {seconds(one.high)}): {one.method}."
        )
    if found.plan is not None:
        best = found.plan.best
        many = f"{best.programs} program{'s' * (best.programs != 1)}"
        said.append(f"Recommended: pad to {_edges(best.edges)}, {many}; {found.plan.reason}.")
        said.append(f"Longer requests: {found.plan.longer.text}.")
        sizes = f", batch={list(found.plan.sizes)}" if len(found.plan.sizes) > 1 else ""
        said.append(f"In code: shakedown.neuron.bucketed(step, dim=1, buckets={list(best.edges)}{sizes}).")
    said += [f"Limit met: {text}." for text in found.limits]
    said += [f"{note[0].upper()}{note[1:]}." for note in found.notes]
    left = found.rows_left_out + max(0, len(found.rows) - ROWS)
    if left:
        kept = sum(row.share for row in found.rows[:ROWS])
        said.append(f"{left} rarer shapes are not shown; they are {1 - kept:.1%} of the traffic.")
    return said


def _edges(edges: tuple[int, ...]) -> str:
    text = "/".join(str(edge) for edge in edges[:_EDGES])
    return text + (f" and {len(edges) - _EDGES} more" if len(edges) > _EDGES else "")


def _row(row: ShapeFamily, found: ShapeLedger) -> tuple[str, ...]:
    lengths = str(row.shortest) if row.lengths == 1 else f"{row.lengths}, {row.shortest} to {row.longest}"
    tried = "–" if found.kind == "none" else "not tried"
    return (
        f"{row.size}x{row.length}",
        f"{row.share:.2%}",
        "–" if row.requests is None else f"{row.requests:,}",
        lengths,
        share(row.waste),
        tried if row.compiled is None else str(row.compiled),
        "–" if row.calls is None else str(row.calls),
        "–" if row.reused is None else share(row.reused),
        "–" if row.ran_eager is None else str(row.ran_eager),
        "–" if row.loaded_warm is None else str(row.loaded_warm),
        "not measured" if row.step.seconds is None else f"{seconds(row.step.seconds)}, {row.step.basis}",
    )


def _point(name: str, one: PlanPoint, recommended: bool | None) -> tuple[str, ...]:
    return (
        "recommended" if recommended else name or "possible",
        str(one.programs),
        "none added" if recommended is None else _edges(one.edges),
        f"{one.waste:.1%}",
        seconds(one.compile_seconds),
        seconds(one.step_seconds),
        seconds(one.total_seconds),
    )
