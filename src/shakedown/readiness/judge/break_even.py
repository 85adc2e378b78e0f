"""After how many steps a slower start is paid for by faster steps, and how sure that is."""

from __future__ import annotations

from typing import Literal

from ..evidence import Frozen
from .amortise import Point, State

Answer = Literal["after", "at once", "none", "withheld"]


class Estimate(Frozen):
    """A value with the ends of its interval. ``coverage`` None: seen once, so there is no interval. ``high`` None with a
    coverage: no upper end is known.
    """

    value: float
    low: float | None
    high: float | None
    coverage: float | None


class BreakEven(Frozen):
    """One side, after a start in one state of its cache, against another side.

    ``answer``: paid for ``after`` so many steps; ``at once``, since starting costs no more; ``none``, since steps are not
    faster (or it cannot be said that they are); ``withheld``. ``why`` gives the reason of the last two, and doubts of the
    others. ``extra`` is what starting costs more, in seconds, and ``saved`` what a step costs less; ``steps`` is the one
    over the other, the number of steps at which both sides have cost the same. ``within_plan`` compares it with
    ``planned_steps``. ``points`` and ``over_points`` are the average seconds per step of both sides.
    """

    mode: str
    dtype: str
    case: str
    cache: State
    over: Literal["reference", "eager"]
    over_cache: State | None
    kind: Literal["measured", "rehearsal"]
    answer: Answer
    why: str
    extra: Estimate | None
    saved: Estimate | None
    steps: Estimate | None
    planned_steps: int
    within_plan: Literal["yes", "no", "open"] | None
    points: list[Point]
    over_points: list[Point]
