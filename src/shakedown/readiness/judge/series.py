"""Where the steady state of a series of step times begins, and what disturbed it: events, instead of a worse average.

Ranks are used and not seconds, so that one stall of any height is one large value and nothing more.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

Array = np.ndarray

SHORTEST = 5  # steps: a level that lasts for less has no median worth the name
FALSE_ALARMS = 0.005  # of series without any change, in which one is seen; the aim is 1 %
_PERMUTATIONS = 4999
_STALL_RATIO = 1.5  # of the level's median; and further than so many quartile distances above the upper quartile:
_STALL_QUARTILES = 3.0


class Event(BaseModel):
    """One thing that happened in a series. ``step`` counts from 1; ``seconds`` is what it cost beyond the level around it
    (a lasting change: the difference of the levels; a drift: from first to last step), ``ratio`` its size against that
    level. ``cause`` is what the evidence says about it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["late compile", "stall", "lasting change", "drift"]
    step: int
    seconds: float
    ratio: float
    cause: str


class Steady(BaseModel):
    """The steady part of a series: numbers of its steps, counting from 1, and the events of the whole series.

    ``reason`` says why there is no steady state; the steps are then those that would have been used.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    steps: list[int]
    events: list[Event]
    reason: str = ""


def _statistic(ranks: Array, shortest: int) -> tuple[Array, Array]:
    """For each row of ranks: the largest standardised rank sum of a beginning, and that beginning's length.

    This is Pettitt's change-point statistic (Applied Statistics 28, 1979) with the rank sum divided by its standard
    deviation under no change, sqrt(k (n - k) (n + 1) / 12), so that changes near the ends count as much as in the middle.
    """
    n = ranks.shape[-1]
    k = np.arange(shortest, n - shortest + 1)
    sums = np.cumsum(ranks - (n + 1) / 2, axis=-1)[..., k - 1]
    standardised = np.abs(sums) / np.sqrt(k * (n - k) * (n + 1) / 12)
    best = standardised.argmax(axis=-1)
    return np.take_along_axis(standardised, best[..., None], -1)[..., 0], k[best]


@lru_cache(maxsize=256)
def _threshold(n: int, shortest: int) -> float:
    """The statistic that a series of `n` steps without a change exceeds with the probability ``FALSE_ALARMS``, whatever
    the times are distributed like: under no change, every order of the ranks is equally likely.
    """
    shuffled = np.random.default_rng(n).permuted(np.tile(np.arange(1.0, n + 1), (_PERMUTATIONS, 1)), axis=1)
    return float(np.quantile(_statistic(shuffled, shortest)[0], 1 - FALSE_ALARMS, method="higher"))


def _ranks(values: Array) -> Array:
    """Ranks from 1; equal values share the mean of theirs."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[where.reshape(-1)]


def change_points(values: Array) -> list[int]:
    """Indices at which a new level begins, found by halving at the clearest change, and then the halves.

    Only a series in which the first cut is significant is cut at all, so the rate of false alarms of the whole is that of
    one test.
    """
    n = len(values)
    if n < 2 * SHORTEST:
        return []
    found, length = _statistic(_ranks(values), SHORTEST)
    if float(found) <= _threshold(n, SHORTEST):
        return []
    k = int(length)
    return [*change_points(values[:k]), k, *(k + i for i in change_points(values[k:]))]


def _levels(values: Array, lasting: float) -> list[tuple[int, int]]:
    """Stretches between change points, neighbours joined whose medians differ by less than the share `lasting`."""
    bounds = [0, *change_points(values), len(values)]
    while len(bounds) > 2:
        medians = [float(np.median(values[a:b])) for a, b in pairwise(bounds)]
        changes = [abs(after - before) / before if before else 0.0 for before, after in pairwise(medians)]
        least = int(np.argmin(changes))
        if changes[least] >= lasting:
            break
        del bounds[least + 1]
    return list(pairwise(bounds))


def _line(values: Array) -> tuple[float, float]:
    """Slope per step and value at the first step, by Theil and Sen: medians, which stalls do not move."""
    x = np.arange(len(values))
    i, j = np.triu_indices(len(values), 1)
    slope = float(np.median((values[j] - values[i]) / (x[j] - x[i])))
    return slope, float(np.median(values - slope * x))


