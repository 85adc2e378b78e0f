"""The shapes that a service meets: how much of the traffic each is, what it compiles, re-uses, costs and pads."""

from __future__ import annotations

from typing import Literal

from ..evidence import Frozen
from ..plan.buckets import BucketPlan

Basis = Literal["measured", "interpolated", "extrapolated", "not measured"]


class StepCost(Frozen):
    """Seconds of one step of a shape. Measured by the trial, or an estimate from :class:`StepModel`; never filled in."""

    seconds: float | None
    low: float | None
    high: float | None
    basis: Basis


class ShapeFamily(Frozen):
    """All lengths that are computed as one shape, ``size`` x ``length``: a program of its own on a static-shape target.

    ``share`` of the traffic, ``requests`` where they were counted; ``lengths`` distinct ones from ``shortest`` to
    ``longest``; ``waste``, the share of computed positions that are padding. From the compiled processes of the trial:
    ``calls`` of the compiled function and ``compiled`` graphs in the cold one, ``reused``, the share of calls that ran a
    graph compiled before, ``ran_eager``, calls that a limit left uncompiled, ``loaded_warm``, programs that the warm
    process found in its cache. None: the trial did not run this shape.
    """

    size: int
    length: int
    share: float
    requests: int | None
    lengths: int
    shortest: int
    longest: int
    waste: float
    calls: int | None
    compiled: int | None
    reused: float | None
    ran_eager: int | None
    loaded_warm: int | None
    step: StepCost


class Measured(Frozen):
    """A shape whose step the trial timed: median seconds and interval."""

    size: int
    length: int
    seconds: float
    low: float | None
    high: float | None


class StepModel(Frozen):
    """Step time as a function of the shape, fitted to what was measured; an estimate everywhere else.

    ``method`` in words; ``coefficients`` by term (seconds per unit). ``residual`` is the root of the mean squared relative
    error at the measured shapes, ``worst`` the largest; None where the fit has no freedom left to be wrong.
    """

    method: str
    coefficients: dict[str, float]
    points: list[Measured]
    residual: float | None
    worst: float | None


class CompileCost(Frozen):
    """Seconds that a shape costs once, beyond a steady step: the median over ``shapes`` first steps, and the extremes."""

    seconds: float
    low: float
    high: float
    shapes: int
    method: str


class ShapeLedger(Frozen):
    """The traffic by shape, as it is now (``rows``) and with the recommended buckets (``plan``).

    ``kind`` says what the costs are: measured, rehearsal (the embedded device), or none (padding only). ``source`` says where
    the distribution is from, ``sha256`` is that of its file. ``quantiles`` are of the lengths, by request. ``programs`` are
    the distinct shapes that are computed now, ``limits`` what the trial saw of limits on compilation. ``rows`` hold
    the most frequent shapes, the rest is ``rows_left_out`` with ``share_left_out``.
    """

    kind: Literal["measured", "rehearsal", "none"]
    source: str
    sha256: str
    mode: str
    dtype: str
    requests: int | None
    distinct: int
    quantiles: dict[str, int]
    programs: int
    waste: float
    rows: list[ShapeFamily]
    rows_left_out: int
    share_left_out: float
    limits: list[str]
    step_model: StepModel | None
    compile_cost: CompileCost | None
    plan: BucketPlan | None
    buckets: list[ShapeFamily]
    notes: list[str]
