"""What a change brought, taken from two records: the one before it and the one after it.

The figures and their intervals are those of :mod:`..compare`; here they are reduced to what a ledger keeps for years, in a
form of its own that does not change when a comparison learns more.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field

from .. import compare
from ..compare import Opened
from ..errors import BadInput
from ..evidence import Frozen
from ..judge.results import FAILED, CaseResult, Verdict

Label = Literal["rehearsal", "measurement", "self-check"]


class Side(Frozen):
    """One of the two records, by its seal and what it is about."""

    directory: str
    seal: str
    label: Label
    workload: str
    workload_sha256: str
    target: str


class Row(Frozen):
    """One mode, precision and case in both records. Seconds; ``ratio`` is after over before, below 1 being faster.

    ``ratio`` is None where times may not be set against each other, and ``claim`` is none where nothing may be said from
    it; ``why`` has the reason of either. ``compiled`` are the programs of the process that compiled most. None: not seen.
    """

    mode: str
    dtype: str
    case: str
    verdict_before: Verdict | None
    verdict_after: Verdict | None
    step_before: float | None
    step_after: float | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    coverage: float | None = None
    claim: Literal["faster", "slower", "none"] = "none"
    why: str = ""
    fallbacks_before: int | None = None
    fallbacks_after: int | None = None
    compiled_before: int | None = None
    compiled_after: int | None = None


class Measured(Frozen):
    """The effect of one change. ``graph_breaks`` are of the process that has most of them; None: nothing was compiled."""

    before: Side
    after: Side
    source_changed: bool
    rows: list[Row] = Field(min_length=1)
    graph_breaks_before: int | None = None
    graph_breaks_after: int | None = None


def measured(before: Path, after: Path, mode: str = "", dtype: str = "", case: str = "") -> Measured:
    """The effect between two records; `mode`, `dtype` and `case` choose rows, empty takes all that both have.

    Raises:
        BadInput: one of them cannot be read, they are the same, they are not of one workload and target, or they have no
            such mode, precision and case in common.
    """
    one, other = compare.opened(before), compare.opened(after)
    if one.record.seal == other.record.seal:
        raise BadInput(f"{before} and {after} are the same record; give the one before the change and the one after it")
    if one.record.label != other.record.label or one.record.trial["target"] != other.record.trial["target"]:
        said = [f"{side.record.label} on {side.record.trial['target']}" for side in (one, other)]
        raise BadInput(f"no effect: {before} is a {said[0]} and {after} a {said[1]}; an effect needs two of one kind")
    edited = one.record.trial["workload_sha256"] != other.record.trial["workload_sha256"]
    if problem := compare.unlike(_as_edited(one, other), other):
        raise BadInput(f"no effect: {before} and {after} are not of the same workload: {problem}")
    figures = compare.effect(_as_edited(one, other), other)
    verdicts = [_by_place(side) for side in (one, other)]
    steps = {(step.mode, step.dtype, step.case): step for step in figures.steps}
    rows = []
    for place in verdicts[0]:
        asked = all(wanted in ("", own) for wanted, own in zip((mode, dtype, case), place))
        if not asked or place not in verdicts[1] or place[0] == "reference":
            continue
        was, now = verdicts[0][place], verdicts[1][place]
        step = steps.get(place)
        found = step.interval if step else None
        rows.append(
            Row(
                mode=place[0],
                dtype=place[1],
                case=place[2],
                verdict_before=_worst(was),
                verdict_after=_worst(now),
                step_before=step.before if step else None,
                step_after=step.after if step else None,
                ratio=step.ratio if step else None,
                low=found.low if found else None,
                high=found.high if found else None,
                coverage=found.coverage if found else None,
                claim=step.claim if step else "none",
                why=step.why if step else "not timed",
                fallbacks_before=_fallbacks(was),
                fallbacks_after=_fallbacks(now),
                compiled_before=_compiled(was),
                compiled_after=_compiled(now),
            )
        )
    if not rows:
        raise BadInput(
            f"no effect: {before} and {after} have no {' '.join(p for p in (mode, dtype, case) if p) or 'case'} in common: "
            f"{_places(verdicts[0])} before, {_places(verdicts[1])} after"
        )
    return Measured(
        before=_side(one),
        after=_side(other),
        source_changed=edited,
        rows=rows,
        graph_breaks_before=figures.graph_breaks_before,
        graph_breaks_after=figures.graph_breaks_after,
    )


def _as_edited(before: Opened, after: Opened) -> Opened:
    """`before` with the source hash of `after` where only that differs: the change that a ledger records is often an edit
    of the workload's own file. Its weights, optimizer and batches must still be the same.
    """
    one, other = before.record.trial, after.record.trial
    if one["workload"] != other["workload"]:
        return before
    same = before.record.model_copy(update={"trial": one | {"workload_sha256": other["workload_sha256"]}})
    return Opened(before.root, same)


def _side(opened: Opened) -> Side:
    of = opened.record
    return Side(
        directory=str(opened.root),
        seal=of.seal,
        label=of.label,
        workload=str(of.trial["workload"]),
        workload_sha256=str(of.trial["workload_sha256"]),
        target=str(of.trial["target"]),
    )


_Place = tuple[str, str, str]


def _by_place(side: Opened) -> dict[_Place, list[CaseResult]]:
    """Every process's result by mode, precision and case, in the record's order."""
    found: dict[_Place, list[CaseResult]] = {}
    for cell, result in side.cells.values():
        for case in result.cases:
            found.setdefault((cell.mode, cell.dtype, case.case), []).append(case)
    return found


def _worst(results: list[CaseResult]) -> Verdict:
    """The verdict that decides for all processes of one place."""
    seen = [result.verdict for result in results]
    order: tuple[Verdict, ...] = (*FAILED, "match", "untested")
    return min(seen, key=order.index)


def _fallbacks(results: list[CaseResult]) -> int | None:
    """Distinct operators that fell back; None where a process could not see them."""
    seen = [result.paths.fallbacks for result in results if result.paths]
    if not seen or any(one is None for one in seen):
        return None
    return len({fallback.name for one in seen for fallback in one or []})


def _compiled(results: list[CaseResult]) -> int | None:
    return max((r.paths.compiled for r in results if r.paths and r.paths.compiled is not None), default=None)


def _places(found: Iterable[_Place]) -> str:
    named = [" ".join(place) for place in found if place[0] != "reference"]
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "") or "none"
