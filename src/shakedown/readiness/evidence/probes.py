"""What single operators did near the calls of the workload, and how the device treats values at the edge of its dtypes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .files import Frozen

SCHEMA = "shakedown.probes/1"

# exact: bit-equal. rounding: each element within a few roundings. reduction: within what a sum of so many terms explains.
# order-dependent: any legal answer. random: distribution only. unspecified: contents of new memory, shape only.
Contract = Literal["exact", "rounding", "reduction", "order-dependent", "random", "unspecified"]

# returned: both gave tensors, which are compared. both-raised: an error on either side. device-raised, cpu-raised: on one.
# crashed: the process died of it. hung: it was ended after its time. untested: not run, with the reason.
ProbeOutcome = Literal["returned", "both-raised", "device-raised", "cpu-raised", "crashed", "hung", "untested"]


class Comparison(Frozen):
    """One tensor that an operator returned or wrote, on the device against float64 truth and against the CPU.

    ``margin`` is error over allowed error under the contract, above 1 it differs; ``unequal`` counts elements that are not the
    CPU's own, ``illegal`` those that no legal answer has. ``relative_l2`` is against truth and None for integers.
    """

    output: int
    dtype: str
    shape: tuple[int, ...]
    contract: Contract
    reason: str
    terms: int
    unequal: int
    illegal: int
    nonfinite_mismatches: int
    relative_l2: float | None
    ratio_to_cpu: float | None
    margin: float
    text: str = ""


class CallProbe(Frozen):
    """One operator call of the workload in one variation. Errors are ``Type: message``, cut; ``seconds`` are the device's."""

    operator: str
    arguments: str
    phase: str
    line: str
    calls: int
    tags: list[str]
    variation: str
    outcome: ProbeOutcome
    reason: str = ""
    cpu_error: str = ""
    device_error: str = ""
    comparisons: list[Comparison] = Field(default=[])
    seconds: float = 0.0


class Canary(Frozen):
    """A tiny computation with one right answer. Values are written out, so that a reader can compare them by eye."""

    name: str
    operation: str
    expected: list[str]
    found: list[str]
    without: list[str]
    error: str = ""
    warnings: list[str] = Field(default=[])


class Float64Tensor(Frozen):
    """A float64 tensor of the workload as it was built. ``origin``: asked for, NumPy default, or default dtype."""

    name: str
    origin: str
    line: str


class OrderDependent(Frozen):
    """A call whose answer depends on an order that PyTorch leaves open, with the user's line and what made it so."""

    operator: str
    line: str
    phase: str
    why: str


class Probes(Frozen):
    """Everything that one probe process found. ``distinct`` calls were seen in one step on the CPU, ``chosen`` were probed."""

    schema_version: str = SCHEMA
    cell: str
    case: str
    mode: str
    dtype: str
    target: str
    identity: dict[str, Any]
    snapshot_sha256: str
    requirements_sha256: str
    distinct: int
    chosen: int
    probes: list[CallProbe]
    canaries: list[Canary]
    float64_tensors: list[Float64Tensor]
    largest_int64: int
    order_dependent: list[OrderDependent]
    processes: int
    reason: str = ""


class TaskScore(Frozen):
    """The user's own score of one case, computed on the CPU from captured outputs; None where it is not a finite number."""

    schema_version: str = "shakedown.task/1"
    function: str
    of_tensors_sha256: str
    scores: dict[str, float | None]
