"""Interleaved medians, and how much of the machine somebody else was using meanwhile.

Absolute times of a shared machine mean little, so every figure is a ratio of two sides that took turns. A measurement
during which other processes used the processors is repeated, and marked noisy if it never gets quiet.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Work = Callable[[], object]
QUIET = 0.10  # share of one processor that others may use
ATTEMPTS = 4


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


def _busy_seconds() -> float | None:
    """Processor seconds used by the whole machine since boot; None where the system does not tell."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    fields = [int(f) for f in stat.read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _summary(times: list[float]) -> Side:
    low, _, high = statistics.quantiles(times, n=4)
    return Side(statistics.median(times), high - low, len(times))


def _block(work: Work, repeats: int, settle: float) -> float:
    time.sleep(settle)  # a peer's threads may still be spinning for each other
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


def compare(
    ours: Work, peer: Work, *, repeats: int, blocks: int = 11, settle: float = 0.02, warmup: int = 3
) -> Comparison:
    """Time `ours` and `peer`, each call of which must return only when its work is complete, in alternating blocks."""
    for work in (ours, peer):
        for _ in range(warmup):
            work()
    best: Comparison | None = None
    for _ in range(ATTEMPTS):
        busy, own, start = _busy_seconds(), _own_seconds(), time.perf_counter()
        pairs = [(_block(ours, repeats, settle), _block(peer, repeats, settle)) for _ in range(blocks)]
        elapsed = time.perf_counter() - start
        after = _busy_seconds()
        foreign = 0.0
        if busy is not None and after is not None:
            foreign = max(0.0, (after - busy) - (_own_seconds() - own)) / elapsed
        found = Comparison(
            _summary([a for a, _ in pairs]),
            _summary([b for _, b in pairs]),
            statistics.median(a / b for a, b in pairs),
            foreign,
        )
        if best is None or found.foreign < best.foreign:
            best = found
        if not found.noisy:
            return found
    assert best is not None
    return best
