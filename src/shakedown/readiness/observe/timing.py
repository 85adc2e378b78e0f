"""Clocks: phases of a step, a proof that waiting works, and how busy other processes kept the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..evidence import SelfTest

_TRIES = (5, 15, 45)
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Stopwatch:
    """Seconds per named phase, each closed by `wait`."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what happens inside, until its work is complete on the device."""
        start = time.perf_counter()
        yield
        self._wait()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def self_test(
    call: Callable[[], None], wait: Callable[[], None], read: Callable[[], object], calls: int, tolerance: float
) -> SelfTest:
    """Can the end of work on this device be timed?

    `call` queues a fixed piece of work, `wait` should return when all of it is complete, `read` fetches a value of the
    last call. Two things must hold. N and 2N calls take time in the ratio of one to two, within `tolerance`. And
    reading afterwards takes next to no time: where `wait` does not wait, the work is still going on and the read pays
    for it. Least times of several tries are compared, since other processes only ever add time; a clock that
    lies does so in every try.
    """

    def timed(count: int) -> tuple[float, float]:
        start = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        middle = time.perf_counter()
        read()
        return middle - start, time.perf_counter() - middle

    timed(calls)
    once: list[float] = []
    twice: list[float] = []
    reads: list[float] = []
    ratio = share = float("inf")
    for tries in _TRIES:
        while len(once) < tries:
            for count, series in ((calls, once), (2 * calls, twice)):
                seconds, read_back = timed(count)
                series.append(seconds)
                reads.append(read_back / (seconds + read_back))
        ratio, share = min(twice) / (2 * min(once)), min(reads)
        if abs(ratio - 1) <= tolerance and share <= tolerance:
            return SelfTest(passed=True, ratio=ratio, read_back_share=share, calls=calls, tries=len(once))
    if share > tolerance:
        reason = f"reading a result after waiting took {share:.0%} of the time, so the wait does not wait"
    else:
        reason = f"twice the calls took {2 * ratio:.2f} times as long, not 2 within {tolerance:.0%}"
    return SelfTest(passed=False, ratio=ratio, read_back_share=share, calls=calls, tries=len(once), reason=reason)


class ForeignLoad:
    """Cores' worth of processor time that other processes used, from /proc/stat; None where that does not exist."""

    def __init__(self) -> None:
        self._start = self._read()

    @staticmethod
    def _read() -> tuple[float, float, float] | None:
        try:
            fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        except (OSError, ValueError, IndexError):
            return None
        busy = sum(fields[:3]) + sum(fields[5:8])  # user, nice, system; irq, softirq, steal; guest time is within user
        return busy / _TICKS, sum(os.times()[:2]), time.perf_counter()

    def cores(self) -> float | None:
        """Average number of cores that others used since this object was made."""
        now = self._read()
        if now is None or self._start is None or now[2] - self._start[2] < 0.05:
            return None
        busy, own, wall = (after - before for after, before in zip(now, self._start))
        return max(0.0, (busy - own) / wall)
