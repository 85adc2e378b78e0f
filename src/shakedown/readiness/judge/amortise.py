"""What a step costs on average once its share of setting up is added: the curve that says when a slow start is paid for.

Over n steps, the average is ``(setup + (n - 1) * step) / n``: `setup` ends with the first step, the others are steady. A
curve is drawn from resamples of both, so it carries an interval, and two curves can be set against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from ..requirements import Resampling
from . import resample

COUNTS = (1, 10, 100, 1_000, 10_000, 100_000)
State = Literal["cold", "warm", "none"]


class Point(BaseModel):
    """The average over ``steps`` steps, or the ratio of two such averages. No interval: one process only."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    steps: int
    value: float
    low: float | None
    high: float | None


class Curve(BaseModel):
    """Seconds per step for a start with a cold or warm cache. ``note`` says what the interval does not contain."""

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

    @property
    def processes(self) -> int:
        """Processes that the interval rests on."""
        return len(self.steps)


def average(setup: float | np.ndarray, step: float | np.ndarray, count: int) -> float | np.ndarray:
    """Seconds per step over `count` steps."""
    return (setup + (count - 1) * step) / count


def _draws(side: Side, demand: Resampling, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Resamples of setup and of step, independent of each other."""
    setups = np.asarray(side.setups, dtype=np.float64)
    drawn = np.median(setups[random.integers(0, len(setups), (demand.draws, len(setups)))], axis=1)
    return drawn, resample.medians(side.steps, demand.draws, random)


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
        drawn = average(*mine, count)
        points.append(_point(count, average(setup, step, count), drawn, side.processes, demand))
        if cpu is not None and theirs is not None:
            base = average(float(np.median(cpu.setups)), resample.middle(cpu.steps), count)
            fewest = min(side.processes, cpu.processes)
            value = average(setup, step, count) / base
            over.append(_point(count, value, drawn / average(*theirs, count), fewest, demand))
    note = ""
    if len(side.setups) < 2:
        note = "set-up was seen in one process, so the interval contains the variation of steps only"
    return Curve(
        cache=side.cache,
        setup=setup,
        setup_processes=len(side.setups),
        step=step,
        step_processes=side.processes,
        points=points,
        over_cpu=over,
        note=note,
    )


def _point(
    count: int, value: float | np.ndarray, drawn: float | np.ndarray, processes: int, demand: Resampling
) -> Point:
    found = resample.interval(np.asarray(drawn), processes, demand)
    return Point(
        steps=count,
        value=float(value),
        low=found.low if found else None,
        high=found.high if found else None,
    )
