"""What the compiled programs of one step compute and move, as counted by XLA and from the traced program: never timed."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .files import Frozen

PROGRAMS_SCHEMA = "shakedown.programs/1"

# Far above what any step does: whoever wrote the document, sums and products of these are numbers.
Amount = Annotated[float, Field(ge=0, le=1e24, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0, le=1 << 60)]
Count = Annotated[int, Field(ge=1, le=1 << 40)]


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
    calls: Count
    flops: Amount | None
    transcendentals: Amount | None
    bytes_accessed: Amount | None
    matrix_flops: dict[str, Amount]
    least_bytes: Amount
    argument_bytes: Bytes | None
    output_bytes: Bytes | None
    temp_bytes: Bytes | None
    unseen: dict[str, Count] = Field(default={})
    operators: dict[str, Count] = Field(default={})  # of a program that adaptive eager fused
    reason: str = ""


class StateBytes(Frozen):
    """Bytes that training keeps on the device between two steps, and those of one batch."""

    parameters: Bytes
    gradients: Bytes
    optimizer: Bytes
    buffers: Bytes
    batch: Bytes


class Programs(Frozen):
    """Every program that ran in one step of a case. ``programs`` is None where they cannot be seen, with the ``reason``.

    ``unanalysed`` counts runs on the device that no program stands for: operators that ran, by name, for which nothing
    below is counted. Nothing is filled in for them.
    """

    schema_version: str = PROGRAMS_SCHEMA
    source: str
    programs: list[ProgramCost] | None
    reason: str = ""
    unanalysed: dict[str, Count] = Field(default={})
    state: StateBytes | None = None
    seconds: float = 0.0  # spent on the analysis
