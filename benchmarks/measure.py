"""Interleaved medians, and how much of the machine somebody else was using meanwhile.

Absolute times of a shared machine mean little, so every figure is a ratio of two sides that took turns. A measurement
during which other processes used the processors is repeated, and marked noisy if it never gets quiet.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

from .processes import busy_seconds, own_seconds

T = TypeVar("T")
QUIET = 0.10  # share of one processor that others may use
ATTEMPTS = 4


@runtime_checkable
class Elsewhere(Protocol):
    """Work in another process, which keeps the time itself."""

    def seconds(self, repeats: int) -> float: ...


Work: TypeAlias = Callable[[], object] | Elsewhere


@dataclass(frozen=True)
class Side:
    """One side's time per unit of work in seconds: median and interquartile range over `n` blocks."""

    median: float
    iqr: float
    n: int


@dataclass(frozen=True)
class Comparison:
    """Two sides measured in turns. ``foreign`` is the number of processors that other processes kept busy."""

    ours: Side
    peer: Side
    ratio: float  # median over the pairs of blocks
    foreign: float

    @property
    def noisy(self) -> bool:
        return self.foreign > QUIET


def _summary(times: list[float]) -> Side:
    low, _, high = statistics.quantiles(times, n=4)
    return Side(statistics.median(times), high - low, len(times))


def seconds(work: Work, repeats: int) -> float:
    """What `repeats` calls of `work` take in all."""
    if isinstance(work, Elsewhere):
        return work.seconds(repeats)
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return time.perf_counter() - start


def _block(work: Work, repeats: int, settle: float) -> float:
    time.sleep(settle)  # a peer's threads may still be spinning for each other
    return seconds(work, repeats) / repeats


def quietest(attempt: Callable[[], T], attempts: int = ATTEMPTS) -> tuple[T, float]:
    """The result of the first quiet one of `attempts`, or else of the least noisy; how many processors others kept busy."""
    found: list[tuple[float, T]] = []
    for _ in range(attempts):
        busy, own, start = busy_seconds(), own_seconds(), time.perf_counter()
        result = attempt()
        elapsed, after = time.perf_counter() - start, busy_seconds()
        foreign = 0.0
        if busy is not None and after is not None:
            foreign = max(0.0, (after - busy) - (own_seconds() - own)) / elapsed
        found.append((foreign, result))
        if foreign <= QUIET:
            break
    foreign, result = min(found, key=lambda pair: pair[0])
    return result, foreign


def compare(
    ours: Work,
    peer: Work,
    *,
    repeats: int,
    blocks: int = 11,
    settle: float = 0.02,
    warmup: int = 3,
    attempts: int = ATTEMPTS,
) -> Comparison:
    """Time `ours` and `peer`, each call of which must return only when its work is complete, in alternating blocks."""
    for work in (ours, peer):
        seconds(work, warmup)
    pairs, foreign = quietest(
        lambda: [(_block(ours, repeats, settle), _block(peer, repeats, settle)) for _ in range(blocks)], attempts
    )
    return Comparison(
        _summary([a for a, _ in pairs]),
        _summary([b for _, b in pairs]),
        statistics.median(a / b for a, b in pairs),
        foreign,
    )
