"""After how many steps a slower start is paid for by faster steps, and how sure that is.

What a start costs is the time until its first step is done, less one steady step, which is work like any other. With E the
start that one side costs more, and s what each of its steps saves, both sides have cost the same after E / s steps, where
their curves of :mod:`.amortise` cross. Both are drawn together, so the interval is that of the ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from .. import evidence as ev
from ..evidence import Frozen
from ..requirements import Requirements, Resampling
from . import amortise, ratios, resample
from .amortise import Point, State
from .measured import PooledTiming, Start
from .processes import Group, Key

Answer = Literal["after", "at once", "none", "withheld"]
Over = Literal["reference", "eager"]


class Estimate(Frozen):
    """A value with the ends of its interval. ``coverage`` None: seen once, so there is no interval. ``high`` None with a
    coverage: no upper end is known.
    """

    value: float
    low: float | None
    high: float | None
    coverage: float | None


class BreakEven(Frozen):
    """One side, after a start in one state of its cache, against another side.

    ``answer``: paid for ``after`` so many steps; ``at once``, since starting costs no more; ``none``, since steps are not
    faster (or it cannot be said that they are); ``withheld``. ``why`` gives the reason of the last two, and doubts of the
    others. ``extra`` is what starting costs more, in seconds, and ``saved`` what a step costs less; ``steps`` is the one
    over the other, the number of steps at which both sides have cost the same. ``within_plan`` compares it with
    ``planned_steps``. ``points`` and ``over_points`` are the average seconds per step of both sides.
    """

    mode: str
    dtype: str
    case: str
    cache: State
    over: Over
    over_cache: State | None
    kind: Literal["measured", "rehearsal"]
    answer: Answer
    why: str
    extra: Estimate | None
    saved: Estimate | None
    steps: Estimate | None
    planned_steps: int
    within_plan: Literal["yes", "no", "open"] | None
    points: list[Point]
    over_points: list[Point]


def judge(groups: Mapping[Key, Group], timings: Sequence[PooledTiming], requirements: Requirements) -> list[BreakEven]:
    """Every mode against the CPU and against eager, for each plain case and each state in which the case was started.

    Args:
        groups: the processes behind `timings`, from :func:`.pooled.groups`.
        timings: what they were pooled to; its starts and curves are read.
        requirements: what a claim needs, how to resample, and the steps of a real run.
    """
    by_key = {(one.mode, one.dtype, one.case): one for one in timings}
    overs: tuple[Over, ...] = ("reference", "eager")
    made = []
    for one in timings:
        if one.mode == "reference" or "~" in one.case:
            continue
        for over in overs:
            other = by_key.get((over, one.dtype, one.case))
            if other is not None and over != one.mode:
                made += [_against(one, start, over, other, groups, requirements) for start in one.starts]
    return made


def _against(
    one: PooledTiming,
    start: Start,
    over: Over,
    other: PooledTiming,
    groups: Mapping[Key, Group],
    requirements: Requirements,
) -> BreakEven:
    """`one` after `start` against the same kind of start of `other`; the CPU has one kind only."""
    base = next((s for s in other.starts if s.cache == start.cache or over == "reference"), None)
    planned = requirements.workload.training_steps
    same = {
        "mode": one.mode,
        "dtype": one.dtype,
        "case": one.case,
        "cache": start.cache,
        "over": over,
        "over_cache": base.cache if base else None,
        "kind": "rehearsal" if "rehearsal" in (one.kind, other.kind) else "measured",
        "planned_steps": planned,
        "points": _points(one, start.cache),
        "over_points": _points(other, base.cache) if base else [],
    }
    nothing: dict[str, object] = {
        "extra": None,
        "saved": None,
        "steps": None,
        "within_plan": None,
        "answer": "withheld",
    }
    left, right = groups[one.mode, one.dtype, one.case], groups[over, one.dtype, one.case]
    why = _withheld(one, start, other, base) or "; ".join(
        ev.blendable(left.used[0].evidence, right.used[0].evidence) if left.used and right.used else []
    )
    if why or base is None:
        return BreakEven.model_validate(same | nothing | {"why": why})
    return BreakEven.model_validate(same | _compared(left, start, right, base, requirements))


def _points(one: PooledTiming, cache: State) -> list[Point]:
    return next((curve.points for curve in one.curves if curve.cache == cache), [])


def _withheld(one: PooledTiming, start: Start, other: PooledTiming, base: Start | None) -> str:
    """Why nothing can be compared at all; empty where it can."""
    named = {"reference": "the CPU"}
    for side in (one, other):
        if side.withheld:
            return f"{named.get(side.mode, side.mode)}: {side.withheld}"
    if base is None:
        cache = "" if other.mode == "reference" or start.cache == "none" else f" and a {start.cache} cache"
        return f"{named.get(other.mode, other.mode)}: no process began with this case{cache}"
    for side, began in ((one, start), (other, base)):
        if began.cache != "none" and not began.proved:
            return f"{side.mode}: the cache was not proved to be {began.cache}: {began.proof}"
    return ""


def _compared(left: Group, start: Start, right: Group, base: Start, requirements: Requirements) -> dict[str, object]:
    """Both sides have times and starts: what one costs more, saves, and when that is even."""
    demand, random = requirements.resampling, resample.generator()
    mine, theirs = [p.seconds for p in left.used], [p.seconds for p in right.used]
    doubt = ratios.no_turns(left, right)
    paired = not doubt and len(mine) == len(theirs)
    if paired:
        value = float(np.median([float(np.median(b) - np.median(a)) for a, b in zip(mine, theirs)]))
    else:
        value = resample.middle(theirs) - resample.middle(mine)
    drawn = resample.differences(theirs, mine, paired, demand.draws, random)
    saved = _estimate(value, drawn, min(len(mine), len(theirs)), demand)
    starts = amortise.setups(start.setups, demand.draws, random) - amortise.setups(base.setups, demand.draws, random)
    fewest = min(len(start.setups), len(base.setups), len(mine), len(theirs))
    # Each start ends with a first step, which the other steps are like: what is saved in it was not start-up.
    more = float(np.median(start.setups)) - float(np.median(base.setups)) + value
    extra = _estimate(more, starts + drawn, fewest, demand)
    found: dict[str, object] = {"extra": extra, "saved": saved, "steps": None, "within_plan": None}
    needed = requirements.timing.claim_processes
    if saved.low is None or saved.high is None or min(len(mine), len(theirs)) < needed:
        counts = f"{len(mine)} and {len(theirs)} processes have steps that count, and {needed} a side are needed"
        return found | {"answer": "withheld", "why": counts}
    if doubt:
        return found | {"answer": "withheld", "why": doubt}
    if saved.low <= 0:
        said = "steps are slower" if saved.high < 0 else "the interval of what a step saves includes zero"
        said += "; it starts sooner" if extra.high is not None and extra.high < 0 else ""
        return found | {"answer": "none", "why": said, "within_plan": "no"}
    if extra.coverage is None or extra.low is None or extra.high is None:
        return found | {"answer": "withheld", "why": "a start was seen only once, so that there is no interval"}
    if extra.high <= 0:
        return found | {"answer": "at once", "why": "starting costs no more", "within_plan": "yes"}
    # A draw in which nothing is saved is never even; one in which starting costs no more is so at once.
    with np.errstate(divide="ignore", invalid="ignore"):
        even = np.where(starts + drawn <= 0, 0.0, np.where(drawn > 0, (starts + drawn) / drawn, np.inf))
    steps = _estimate(max(0.0, more / value), even, fewest, demand)
    why = "" if extra.low > 0 else "starting may cost no more: its interval includes zero"
    planned = requirements.workload.training_steps
    within = "open"
    if steps.high is not None and steps.high <= planned:
        within = "yes"
    elif steps.low is not None and steps.low > planned:
        within = "no"
    return found | {"answer": "after", "why": why, "steps": steps, "within_plan": within}


def _estimate(value: float, draws: np.ndarray, processes: int, demand: Resampling) -> Estimate:
    """`value` with the middle of `draws`, whose upper end may be infinite."""
    if processes < 2:
        return Estimate(value=value, low=None, high=None, coverage=None)
    tail = (1 - demand.confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail], method="inverted_cdf")
    covers = resample.coverage(processes, demand)
    return Estimate(value=value, low=ev.finite(float(low)), high=ev.finite(float(high)), coverage=covers)
