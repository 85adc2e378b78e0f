"""What a step costs on average once its share of setting up is added: the curve that says when a slow start is paid for.

Over n steps, the average is ``(setup + (n - 1) * step) / n``: `setup` ends with the first step, the others are steady. A
curve is drawn from resamples of both, so it carries an interval, and two curves can be set against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from ..requirements import Resampling
from . import resample

COUNTS = (1, 10, 100, 1_000, 10_000, 100_000)
_NEGLIGIBLE = 0.01  # share of set-up in the whole under which it may vary as it likes
State = Literal["cold", "warm", "none"]


class Point(BaseModel):
    """The average over ``steps`` steps, or the ratio of two such averages. No interval: something was seen only once."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    steps: int
    value: float
    low: float | None
    high: float | None
    coverage: float | None


class Curve(BaseModel):
    """Seconds per step after a start with a cold or warm cache (none: the target keeps none). ``over_cpu``: the ratio to
    the same number of steps on the CPU, its own set-up included.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    cache: State
    setup: float
    setup_processes: int
    step: float
    step_processes: int
    points: list[Point]
    over_cpu: list[Point]
    note: str = ""


@dataclass(frozen=True)
class Side:
    """Seconds of the two parts: setup of each process (start-up and first step), steady steps of each process."""

    cache: State
    setups: Sequence[float]
    steps: Sequence[np.ndarray]


def average(setup: Any, step: Any, count: int) -> Any:
    """Seconds per step over `count` steps; for numbers and for arrays of draws."""
    return (setup + (count - 1) * step) / count


def _draws(side: Side, demand: Resampling, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Resamples of setup and of step, independent of each other."""
    return setups(side.setups, demand.draws, random), resample.medians(side.steps, demand.draws, random)


def setups(seconds: Sequence[float], draws: int, random: np.random.Generator) -> np.ndarray:
    """Draws of the median set-up over processes."""
    values = np.asarray(seconds, dtype=np.float64)
    return np.asarray(np.median(values[random.integers(0, len(values), (draws, len(values)))], axis=1))


def counts(training_steps: int) -> list[int]:
    """The numbers of steps that a curve has points at."""
    return sorted({*COUNTS, training_steps})


def curve(side: Side, cpu: Side | None, training_steps: int, demand: Resampling) -> Curve:
    """Average seconds per step of `side`, and its ratio to that of `cpu` where there is one."""
    random = resample.generator()
    setup, step = float(np.median(side.setups)), resample.middle(side.steps)
    mine = _draws(side, demand, random)
    theirs = _draws(cpu, demand, random) if cpu is not None else None
    points, over = [], []
    for count in counts(training_steps):
        value, drawn = average(setup, step, count), average(*mine, count)
        rests_on = _processes(side, setup / (value * count))
        points.append(_point(count, value, drawn, rests_on, demand))
        if cpu is not None and theirs is not None:
            first = float(np.median(cpu.setups))
            base = average(first, resample.middle(cpu.steps), count)
            fewest = min(rests_on, _processes(cpu, first / (base * count)))
            over.append(_point(count, value / base, drawn / average(*theirs, count), fewest, demand))
    note = ""
    if len(side.setups) < 2:
        note = f"set-up was seen once, so there is an interval only where it is under {_NEGLIGIBLE:.0%} of the whole"
    return Curve(
        cache=side.cache,
        setup=setup,
        setup_processes=len(side.setups),
        step=step,
        step_processes=len(side.steps),
        points=points,
        over_cpu=over,
        note=note,
    )


def _processes(side: Side, share: float) -> int:
    """Processes that an interval rests on, where set-up is this `share` of the whole."""
    return len(side.steps) if share < _NEGLIGIBLE else min(len(side.setups), len(side.steps))


def _point(count: int, value: Any, drawn: Any, processes: int, demand: Resampling) -> Point:
    found = resample.interval(np.asarray(drawn), processes, demand)
    low, high, covers = (found.low, found.high, found.coverage) if found else (None, None, None)
    return Point(steps=count, value=float(value), low=low, high=high, coverage=covers)
