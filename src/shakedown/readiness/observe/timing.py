"""Clocks: steps and their phases, a proof that waiting works, and how busy other processes kept the machine."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from .. import targets
from ..errors import TimerError
from ..evidence import SelfTest, StepSeries
from ..requirements import Timing

_PROC = Path("/proc")
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


def completion(target: targets.Target) -> Callable[[], None]:
    """What returns when all work queued on `target` is complete, tried once.

    Raises:
        TimerError: the target works asynchronously and its package has nothing to wait with. That ends the process: every
            time it took would be the time of a call, which can be short by any factor.
    """

    def wait() -> None:
        targets.wait(target)

    try:
        wait()
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[0]
        raise TimerError(
            f"untested(timing): the target {target.name} has no usable way to wait for its work "
            f"({type(error).__name__}: {said})"
        ) from error
    return wait


def step_series(
    step: Callable[[int], object],
    wait: Callable[[], None],
    compiles: Callable[[], int | None],
    demand: Timing,
    attempts: int = 1,
) -> StepSeries:
    """Time whole steps: as many as declared, or as fit into the declared time, but no fewer than the least.

    `step` does step number 0, 1, ... of the series; `compiles` counts programs so far and is asked between two steps,
    outside their time, or gives None.
    """
    wait()
    foreign, started = ForeignLoad(), time.time()
    seconds: list[float] = []
    dispatched: list[float] = []
    counts = [compiles()]
    while len(seconds) < demand.steps:
        if len(seconds) >= demand.least_steps and sum(seconds) > demand.seconds_per_case:
            break
        start = time.perf_counter()
        step(len(seconds))
        returned = time.perf_counter()
        wait()
        seconds.append(time.perf_counter() - start)
        dispatched.append(returned - start)
        counts.append(compiles())
    known = [count for count in counts if count is not None]
    each = [after - before for before, after in itertools.pairwise(known)] if len(known) == len(counts) else None
    return StepSeries(
        seconds=seconds,
        compiles_during=None if each is None else sum(each),
        foreign_cores=foreign.cores(),
        attempts=attempts,
        started=started,
        dispatched=dispatched,
        compiles=each,
    )


def quietest_series(
    step: Callable[[int], object], wait: Callable[[], None], compiles: Callable[[], int | None], demand: Timing
) -> StepSeries:
    """:func:`step_series`, taken again while strangers keep the machine busy. The least disturbed one stays, and says how
    many there were: which one stays is decided by the strangers' load alone, never by the times.
    """
    best = step_series(step, wait, compiles, demand)
    spent = sum(best.seconds)
    while best.foreign_cores is not None and best.foreign_cores > demand.refuse_foreign_load:
        if best.attempts == demand.attempts or spent > demand.seconds_per_case:
            break
        again = step_series(step, wait, compiles, demand, best.attempts + 1)
        spent += sum(again.seconds)
        less = again.foreign_cores is not None and again.foreign_cores < best.foreign_cores
        best = again if less else best.model_copy(update={"attempts": again.attempts})
    return best


def self_test(
    call: Callable[[], None], wait: Callable[[], None], read: Callable[[], object], calls: int, tolerance: float
) -> SelfTest:
    """Can the end of work on this device be timed?

    `call` queues a fixed piece of work, `wait` should return when all of it is complete, `read` fetches a value of the
    last call. Two things must hold. N and 2N calls take time in the ratio of one to two, within `tolerance`. And
    reading afterwards takes next to no time: where `wait` does not wait, the work is still going on and the read pays
    for it. Least times of several tries are compared, since other processes only ever add time; a clock that
    lies does so in every try. Of the shares that reading takes the median is taken: work that goes on unwaited for can end
    while this process does not get the processor, so that the least of them shows nothing.
    """

    returned: list[float] = []

    def timed(count: int) -> tuple[float, float]:
        start = time.perf_counter()
        for _ in range(count):
            call()
        returned.append((time.perf_counter() - start) / count)
        wait()
        middle = time.perf_counter()
        read()
        return middle - start, time.perf_counter() - middle

    timed(calls)
    returned.clear()
    once: list[float] = []
    twice: list[float] = []
    reads: list[float] = []
    complete: list[float] = []
    ratio = share = float("inf")
    passed = False
    for tries in _TRIES:
        while len(once) < tries:
            for count, series in ((calls, once), (2 * calls, twice)):
                seconds, read_back = timed(count)
                series.append(seconds)
                reads.append(read_back / (seconds + read_back))
                complete.append((seconds + read_back) / count)
        ratio, share = min(twice) / (2 * min(once)), median(reads)
        passed = abs(ratio - 1) <= tolerance and share <= tolerance
        if passed:
            break
    reason = ""
    if share > tolerance:
        reason = f"reading a result after waiting took {share:.0%} of the time, so the wait does not wait"
    elif not passed:
        reason = f"twice the calls took {2 * ratio:.2f} times as long, not 2 within {tolerance:.0%}"
    return SelfTest(
        passed=passed,
        ratio=ratio,
        read_back_share=share,
        calls=calls,
        tries=len(once),
        reason=reason,
        dispatch_seconds=min(returned),
        call_seconds=min(complete),
    )


def _processor_seconds_of_own() -> float:
    """Processor time used by this process and all below it, such as one that compiles for it, so far."""
    below: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile; its time is in its parent's once that has waited for it
        pid = int(entry.name)
        below.setdefault(int(fields[1]), []).append(pid)
        used[pid] = sum(int(f) for f in fields[11:15]) / _TICKS  # user and system: its own, and of children that ended
    own = [os.getpid()]
    for pid in own:
        own += below.get(pid, [])
    return sum(used.get(pid, 0.0) for pid in own)


class ForeignLoad:
    """Cores' worth of processor time that other processes used, from /proc; None where that does not exist. Children of
    this process are its own: adaptive eager has a process that compiles.
    """

    def __init__(self) -> None:
        self._start = self._read()

    @staticmethod
    def _read() -> tuple[float, float, float] | None:
        try:
            fields = [int(x) for x in (_PROC / "stat").read_text().splitlines()[0].split()[1:]]
            own = _processor_seconds_of_own()
        except (OSError, ValueError, IndexError):
            return None
        busy = sum(fields[:3]) + sum(fields[5:8])  # user, nice, system; irq, softirq, steal; guest time is within user
        return busy / _TICKS, own, time.perf_counter()

    def cores(self) -> float | None:
        """Average number of cores that others used since this object was made."""
        now = self._read()
        if now is None or self._start is None or now[2] - self._start[2] < 0.05:
            return None
        busy, own, wall = (after - before for after, before in zip(now, self._start))
        return max(0.0, (busy - own) / wall)
