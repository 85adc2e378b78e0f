"""What a step can cost at least on a published instance: a bound from counted work and documented rates, not a measurement.

Everything here is a *projection*. It is never a throughput, and no price is derived from it.
"""

from __future__ import annotations

from typing import Literal

from ..evidence import Frozen
from ..projection import Figure


class Unit(Frozen):
    """What a step is projected on: one logical core, or one chip. Rates in operations and bytes a second, None: not
    published. ``peak`` has dense rates by dtype. ``derived`` says how a figure follows from a published one of another unit.
    """

    name: Literal["logical core", "chip"]
    peak: dict[str, float]
    memory_bytes: int | None
    memory_bandwidth: float | None
    host_bandwidth: float | None
    derived: str


class Unseen(Frozen):
    """Work that no analysis puts a number on; it is in no bound, so the bound is lower than it should be."""

    what: str
    count: int
    phases: list[str]


class Transfer(Frozen):
    """What an operator that fell back moves in one step, and how long that takes at the host link's rate at least.

    ``seconds`` is None where no rate of the link is published; latency is not in it.
    """

    operator: str
    phase: str
    calls: int
    nbytes: int
    seconds: float | None


class Bound(Frozen):
    """The least that a step can take on one unit. Seconds are None where there is none, with the ``reason``.

    ``seconds`` sums over programs, each the longer of its matrix products at the peak rate and its least bytes at the
    memory's rate; ``whole_step_seconds`` is the looser bound that also lets programs overlap perfectly. ``as_fused_seconds``
    takes the bytes that this machine's compiler moves instead of the least ones: an indication, not a bound.
    ``intensity`` is matrix operations a byte, ``ridge`` the intensity from which arithmetic binds; ``roof`` says which does.
    ``share_bound_by_memory`` is the part of ``seconds`` in programs that the memory binds.

    ``fits`` is False where even the least that a step needs is more than the unit has, True where that and this machine's
    temporaries are within it, None in between, or where nothing is known. ``memory_share`` is the least over what there is.
    """

    unit: Literal["logical core", "chip"]
    seconds: float | None
    whole_step_seconds: float | None
    as_fused_seconds: float | None
    by_phase: dict[str, float]
    intensity: float | None
    ridge: float | None
    roof: Literal["arithmetic", "memory"] | None
    share_bound_by_memory: float | None
    transfers: list[Transfer]
    transfer_seconds: float | None
    fits: bool | None
    memory_share: float | None
    reason: str = ""


class MemoryNeed(Frozen):
    """Bytes that a step needs on the device. ``needed`` at least: the larger of the states' sum and of what was alive when
    somebody looked (``peak_live``; ``meter`` says when). ``with_temporaries`` adds the largest temporaries of one program
    as this machine's compiler has them: another compiler may need fewer, or more. None: not measured.
    """

    parameters: int
    gradients: int
    optimizer: int
    buffers: int
    batch: int
    peak_live: int | None
    largest_temporaries: int | None
    needed: int
    with_temporaries: int | None
    meter: str


class CaseProjection(Frozen):
    """One case in one mode and precision. Operations and bytes of a whole step; ``least_bytes`` are what programs must at
    least read and write, ``bytes_accessed`` what this machine's compiler counts after its own fusion.
    """

    cell: str
    mode: str
    dtype: str
    case: str
    programs: int
    calls: int
    flops: float | None
    transcendentals: float | None
    matrix_flops: dict[str, float]
    bytes_accessed: float | None
    least_bytes: float
    memory: MemoryNeed | None
    bounds: list[Bound]
    unseen: list[Unseen]
    unanalysed: dict[str, int]


class BatchLimit(Frozen):
    """At which batch size a step stops fitting, by a straight line through what was needed at the batch sizes of one length.

    ``points`` are batch size and bytes needed. ``needed = fixed + slope * batch``; ``residual`` is the largest deviation of a
    point from the line, as a share of it; with two points it is 0 and says nothing. ``largest`` is the largest batch whose
    least need fits by the line, None where it cannot be said, with the ``reason``. Beyond the measured sizes it is an
    extrapolation.
    """

    mode: str
    dtype: str
    length: int
    unit: Literal["logical core", "chip"]
    points: list[tuple[int, int]]
    fixed: float | None
    slope: float | None
    residual: float | None
    largest: int | None
    reason: str = ""


class Projection(Frozen):
    """The whole projection. ``figures`` are the published numbers that it rests on, ``missing`` what is not published and
    therefore not projected, ``assumptions`` every one that the bounds need.
    """

    kind: Literal["projection"] = "projection"
    instance: str
    chip: str
    chips: int
    logical_cores: int  # of the instance
    dated: str
    figures: dict[str, Figure]
    missing: list[str]
    units: list[Unit]
    cases: list[CaseProjection]
    batch_limits: list[BatchLimit]
    assumptions: list[str]
    not_projected: list[str]
