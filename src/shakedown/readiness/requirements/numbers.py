"""The numbers of the trial: gates on tensors, how steps are timed, limits on processes. Each has a default and a reason."""

from __future__ import annotations

from pydantic import Field

from ..evidence import Frozen


class Criterion(Frozen):
    """Elementwise criterion |device - truth| <= absolute + relative * |truth|. Reported beside the gates; it decides
    only where its owner says so.
    """

    absolute: float = Field(ge=0)
    relative: float = Field(ge=0)
    decides: bool = False
    allowed_share: float = Field(default=0.0, ge=0, le=1)  # of elements outside, where the criterion decides
    reason: str = ""


class Numerics(Frozen):
    """Gates on the difference between a device and the float64 truth; see docs/trial.md."""

    steps: int = Field(
        default=3,
        ge=1,
        le=20,
        description="Training steps whose tensors are kept; 1 and this one are judged. Three is the first count at "
        "which a lost optimizer state, a wrong bias correction and a forgotten decay have all had an effect.",
    )
    rounding_factor: float = Field(
        default=4.0,
        gt=0,
        description="c in the gate c*sqrt(K)*u. Rounding errors of K terms grow like sqrt(K)*u; a correct plain "
        "sequential sum was measured at 4.4 times the error of a blocked one, so a smaller factor rejects correct "
        "devices.",
    )
    reference_factor: float = Field(
        default=4.0,
        gt=0,
        description="A device may be this many times as far from truth as the CPU is at the same precision: what a "
        "deep network does to rounding errors is measured on the CPU instead of guessed.",
    )
    row_factor: float = Field(
        default=10.0,
        gt=0,
        description="One row may be this many times worse than the whole tensor is allowed to be. A zeroed row hides "
        "in a tensor's norm (cosine 0.998) but is 100 % wrong in its own.",
    )
    floor_share: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Values whose size is under this share of their peers' RMS are judged on the absolute scale of "
        "that share: a gradient that is exactly zero on paper (a key bias under softmax) has only rounding noise to "
        "compare.",
    )
    update_operations: int = Field(
        default=12,
        ge=1,
        description="Roundings in a row between a gradient and its updated weight; AdamW makes about twelve. It is K "
        "in the gate on weights, which are recomputed from the device's own gradients.",
    )
    bias_sigmas: float = Field(
        default=6.0,
        gt=0,
        description="Mean signed error over its standard error above which errors count as one-sided. Elements of one "
        "tensor share causes, so the usual 3 would raise false alarms.",
    )
    material_share: float = Field(
        default=0.25,
        gt=0,
        le=1,
        description="A one-sided error or a wrong scale counts once it is this share of the gate on the whole tensor: "
        "systematic errors do not average out over a training run, random ones do.",
    )
    ulp_threshold: float = Field(
        default=16.0,
        gt=0,
        description="The report gives the share of elements further than this many ULPs of the declared dtype.",
    )
    thresholds: dict[str, float] = Field(
        default={},
        description="Outputs that the service compares with a number, by name: values that lie on the other side of it than "
        "truth are counted as flipped decisions. Outputs with several columns are decided by their largest.",
    )
    criteria: dict[str, Criterion] = Field(
        default={
            "float32": Criterion(absolute=1e-5, relative=1e-4),
            "bfloat16": Criterion(absolute=1e-2, relative=1.6e-2),
            "float16": Criterion(absolute=1e-3, relative=1e-3),
        },
        description="By precision, or by precision and class of tensor such as `float32/gradient` (output, loss, gradient, "
        "weight, buffer, state), which goes before the precision's own. The criterion that "
        "reviewers ask for first. It is reported and decides nothing, because on a 4096-term "
        "float32 sum a correct device has up to a third of its elements outside such a criterion.",
    )


class Timing(Frozen):
    """How steps are timed and when a number is withheld."""

    steps: int = Field(
        default=30,
        ge=1,
        le=5_000,  # LONGEST_SERIES in evidence/timing.py
        description="Steps timed per case and process: enough for a median and its quartiles.",
    )
    processes: int = Field(
        default=5,
        ge=1,
        description="Fresh processes that time each case, mode and precision, the sides taking turns: the step time "
        "differs more from process to process than within one, so an interval from one process is too narrow.",
    )
    seconds_per_case: float = Field(
        default=5.0,
        gt=0,
        description="A slow case stops after this many seconds of timed steps, but never below `least_steps`; it is "
        "not timed again after them.",
    )
    least_steps: int = Field(default=5, ge=1, description="Below five steps a quartile means nothing.")
    warn_spread: float = Field(
        default=0.10, gt=0, description="IQR over median above which a timing carries a warning."
    )
    refuse_spread: float = Field(default=0.25, gt=0, description="IQR over median above which no speed claim is made.")
    p90_samples: int = Field(
        default=64, ge=10, description="A 90th percentile of fewer samples is decided by a handful of them."
    )
    p99_samples: int = Field(
        default=662,
        ge=100,
        description="A 99th percentile of fewer samples is the height of a few stalls, not a property of the step.",
    )
    claim_processes: int = Field(
        default=5,
        ge=2,
        description="Processes on each side below which no speed is claimed: with n of them, chance alone puts all on one "
        "side once in 2^(n-1) times, and an interval for their median covers it at most 1 - 2^(1-n) of the time.",
    )
    lasting_change: float = Field(
        default=0.05,
        gt=0,
        description="A step time that changes for good by this share ends one steady state and begins another; smaller "
        "changes are within what memory layout and clock speed do to a process.",
    )
    between_records: float = Field(
        default=0.10,
        gt=0,
        lt=1,
        description="Two records do not take turns on the machine, so a change of step time between them is claimed only where "
        "its whole interval is further than this from none, and the CPU's own step has changed by less.",
    )
    scaling_tolerance: float = Field(
        default=0.10, gt=0, description="Timer self-test: twice the calls must take twice the time within this share."
    )
    refuse_foreign_load: float = Field(
        default=0.5,
        gt=0,
        description="Cores' worth of other processes' work above which no time is claimed: on two cores, a step of 6 ms "
        "was seen to take 600 ms beside one busy stranger.",
    )
    attempts: int = Field(
        default=3,
        ge=1,
        description="Series of steps timed, at most, until one is not disturbed by other processes; the rest are dropped "
        "and counted.",
    )
    foreign_load: float = Field(
        default=0.25,
        gt=0,
        description="Cores' worth of other processes' work during the timed steps above which a timing carries a "
        "warning: two OpenMP threads that share a core with a stranger can slow a step a hundredfold.",
    )


class Resampling(Frozen):
    """The interval of a median: processes are drawn again, then steps within them."""

    draws: int = Field(
        default=2000,
        ge=100,
        le=100_000,
        description="Resamples; 2,000 fix the ends of an interval to about 1 %.",
    )
    confidence: float = Field(
        default=0.95, gt=0.5, lt=1, description="Share of intervals that cover the truth in repeated trials."
    )


class Run(Frozen):
    """Limits on the processes of the trial."""

    timeout_seconds: float = Field(
        default=300.0,
        gt=0,
        description="One process may take this long: a hang is a result and must not stop the other cells.",
    )
    threads: int = Field(
        default=0,
        ge=0,
        description="OpenMP/BLAS threads of every process; 0 takes the cores this process may use. Fixed for all "
        "cells, because the thread count changes both the order of sums and the time they take.",
    )
