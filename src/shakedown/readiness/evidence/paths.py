"""Where operators ran, what crossed between host and device, and which line of the workload asked for it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .files import Frozen


class PathRow(Frozen):
    """Events of one kind, operator, phase and reason (and line and place, where a step was attributed), over one step.

    ``where`` is the host for an operator that left the device, and for one whose tensors all live on the host. ``count`` is
    None where only the name is known; ``seconds`` is None where no clock ran; ``nbytes`` is what crossed between host and
    device (a fallback's bytes are among the transfers as well). ``detail`` of an executed operator says how it is counted:
    a ``composite`` calls other operators, which are counted too.
    """

    kind: Literal["execute", "fallback", "compile", "transfer", "synchronize", "flush"]
    name: str
    phase: str
    detail: str = ""
    count: int | None
    seconds: float | None = None
    nbytes: int = 0
    where: Literal["device", "host"] = "device"
    line: str = ""


class Paths(Frozen):
    """Where operators ran: in the first step, in a later one, and in one that was *attributed*, whose operators are timed
    and traced to lines of the workload, and which is slower for it. None = not observed, with the reason.

    ``later_seconds`` is the time of the later step where counting costs nothing, else None. ``unobservable`` has a reason
    for each kind of observation that this target does not allow. ``unreported`` are operators that were called on tensors of
    the device in the attributed step, and of which the device's own account says neither that they ran nor that they fell
    back: how often, by name.
    """

    source: str
    first_step: list[PathRow] | None
    later_step: list[PathRow] | None
    reason: str = ""
    later_seconds: float | None = None
    attributed: list[PathRow] | None = None
    attributed_seconds: float | None = None
    unobservable: dict[str, str] = Field(default={})
    unreported: dict[str, int] = Field(default={})
