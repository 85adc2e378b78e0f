"""Where operators ran."""

from __future__ import annotations

from typing import Literal

from .files import Frozen


class PathRow(Frozen):
    """Events of one kind, operator, phase and reason, counted over one step.

    ``seconds`` is 0 where it is not measured; ``nbytes`` is what crossed between host and device.
    """

    kind: Literal["execute", "fallback", "compile", "transfer", "synchronize", "flush"]
    name: str
    phase: str
    detail: str = ""
    count: int
    seconds: float = 0.0
    nbytes: int = 0


class Paths(Frozen):
    """Where operators ran: in the first step, and in a later one. None = not observed, with the reason."""

    source: str
    first_step: list[PathRow] | None
    later_step: list[PathRow] | None
    reason: str = ""
