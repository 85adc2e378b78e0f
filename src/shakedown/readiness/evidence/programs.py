"""What the compiled programs of one step compute and move, as counted by XLA and from the traced program: never timed."""

from __future__ import annotations

from pydantic import Field

from .files import Frozen

PROGRAMS_SCHEMA = "shakedown.programs/1"


class ProgramCost(Frozen):
    """One compiled program and how often it ran in one phase of a step. Costs are those of one call.

    ``flops``, ``transcendentals`` and ``bytes_accessed`` are XLA's cost analysis of the executable as it was compiled for
    this machine: after its fusion, half precision widened, functions expanded, each loop as one turn. None where the
    executable cannot be asked, with the ``reason``. Bytes of arguments, outputs and temporaries are the executable's.

    ``matrix_flops`` counts matrix products and convolutions of the program as it was traced, by the dtype of what is
    multiplied, two operations a multiply-add. ``least_bytes`` must be read and written whatever the compiler does: inputs,
    without what gathers and slices leave out, and outputs, of one that replaces a part of an input only that part.
    ``unseen`` counts operations that no analysis puts a figure on (sorts, custom calls, loops of unknown length...).
    """

    name: str
    phase: str
    calls: int
    flops: float | None
    transcendentals: float | None
    bytes_accessed: float | None
    matrix_flops: dict[str, float]
    least_bytes: float
    argument_bytes: int | None
    output_bytes: int | None
    temp_bytes: int | None
    unseen: dict[str, int] = Field(default={})
    operators: dict[str, int] = Field(default={})  # of a program that adaptive eager fused
    reason: str = ""


class StateBytes(Frozen):
    """Bytes that training keeps on the device between two steps, and those of one batch."""

    parameters: int
    gradients: int
    optimizer: int
    buffers: int
    batch: int


class Programs(Frozen):
    """Every program that ran in one step of a case. ``programs`` is None where they cannot be seen, with the ``reason``.

    ``unanalysed`` counts runs on the device that no program stands for: operators that ran, by name, for which nothing
    below is counted. Nothing is filled in for them.
    """

    schema_version: str = PROGRAMS_SCHEMA
    source: str
    programs: list[ProgramCost] | None
    reason: str = ""
    unanalysed: dict[str, int] = Field(default={})
    state: StateBytes | None = None
    seconds: float = 0.0  # spent on the analysis
