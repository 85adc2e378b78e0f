"""What is measured besides numbers, as values that a record holds: pooled step times and memory."""

from __future__ import annotations

from typing import Literal

from ..evidence import Frozen
from ..evidence.memory import Meter
from .amortise import Curve
from .resample import Interval
from .series import Event


class Start(Frozen):
    """Seconds to the end of the first step, one value a process, where this case was the first of its process.

    ``start_up`` is from starting the process to the workload on the device. ``proved``: the cache was in the state that was
    claimed, by ``proof``.
    """

    cache: Literal["cold", "warm", "none"]
    start_up: list[float]
    first_step: list[float]
    proved: bool
    proof: str

    @property
    def setups(self) -> list[float]:
        """Start-up and first step together."""
        return [a + b for a, b in zip(self.start_up, self.first_step)]


class Throughput(Frozen):
    """Per second, from the median step and its interval, each step awaited: what overlapping steps could gain is not in
    it. ``positions`` are batch x length: tokens of a text; of images, whose length is a side, they mean nothing.
    """

    items: float
    items_low: float | None
    items_high: float | None
    positions: float


class Happened(Frozen):
    """An event, in one process."""

    cell: str
    event: Event


class Ratio(Frozen):
    """Step time over another side's, under 1 being faster. ``claim`` says what may be said; ``why`` nothing may be."""

    over: str
    value: float | None
    interval: Interval | None
    processes: int
    paired: bool
    claim: Literal["faster", "slower", "none"]
    why: str


class PooledTiming(Frozen):
    """What a step costs in one mode, precision and case. All times are seconds.

    ``median`` is the median of the processes' medians, ``interval`` that of the hierarchical bootstrap; quartiles and
    percentiles are over all steady steps, ``spread`` is the typical process's quartile distance over its median, ``between``
    the distance of the slowest process from the fastest over the median. ``dispatch`` is when the calls had returned.
    """

    mode: str
    dtype: str
    case: str
    kind: Literal["measured", "rehearsal"]
    boundary: str
    launched: int
    finished: int
    used: int
    ended: dict[str, str]
    left_out: dict[str, str]
    dropped_attempts: int
    n: int
    median: float | None
    interval: Interval | None
    q1: float | None
    q3: float | None
    percentiles: dict[str, float]
    spread: float | None
    between: float | None
    dispatch: float | None
    phases: dict[str, float]
    throughput: Throughput | None
    starts: list[Start]
    curves: list[Curve]
    ratios: list[Ratio]
    events: list[Happened]
    warnings: list[str]
    withheld: str = ""


class MemorySummary(Frozen):
    """Bytes of one case in one process. ``device`` is of the step alone, ``device_overlapped`` with the next batch there
    already, ``overlap`` what that adds; ``kept`` is what the step left behind on the device. None: not known.
    """

    cell: str
    case: str
    host_meter: Meter
    device_meter: Meter
    host: int | None
    device: int | None
    device_overlapped: int | None
    overlap: int | None
    kept: int | None
