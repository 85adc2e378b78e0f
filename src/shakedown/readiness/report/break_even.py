"""Sections about when a slower start is paid for."""

from __future__ import annotations

from ..judge.break_even import BreakEven, Estimate
from ..record import Record
from .words import Section, Table, seconds, side_of

_OVER = {"reference": "the CPU", "eager": "eager"}
_SAID = (
    "Steps after which a slower start is paid for by faster ones: extra start-up (to the end of the first step, less a steady "
    "step) over what each step saves, with the interval of that ratio. None: steps are not faster, or it cannot be said."
)


def brief(record: Record) -> Section:
    """For the first case: one row for each mode and precision, one column for each start and other side."""
    found = [one for one in record.judgement.break_even if one.case == record.trial["cases"][0]]
    columns = list(dict.fromkeys((one.over, one.cache) for one in found))
    rows: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    reasons: dict[str, None] = {}
    for one in found:
        rows.setdefault((one.mode, one.dtype), {})[one.over, one.cache] = answer(one)
        if one.answer == "withheld":
            reasons[one.why] = None
    header = ("mode", *(f"over {_OVER[over]}, {_start(cache)}" for over, cache in columns))
    table = [(side_of(*side), *(own.get(column, "–") for column in columns)) for side, own in rows.items()]
    said = [f"Case {record.trial['cases'][0]}. {_SAID}"] if table else []
    said += [f"Withheld: {reason}." for reason in list(reasons)[:4]]
    return Section("When a slower start is paid for", said, [Table(header, table)])


def section(record: Record) -> Section:
    """Every case, with what went into the answer."""
    rows = [
        (
            side_of(one.mode, one.dtype),
            one.case,
            _start(one.cache),
            _OVER[one.over],
            _range(one.extra),
            _range(one.saved),
            answer(one),
            "–" if one.within_plan is None else one.within_plan,
            _confidence(one),
            one.why or "–",
        )
        for one in record.judgement.break_even
    ]
    planned = next((one.planned_steps for one in record.judgement.break_even), 0)
    header = (
        "mode", "case", "start", "over", "extra start-up", "saved a step", "break-even (steps)",
        f"within {planned:,} steps", "interval covers", "why",
    )  # fmt: skip
    return Section("Break-even of each start", [_SAID] if rows else [], [Table(header, rows)])


def answer(one: BreakEven) -> str:
    """The answer in a few words: a number of steps with its interval, or why there is none."""
    if one.answer == "after" and one.steps is not None:
        high = "no upper end" if one.steps.high is None else f"{_count(one.steps.high)}"
        return f"{_count(one.steps.value)} ({_count(one.steps.low)} to {high})"
    return {"none": "no break-even", "at once": "at once"}.get(one.answer, "withheld")


def _start(cache: str) -> str:
    return "a start" if cache == "none" else f"a {cache} start"


def _count(value: float | None) -> str:
    """Steps with as many digits as mean something."""
    if value is None:
        return "not known"
    return f"{value:,.0f}" if value < 1e9 else f"{value:.1e}"


def _range(found: Estimate | None) -> str:
    if found is None:
        return "–"
    text = _signed(found.value)
    if found.low is not None and found.high is not None:
        text += f" ({_signed(found.low)} to {_signed(found.high)})"
    return text


def _signed(value: float) -> str:
    return f"-{seconds(-value)}" if value < 0 else seconds(value)


def _confidence(one: BreakEven) -> str:
    found = one.steps or one.extra
    return "–" if found is None or found.coverage is None else f"{found.coverage:.0%}"
