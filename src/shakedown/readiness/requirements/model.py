"""What the workload's owner demands, fixed and hashed before the first result is seen.

``shakedown init WORKLOAD`` writes the file with every key, its default and its reason. A key that is left out has the
default; a key that does not exist is an error: a misspelt tolerance must not silently become the default.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from ..cost.inputs import Costs
from .numbers import Frozen, Numerics, Resampling, Run, Timing
from .parity import Parity
from .traffic import Traffic

SCHEMA = "shakedown.requirements/2"


class Demanded(Frozen):
    """What the workload must be able to do."""

    dtypes: list[str] = Field(
        default=[],
        description="Precisions that must work (float32, bfloat16, float16); empty takes the workload's own list.",
    )
    float64: bool = Field(
        default=False,
        description="Whether results need float64 arithmetic. Where a target computes it in float32 the answer is "
        "precision-blocked; the demand is never relaxed.",
    )
    modes: list[str] = Field(
        default=["eager", "adaptive", "compiled"],
        description="Execution modes to try. A mode that a target does not have stays untested, with the reason.",
    )
    boundary: Literal["forward and loss", "step"] = Field(
        default="forward and loss",
        description="What torch.compile is given. With `forward and loss` the backward pass belongs to it and the "
        "optimizer stays outside, on every target alike; `step` compiles the whole training step where a target can.",
    )
    dynamic_shapes: bool = Field(
        default=False,
        description="Whether one compiled program must serve every shape, as with torch.compile(dynamic=True). A target that "
        "compiles static shapes cannot, and needs a plan with a few padded lengths instead.",
    )
    expected_programs: int = Field(
        default=0,
        ge=0,
        description="Compilations of forward and loss that the service is planned with; 0 states no expectation. More "
        "distinct shapes than this need a revised plan.",
    )
    training_steps: int = Field(
        default=10_000,
        ge=1,
        description="Steps of a real run: what setup costs is spread over so many.",
    )


class CaseDemand(Frozen):
    """One shape that the service meets. ``share`` is its share of the traffic, ``padded_to`` a length it is padded to."""

    size: int = Field(ge=1, description="Batch size: samples in one step.")
    length: int = Field(ge=1, description="Length of the sequence; for images the side in pixels.")
    share: float = Field(default=0.0, ge=0, le=1, description="Share of requests with this shape; 0 is not known.")
    padded_to: int = Field(default=0, ge=0, description="Length that such requests are padded to; 0 pads nothing.")


class Variations(Frozen):
    """Changes that every mode and precision meets alike."""

    maximum: str = Field(
        default="",
        description="The largest shape of the real service, BATCHxLENGTH; empty takes the largest case.",
    )
    padding: bool = Field(
        default=True,
        description="A batch padded to the next power of two: padding must not change what is computed. Needs `pad` in "
        "the workload.",
    )
    noncontiguous: bool = Field(
        default=True,
        description="Inputs whose memory order is not their shape's: TorchNeuron copies them on every compiled call.",
    )
    logging_every: int = Field(
        default=10,
        ge=0,
        description="Read and print the loss every so many steps: each read makes the host wait for the device. 0: never.",
    )
    hard_inputs: bool = Field(
        default=True,
        description="Large, tiny and nearly tied inputs, where approximations and flushed denormals show.",
    )
    neighbours: bool = Field(
        default=True,
        description="Each operator of the workload again with transposed, offset, empty and expanded inputs, other "
        "dtypes and NaN rows: what the next version of the workload is likely to need.",
    )
    neighbour_operators: int = Field(
        default=60,
        ge=1,
        description="Distinct operator calls that are probed, at most: one of every operator first, then the largest. More "
        "of them are the same operators at other sizes.",
    )
    neighbour_seconds: float = Field(
        default=60.0,
        gt=0,
        description="Seconds for the probes of one process; unchanged calls come first, and what is left over is untested.",
    )
    restart: bool = Field(
        default=True,
        description="Save, end the process, load in a new one, and compare the updates after it: the first loss after a "
        "restart cannot show a lost optimizer state.",
    )


class AcceptedFallback(Frozen):
    """An operator that may run on the CPU, with a budget for one step."""

    operator: str = Field(
        examples=["aten::multinomial"],
        description="Full name, such as aten::multinomial; a name without overload covers all of them.",
    )
    phase: str = Field(
        default="", examples=["forward"], description="data, forward, backward, optimizer or logging; empty: any."
    )
    calls: int = Field(ge=1, description="Calls in one step, at most.")
    nbytes: int = Field(default=0, ge=0, description="Bytes moved in one step, at most; 0 sets no limit.")
    reason: str = Field(
        min_length=1,
        examples=["One draw per step, a few hundred bytes."],
        description="Why this is acceptable, in a sentence for the reviewer.",
    )


class Kernel(Frozen):
    """A hand-written kernel or extension that the workload depends on."""

    name: str = Field(
        min_length=1,
        examples=["mylib::fused_norm"],
        description="Name of the operator or of the package that brings it.",
    )
    owner: str = Field(
        min_length=1, examples=["the kernels team"], description="Who maintains it and answers when it breaks."
    )
    fallback: str = Field(
        default="",
        examples=["torch.nn.functional.layer_norm"],
        description="What runs where the kernel does not; empty: nothing.",
    )


class Budgets(Frozen):
    """Limits, of time in seconds; 0 sets none."""

    cold_start: float = Field(
        default=0.0, ge=0, description="From starting a process with an empty cache to the end of its first step."
    )
    warm_start: float = Field(
        default=0.0, ge=0, description="The same with a filled cache: what a restart in production costs."
    )
    step: float = Field(default=0.0, ge=0, description="Median of a step in the steady state, at the real maximum.")
    device_memory: float = Field(
        default=0.0,
        ge=0,
        description="Bytes of device memory that a step may need at its peak, the next batch included: what the real "
        "device has, less what other programs keep there.",
    )
    fallback_share: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Share of a step that may be spent in operators on the CPU, those that fell back and those on CPU "
        "tensors; 0 allows none.",
    )


class Task(Frozen):
    """A judgement of the user's own: ``score(outputs, batch) -> float`` in the workload, with a limit frozen here."""

    function: str = Field(default="", description="Name of the function in the workload file; empty: none.")
    limit: float = Field(
        default=0.0, ge=0, description="Largest difference between the score of the device and that of float64 truth."
    )
    reason: str = Field(default="", description="Why the limit is what it is, in a sentence for the reviewer.")


