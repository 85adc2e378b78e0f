"""What judging makes of the paths of one case: phases, fallbacks with their cause, operators with their lines."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..evidence import Frozen

# Why an operator left the device. lowering missing: there is no program for it. lowering incomplete: there is, and not for
# these arguments. profile rule: the imitated release keeps it off the device. data-dependent: sizes that only the values
# know. error: the program could not be built or run. not told: the target names the operator and no reason.
Cause = Literal["lowering missing", "lowering incomplete", "profile rule", "data-dependent", "error", "not told"]
# accepted: named in the requirements and within its budget. unchecked: named, with a budget that cannot be compared with
# anything, because calls or bytes are not known.
Acceptance = Literal["accepted", "over budget", "unchecked", "not accepted"]


class PhaseSummary(Frozen):
    """Operators of one phase in one step: how often on the device, how often on the CPU instead, and bytes moved.

    ``executed`` leaves composites out, whose parts are counted; ``host`` are operators on tensors of the CPU.
    """

    phase: str
    executed: int
    distinct: int
    fallbacks: int | None
    moved_bytes: int | None
    host: int | None = None


class Fallback(Frozen):
    """One operator that left the device, in one phase of one step. None: known by name only."""

    name: str
    phase: str
    reason: str
    count: int | None
    seconds: float | None
    nbytes: int | None
    cause: Cause = "not told"
    lines: list[str] = Field(default=[])
    acceptance: Acceptance = "not accepted"
    accepted_because: str = ""


class OperatorPath(Frozen):
    """One operator in one phase of the attributed step: where it ran, how often, how long, and the lines that asked."""

    name: str
    phase: str
    where: Literal["device", "host"]
    fell_back: bool
    count: int | None
    seconds: float | None
    nbytes: int
    lines: list[str]


class HostShare(Frozen):
    """Seconds of a step that went into operators on the CPU, and their share of it; None with the reason.

    ``at_least``: what fell back has no time on this target, so the share is that of operators on CPU tensors alone.
    ``certain`` is the share that is left when all by which the step was longer than the median of the timed ones is taken
    for a disturbance of the fallbacks.
    """

    step_seconds: float | None
    fallback_seconds: float | None
    host_seconds: float | None
    share: float | None
    certain: float | None = None
    at_least: bool = False
    reason: str = ""


class PathSummary(Frozen):
    """Where a later step ran, and what the first one compiled. None = cannot be seen on this target."""

    source: str
    phases: list[PhaseSummary]
    fallbacks: list[Fallback] | None
    compiled: int | None
    compile_seconds: float | None
    loaded: int | None
    load_seconds: float | None
    operators: list[OperatorPath] | None = None
    on_host: HostShare | None = None
    unobservable: dict[str, str] = Field(default={})
