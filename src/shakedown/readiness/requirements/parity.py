"""Demands on loss parity."""

from __future__ import annotations

from pydantic import Field, field_validator

from ..evidence import Frozen

SHORTEST = 30  # steps in a window of judge/parity.py


class Parity(Frozen):
    """A longer training run on the CPU and on the target, judged by its losses: how far they may part."""

    steps: int = Field(
        default=60,
        ge=0,
        description="Training steps of the smallest case, in each mode and precision; 0 leaves the comparison out. Two windows "
        "of 30 steps are the least that shows whether a gap grows.",
    )
    twins: int = Field(
        default=5,
        ge=5,
        description="Runs on the CPU whose weights are nudged by one unit roundoff: the largest of five or more is what "
        "rounding alone does to this training.",
    )
    allowed_ratio: float = Field(
        default=3.0,
        gt=0,
        description="The target may be this many times as far from the CPU as the furthest twin, in the median of a window. "
        "Correct devices were measured up to 1.5 times as far, faults in float32 a hundred times and more.",
    )
    limit: float = Field(
        default=0.02,
        gt=0,
        description="Relative gap of the losses that would matter. Where the twins themselves differ by more, losses decide "
        "nothing, and that is said.",
    )
    tolerance: float = Field(
        default=0.0,
        ge=0,
        description="The plain rule that reviewers ask for: the largest relative gap at the steps in `at`; 0 asks for none. "
        "By itself it passed zeroed gradients of a normalisation, a missing weight decay and a lost optimizer state.",
    )
    at: list[int] = Field(default=[], description="Steps, from 1, at which the plain rule is applied.")

    @field_validator("steps")
    @classmethod
    def _long_enough(cls, steps: int) -> int:
        if 0 < steps < SHORTEST:
            raise ValueError(f"{steps} steps are no window: give {SHORTEST} or more, or 0 for none")
        return steps
