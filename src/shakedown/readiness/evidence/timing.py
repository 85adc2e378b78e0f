"""What starting and steps cost, and whether the clock can be trusted."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .files import Frozen

# Steps of one series, at most: finding its steady state takes memory with the square of them, and a record may be anybody's.
LONGEST_SERIES = 5_000


class StepSeries(Frozen):
    """Seconds of each timed step, in order, completion awaited once per step; the least disturbed of so many attempts.

    ``foreign_cores`` is the number of cores that other processes kept busy meanwhile, None where that cannot be read.
    ``started`` is when the first step began, in seconds since 1970: it tells whether two sides took turns.
    ``dispatched`` are the seconds after which the step's calls had returned, before anything was awaited. ``compiles`` are
    the programs compiled or loaded in each step. None: not measured.
    """

    seconds: list[float] = Field(max_length=LONGEST_SERIES)
    compiles_during: int | None
    foreign_cores: float | None
    attempts: int
    started: float | None = None
    dispatched: list[float] | None = None
    compiles: list[int] | None = None


class Timings(Frozen):
    """Seconds per phase of the first step (each phase awaited), the later steps, and phases of a few later ones."""

    first_step: dict[str, float]
    first_step_foreign_cores: float | None
    later: StepSeries
    later_phases: dict[str, list[float]]


class Training(Frozen):
    """Loss on the first batch before training, and after so many steps (None: not finite)."""

    steps: int
    first_loss: float | None
    last_loss: float | None


class Startup(Frozen):
    """Seconds from starting the process to a restored workload on the device."""

    launch: float
    import_torch: float
    device_init: float
    restore: float
    optimizer: float


class SelfTest(Frozen):
    """Can this target's clock be trusted? ``ratio`` is time of 2N calls over twice the time of N calls.

    ``dispatch_seconds`` is what one call took to return, ``call_seconds`` what it took to be complete, reading a result
    afterwards included, so that it is right even where the wait is not.
    """

    passed: bool
    ratio: float
    read_back_share: float
    calls: int
    tries: int
    reason: str = ""
    dispatch_seconds: float | None = None
    call_seconds: float | None = None


class CacheState(Frozen):
    """The experiment's own cache directory, as the worker found it before importing torch."""

    state: Literal["cold", "warm", "none"]
    files_before: int
    bytes_before: int
    note: str = ""
