"""The gap between the losses of two runs, as a series: aligned, in windows, its growth, its jumps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..evidence.losses import Losses, LossEvent
from . import series as changes

Array = np.ndarray
NEAR = 2  # steps between what a run told of and the first loss that can show it
_BESIDE = 5  # steps on each side of a jump
_JUMP = (
    10.0  # factor within so few steps from which growth is an event: the fastest chaos seen needed twenty steps for it
)
_BEGINNING = 10
_LONG = 400  # a longer series is thinned before it is asked whether it has a change point


@dataclass(frozen=True)
class Aligned:
    """Losses of all runs at the steps that all of them have. Gaps are distances to the reference, signed.

    ``ends`` is the index at which a loss of the CPU is not finite, ``broken`` the same of the candidate. ``differs`` tells
    where the candidate's loss is not the reference's, not finite ones by their word.
    """

    steps: list[int]
    reference: Array
    gap: Array
    twins: Array
    low: Array | None
    repeat: Array | None
    differs: Array
    ends: int | None
    broken: int | None
    resolution: float
    told: list[LossEvent]
    notes: list[str]

    @property
    def identical(self) -> bool:
        """Every loss of the candidate is the reference's, and there is one."""
        return bool(self.steps) and not self.differs.any()

    def until(self, end: int) -> Aligned:
        """The part before index `end`."""
        return replace(
            self,
            steps=self.steps[:end],
            reference=self.reference[:end],
            gap=self.gap[:end],
            twins=self.twins[:, :end],
            low=None if self.low is None else self.low[:end],
            repeat=None if self.repeat is None else self.repeat[:end],
            differs=self.differs[:end],
        )


def align(
    reference: Losses, twins: Sequence[Losses], candidate: Losses, low: Losses | None, repeat: Losses | None
) -> Aligned:
    """Put the runs beside each other, step by step."""
    notes: list[str] = []
    runs = [reference, candidate, *twins]
    common = set(reference.steps).intersection(*(run.steps for run in runs))
    steps = sorted(common)
    longest = max(len(set(run.steps)) for run in runs)
    if longest > len(steps):
        notes.append(f"{len(steps)} of {longest} steps are in all runs; the others are not compared")
    optional: dict[str, Array | None] = {}
    base = _values(reference, steps)
    for name, run in (("low-precision run", low), ("repeated reference", repeat)):
        optional[name] = None
        if run is None:
            continue
        if not common <= set(run.steps):
            notes.append(f"the {name} is not used: it has not all of the steps")
            continue
        gap = _values(run, steps) - base
        if run is repeat and not _differ(run, reference, steps).any():
            continue
        if not np.isfinite(gap[np.isfinite(base)]).all():
            notes.append(f"the {name} is not used: its losses are not finite")
            continue
        optional[name] = gap
        if run is repeat:
            first = steps[int(np.flatnonzero(gap)[0])] if gap.any() else steps[0]
            notes.append(
                f"the reference does not repeat itself (from step {first} on), and its spread belongs to the floor"
            )
    own = _values(candidate, steps)
    nudged = np.array([_values(twin, steps) for twin in twins])
    finite = np.isfinite(base) & np.isfinite(nudged).all(axis=0)
    unmoved = [twin.name for twin in twins if steps and not _differ(twin, reference, steps).any()]
    if len(unmoved) == len(twins) and steps:
        notes.append("no twin differs from the reference anywhere: the nudge had no effect on the losses as written")
    resolution = max(run.resolution for run in runs)
    if resolution:
        notes.append(f"the losses were written in steps of {resolution:g}; smaller differences are not seen")
    with np.errstate(invalid="ignore"):
        return Aligned(
            steps=steps,
            reference=base,
            gap=own - base,
            twins=nudged - base,
            low=optional["low-precision run"],
            repeat=optional["repeated reference"],
            differs=_differ(candidate, reference, steps),
            ends=_first(~finite),
            broken=_first(~np.isfinite(own)),
            resolution=resolution,
            told=_told(reference, candidate),
            notes=notes,
        )


def _values(run: Losses, steps: list[int]) -> Array:
    held = dict(zip(run.steps, run.losses, strict=True))
    words = {step: float(word) for step, word in run.not_finite.items()}
    return np.array([words.get(s, np.nan) if held[s] is None else held[s] for s in steps], dtype=np.float64)


def _differ(one: Losses, other: Losses, steps: list[int]) -> Array:
    return ~np.array(_values(one, steps) == _values(other, steps)) & ~(
        np.isnan(_values(one, steps)) & np.isnan(_values(other, steps))
    )


