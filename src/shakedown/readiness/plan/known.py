"""What a forecast goes by, and what it says: the values that pass between the tracing and the reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from ...buckets import Buckets
from .. import targets
from ..evidence import Frozen
from ..requirements import CaseDemand, Requirements
from ..scan import Hit
from .support import Placed
from .trace import Call, Traced

Level = Literal["blocks", "revise", "note"]
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


class Reason(Frozen):
    """Why the workload cannot go as specified, or what to know before it goes.

    ``word`` is a fixed term. ``required`` is the demand, ``found`` what speaks against it, ``source`` where that is said,
    ``change`` what to do about it. ``places`` are lines of the workload.
    """

    level: Level
    word: str
    required: str
    found: str
    source: str
    change: str
    phase: str = ""
    places: tuple[str, ...] = ()


class Programs(Frozen):
    """Programs of forward and loss, for one precision. Predicted from shapes, not promised.

    ``shapes`` are the distinct shapes after padding. ``buckets`` is the plan that pads least without reaching
    Dynamo's limit, ``within`` the one that keeps to the expected number; both for lengths of all batch sizes together.
    ``sequences``: the lengths are of sequences, which a mask can pad, and not sides of images.
    """

    predicted: int
    expected: int
    shapes: tuple[str, ...]
    sequences: bool = True
    buckets: Buckets | None = None
    within: Buckets | None = None
    above: str = ""


@dataclass(frozen=True)
class Known:
    """Everything that a forecast goes by. ``placed`` is by mode (``eager`` stands for adaptive too), then dtype."""

    demand: Requirements
    cases: list[CaseDemand]
    modes: tuple[str, ...]
    target: targets.Target
    profile: str
    rules: list[dict[str, Any]]
    traces: list[Traced]
    placed: dict[str, list[list[Placed]]]
    hits: list[Hit]
    programs: Programs
    recompile_limit: int
    at: Callable[[str], str] = field(default=lambda key: key)  # a key of the requirements, with its line

    @property
    def compiled(self) -> bool:
        return "compiled" in self.modes

    def rule(self, kind: str, **fields: str) -> dict[str, Any] | None:
        """The profile's first rule of that kind with these values."""
        found = (r for r in self.rules if r["kind"] == kind and all(r.get(k) == v for k, v in fields.items()))
        return next(found, None)

    def says(self, rule: dict[str, Any]) -> str:
        return f"profile {self.profile}, rule {rule['id']}: {rule['source']}, {rule['date']}"


def spelt(number: int) -> str:
    """``three``; figures above twelve."""
    return _NUMBERS[number] if number < len(_NUMBERS) else str(number)


def lines_of(calls: Iterable[Call]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for call in calls for line in call.lines))


def places_of(hits: Iterable[Hit]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{hit.path}:{hit.line}" for hit in hits))
