"""What the comparison of two training runs' losses results in."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..evidence import Frozen

# identical: every loss has the same bits. within-envelope: no further from the reference than the twins are.
# explained-by-declared-precision: no further than the CPU is in that precision. event: the gap begins, or jumps, at a step.
# growing: it grows faster than every twin's. biased: it keeps to one side. above-envelope: none of these, and yet too
# large. no-power: the twins themselves differ by more than the limit. untested: there is nothing to compare.
ParityClass = Literal[
    "identical",
    "within-envelope",
    "explained-by-declared-precision",
    "event",
    "growing",
    "biased",
    "above-envelope",
    "no-power",
    "untested",
]
PASSING: tuple[ParityClass, ...] = ("identical", "within-envelope", "explained-by-declared-precision")
UNDECIDED: tuple[ParityClass, ...] = ("no-power", "untested")


class ParityWindow(Frozen):
    """Steps `first` to `last` (inclusive). Gaps are distances to the reference's loss, in units of the loss; medians of
    their absolute values. ``ratio`` is r: the candidate's over the largest twin's, or over the floor where that is larger.
    ``power``: the twins' gap is within the user's limit.
    """

    first: int
    last: int
    reference: float
    gap: float
    twins: list[float]
    floor: float
    ratio: float
    low: float | None = None
    low_ratio: float | None = None
    power: bool = True


class ParityCurve(Frozen):
    """To be drawn: losses by step, thinned to a few hundred steps where there are more. The envelope spans the reference
    and all twins; None: not finite.
    """

    steps: list[int]
    reference: list[float | None]
    candidate: list[float | None]
    lowest_twin: list[float | None]
    highest_twin: list[float | None]
    low: list[float | None] | None = None


class PlainCheck(Frozen):
    """The plain rule at one step: |candidate - reference| <= tolerance * |reference|. ``passed`` is None where that step
    was not reached.
    """

    step: int
    tolerance: float
    reference: float | None
    candidate: float | None
    relative_gap: float | None
    passed: bool | None


class ParityEvent(Frozen):
    """Something at a step: a jump of the gap (``gap``), a loss that is not finite, a restart or a shape that the runs told
    of.
    """

    step: int
    kind: Literal["gap", "not finite", "restart", "shape", "other"]
    text: str


class ParityResult(Frozen):
    """One candidate's losses against the reference and its twins. ``passed`` is None where nothing could be decided.

    ``cell`` and ``case`` are empty for the stand-alone command. ``ratio`` is the worst window's r, ``low_ratio`` the same
    against the CPU in the declared precision. ``first_difference`` is the first step whose losses differ at all,
    ``first_outside`` the first that lies further out than the allowed ratio times its twins. ``growth`` is the factor by
    which the gap grows from the first to the last step, on a line through its logarithm (None: too few steps or no gap),
    ``twin_growth`` the same of each twin. ``one_sided`` is the share of steps on the more frequent side.
    """

    cell: str = ""
    case: str = ""
    mode: str = ""
    dtype: str
    device: str
    parity: ParityClass
    passed: bool | None
    text: str
    steps: int
    twins: int
    allowed_ratio: float = 3.0
    limit: float | None = None
    ratio: float | None = None
    low_ratio: float | None = None
    first_difference: int | None = None
    first_outside: int | None = None
    trend: Literal["flat", "growing", "shrinking", ""] = ""
    growth: float | None = None
    twin_growth: list[float] = Field(default=[])
    one_sided: float | None = None
    windows: list[ParityWindow] = Field(default=[])
    curve: ParityCurve | None = None
    plain: list[PlainCheck] = Field(default=[])
    events: list[ParityEvent] = Field(default=[])
    notes: list[str] = Field(default=[])
