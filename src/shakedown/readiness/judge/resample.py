"""Intervals of medians by drawing again: processes first, then steps within each (the hierarchical bootstrap).

Steps of one process share its memory layout, its caches and its minute of the machine, so an interval from the steps alone
is far too narrow. The statistic is the median over processes of each process's median: one slow process, or one with more
steps, does not decide it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from ..requirements import Resampling

Array = np.ndarray
_SEED = 2026  # a judgement is a function of the evidence: verifying it draws the same samples


class Interval(BaseModel):
    """Where a median lies. ``coverage`` is the least of what was asked for and of what so many processes can give: no
    interval that ends at the smallest and the largest of n values covers their median more often than 1 - 2^(1-n).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    low: float
    high: float
    coverage: float


def generator() -> np.random.Generator:
    """The source of all draws of one interval."""
    return np.random.default_rng(_SEED)


def coverage(processes: int, demand: Resampling) -> float:
    """Share of intervals that can be expected to cover the median, with so many processes."""
    return min(demand.confidence, 1 - 2.0 ** (1 - processes))


def interval(draws: Array, processes: int, demand: Resampling) -> Interval | None:
    """The middle of `draws`. None for one process: it says nothing about the next one."""
    if processes < 2:
        return None
    tail = (1 - demand.confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval(low=float(low), high=float(high), coverage=coverage(processes, demand))


def _again(values: Array, rows: int, random: np.random.Generator) -> Array:
    """The median of `values` drawn again, `rows` times."""
    return np.median(values[random.integers(0, len(values), (rows, len(values)))], axis=1)


def _over_processes(count: int, draws: int, random: np.random.Generator, of: Callable[[int, int], Array]) -> Array:
    """The median over `count` drawn processes of ``of(process, rows)``, `draws` times."""
    chosen = random.integers(0, count, (draws, count))
    values = np.empty((draws, count))
    for process in range(count):
        where = chosen == process
        values[where] = of(process, int(where.sum()))
    return np.median(values, axis=1)


def medians(processes: Sequence[Array], draws: int, random: np.random.Generator) -> Array:
    """Draws of the median of the processes' medians, from the steps of each."""
    return _over_processes(len(processes), draws, random, lambda p, rows: _again(processes[p], rows, random))


def ratios(
    one: Sequence[Array], other: Sequence[Array], paired: bool, draws: int, random: np.random.Generator
) -> Array:
    """Draws of the ratio of `one`'s step time to `other`'s; see :func:`_between`."""
    return _between(one, other, paired, draws, random, np.divide)


def differences(
    one: Sequence[Array], other: Sequence[Array], paired: bool, draws: int, random: np.random.Generator
) -> Array:
    """Draws of `one`'s step time less `other`'s, in their unit; see :func:`_between`."""
    return _between(one, other, paired, draws, random, np.subtract)


def _between(
    one: Sequence[Array],
    other: Sequence[Array],
    paired: bool,
    draws: int,
    random: np.random.Generator,
    compare: Callable[[Array, Array], Array],
) -> Array:
    """Draws of what `compare` makes of two sides.

    Paired: the i-th processes ran next to each other, are drawn together, and the median is taken of what each pair gives, so
    that whatever slowed both is not in it. Otherwise each side is drawn by itself.
    """
    if not paired:
        return compare(medians(one, draws, random), medians(other, draws, random))

    def of(p: int, rows: int) -> Array:
        return compare(_again(one[p], rows, random), _again(other[p], rows, random))

    return _over_processes(len(one), draws, random, of)


def middle(processes: Sequence[Array]) -> float:
    """The median of the processes' medians."""
    return float(np.median([float(np.median(p)) for p in processes]))