class Operation(Frozen):
    """Who can undo the migration, and what would stop it before it starts."""

    rollback: str = Field(
        default="", description="The one command that puts the service back. Without it preflight stops."
    )
    handwritten_kernels: str = Field(
        default="",
        description="Stop condition: kernels without an owner or a fallback. Answer `none` or name the plan.",
    )
    pinned_framework: str = Field(
        default="", description="Stop condition: a framework version that cannot move. Answer `none` or the version."
    )
    on_call: str = Field(
        default="", description="Stop condition: nobody on call who knows the device. Answer with the team that is."
    )


class ProjectionDemand(Frozen):
    """What the least time of a step is projected for: a bound from counted work and published figures, never a measurement."""

    instance: str = Field(
        default="trn2.48xlarge",
        description="Instance whose published figures are used; empty projects nothing. `shakedown project` does it for others.",
    )


class Requirements(Frozen):
    """The whole file."""

    workload: Demanded = Demanded()
    cases: list[CaseDemand] = Field(
        default=[], description="Shapes of the service, in the order they run; empty takes the workload's own CASES."
    )
    traffic: Traffic = Traffic()
    variations: Variations = Variations()
    fallbacks: list[AcceptedFallback] = Field(
        default=[],
        description="Operators that may run on the CPU, each with a budget; any other fallback is a finding.",
    )
    kernels: list[Kernel] = Field(
        default=[],
        description="Hand-written kernels that the workload depends on; one that is found and not listed here "
        "is a finding.",
    )
    budgets: Budgets = Budgets()
    task: Task = Task()
    operation: Operation = Operation()
    costs: Costs = Costs()
    projection: ProjectionDemand = ProjectionDemand()
    numerics: Numerics = Numerics()
    parity: Parity = Parity()
    timing: Timing = Timing()
    resampling: Resampling = Resampling()
    run: Run = Run()

    @field_validator("cases")
    @classmethod
    def _shares_add_up(cls, cases: list[CaseDemand]) -> list[CaseDemand]:
        total = sum(case.share for case in cases)
        if total and abs(total - 1) > 0.01:
            raise ValueError(f"the shares of the cases add up to {total:.2f}, not to 1; give all of them or none")
        return cases