def _drift(values: Array, levels: list[tuple[int, int]]) -> tuple[float, float] | None:
    """Total change and starting value of a steady slope, where a line explains `values` better than `levels` do."""
    slope, start = _line(values)
    line = float(np.abs(values - (start + slope * np.arange(len(values)))).sum())
    steps = sum(float(np.abs(values[a:b] - np.median(values[a:b])).sum()) for a, b in levels)
    return (slope * (len(values) - 1), start) if line < steps and start > 0 else None


_UNSEEN = "not known: this target does not tell of compilations"


def _cause(compiles: list[int] | None, step: int) -> str:
    """What the evidence says about a level that begins with `step`."""
    if compiles is None:
        return _UNSEEN
    near = sum(compiles[max(step - 2, 0) : step])
    return f"{near} programs were compiled or loaded just before" if near else "not known: nothing was compiled then"


def _stalls(values: Array, middle: float, compiles: list[int] | None) -> list[tuple[int, Event]]:
    """Steps far above the level that they belong to, by index."""
    q1, q3 = np.percentile(values, [25, 75])
    limit = max(_STALL_RATIO * middle, q3 + _STALL_QUARTILES * (q3 - q1))
    cause = _UNSEEN if compiles is None else "not known: nothing was compiled or loaded in it"
    return [
        (i, Event(kind="stall", step=0, seconds=float(value) - middle, ratio=float(value) / middle, cause=cause))
        for i, value in enumerate(values)
        if middle and value > limit
    ]


def steady(seconds: list[float], compiles: list[int] | None, lasting: float, least: int) -> Steady:
    """Find the steady state of one series.

    Steps in which something was compiled or loaded are events and are not steady. Of the rest, the steady state is what
    follows the last lasting change; single stalls stay in it, because they are part of what a step costs, and a median
    does not mind them.

    Args:
        seconds: of each step, in order.
        compiles: programs compiled or loaded in each step; None where that cannot be seen.
        lasting: share of the level by which a change is worth an event.
        least: steps that a steady state has.
    """
    values = np.asarray(seconds, dtype=np.float64)
    late = [i for i, count in enumerate(compiles or []) if count]
    kept = np.asarray([i for i in range(len(values)) if i not in late], dtype=np.int64)
    if late and len(kept) < least:
        reason = f"{len(late)} of {len(values)} steps compiled or loaded a program, so none is steady"
        return Steady(steps=list(range(1, len(values) + 1)), events=[], reason=reason)
    quiet = values[kept]
    levels, reason, events = _levels(quiet, lasting), "", []
    drift = _drift(quiet, levels) if len(levels) > 1 else None
    if drift is not None:
        total, start = drift
        levels = [(0, len(quiet))]
        reason = f"the step time drifts by {total / start:+.0%} over the series, so there is no steady state"
        events.append(Event(kind="drift", step=1, seconds=total, ratio=1 + total / start, cause="not known"))
    medians = [float(np.median(quiet[a:b])) for a, b in levels]
    for (before, after), (begin, _) in zip(pairwise(medians), levels[1:]):
        step, ratio = int(kept[begin]) + 1, after / before if before else 0.0
        cause = _cause(compiles, step)
        events.append(Event(kind="lasting change", step=step, seconds=after - before, ratio=ratio, cause=cause))
    for (begin, end), middle in zip(levels, medians):
        for i, event in _stalls(quiet[begin:end], middle, compiles):
            events.append(event.model_copy(update={"step": int(kept[begin + i]) + 1}))
    for i in late:
        level = next((m for (_, end), m in zip(levels, medians) if kept[end - 1] > i), medians[-1])
        extra, ratio = float(values[i]) - level, float(values[i]) / level if level else 0.0
        cause = f"{(compiles or [])[i]} programs were compiled or loaded in it"
        events.append(Event(kind="late compile", step=i + 1, seconds=extra, ratio=ratio, cause=cause))
    begin, end = levels[-1]
    steps = [int(i) + 1 for i in kept[begin:end]]
    return Steady(steps=steps, events=sorted(events, key=lambda e: e.step), reason=reason)