def _first(where: Array) -> int | None:
    found = np.flatnonzero(where)
    return int(found[0]) if len(found) else None


def _told(reference: Losses, candidate: Losses) -> list[LossEvent]:
    """What either run told of, once."""
    return list({(e.step, e.kind): e for run in (reference, candidate) for e in run.events}.values())


def windows(n: int, length: int) -> list[tuple[int, int]]:
    """Bounds (first, end) of windows of `length` steps or more; what is left over belongs to the last one."""
    count = max(n // length, 1)
    return [(i * length, (i + 1) * length if i + 1 < count else n) for i in range(count)]


def _logarithm(gap: Array, floor: Array) -> Array:
    return np.asarray(np.log(np.maximum(np.abs(gap), floor)))


def _blocks(n: int, points: int) -> list[Array]:
    return [block for block in np.array_split(np.arange(n), min(n, points)) if len(block)]


def growth(gap: Array, floor: Array, points: int) -> float:
    """The factor by which |gap| grows over the series, on a line through its logarithm by Theil and Sen; gaps below the
    floor count as the floor, so that a gap of rounding noise is flat.
    """
    logs = _logarithm(gap, floor)
    blocks = _blocks(len(logs), points)
    x, y = np.array([block.mean() for block in blocks]), np.array([np.median(logs[block]) for block in blocks])
    i, j = np.triu_indices(len(x), 1)
    slope = float(np.median((y[j] - y[i]) / (x[j] - x[i])))
    return float(np.exp(min(slope * (len(logs) - 1), 700.0)))


def outside(s: Aligned, floor: Array, allowed: float) -> int | None:
    """The first index at which the gap is further out than `allowed` times the largest twin of that step and of the two on
    either side: a twin's gap passes through zero now and then.
    """
    largest = np.maximum(np.abs(s.twins).max(axis=0), floor)
    padded = np.pad(largest, 2, mode="edge")
    around = np.max([padded[i : i + len(largest)] for i in range(5)], axis=0)
    return _first(np.abs(s.gap) > allowed * around)


@dataclass(frozen=True)
class Jump:
    """The gap is `factor` times larger from `index` on, over a few steps on each side. ``lasting``: it stays outside, as far
    as a window reaches.
    """

    index: int
    factor: float
    lasting: bool


def jump(s: Aligned, floor: Array, allowed: float, left: int | None, window: int) -> Jump | None:
    """The step at which the gap jumps out of the twins' envelope: tenfold within a few steps, and above the envelope
    afterwards. Looked for where a run told of something, and where the series rises most, if it has a change point at all.
    `left` is the index at which it was first outside: where that is near, it is the better place, since a median moves late.
    """
    logs = _logarithm(s.gap, floor)
    n = len(logs)
    if n < _BEGINNING + _BESIDE:
        return None
    levels = np.median(np.lib.stride_tricks.sliding_window_view(logs, _BESIDE), axis=1)
    rises = levels[_BESIDE:] - levels[:-_BESIDE]  # of the steps from index i + _BESIDE on, against those before
    places = [np.arange(max(i - NEAR, _BESIDE), min(i + NEAR, n - _BESIDE) + 1) for i in _told_at(s)]
    if changes.change_points(np.array([np.median(logs[block]) for block in _blocks(n, _LONG)])):
        # What is wrong from the first step on shows within a few steps, and that is no event.
        places.append(np.arange(_BEGINNING, n - _BESIDE + 1))
    found: list[Jump] = []
    for place in places:
        if not len(place):
            continue
        k = int(place[rises[place - _BESIDE].argmax()])
        rise = float(rises[k - _BESIDE])
        if left is not None and left >= _BESIDE and abs(left - k) <= _BESIDE:
            k = left
        if rise >= np.log(_JUMP) and _above(s, floor, allowed, slice(k, k + _BESIDE)):
            found.append(Jump(k, float(np.exp(rise)), _above(s, floor, allowed, slice(k, k + window))))
    return max(found, key=lambda j: j.factor, default=None)


def _above(s: Aligned, floor: Array, allowed: float, part: slice) -> bool:
    """Whether the gap of these steps lies above what twins and precision explain, in the median."""
    around = [*s.twins, *([] if s.low is None else [s.low])]
    envelope = max(*(np.median(np.abs(gap[part])) for gap in around), np.median(floor[part]))
    return bool(np.median(np.abs(s.gap[part])) > allowed * envelope)


def _told_at(s: Aligned) -> list[int]:
    return [s.steps.index(e.step) for e in s.told if e.step in s.steps]
