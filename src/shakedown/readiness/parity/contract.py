"""What a training script must do to be compared: use the device it is told, and write the loss of each step to a file.

Two environment variables, named here. A third, ``SHAKEDOWN_PARITY_DTYPE``, is for scripts that can compute in several precisions.
Losses are lines, in either form, or mixed; a step number never goes back but after a restart::

    12 6.2345                                        {"step": 12, "loss": 6.2345}
    event restart 40 from checkpoint 39              {"event": "restart", "step": 40, "text": "from checkpoint 39"}
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from ..errors import BadInput
from ..evidence.losses import LossEvent

DEVICE = "SHAKEDOWN_PARITY_DEVICE"
LOSSES = "SHAKEDOWN_PARITY_LOSSES"
DTYPE = "SHAKEDOWN_PARITY_DTYPE"
EventKind = Literal["restart", "shape", "other"]
_MOST_BYTES = 1 << 28  # a file of losses that is larger is a file of something else
_MOST_REPEATS = 0.25  # share of steps whose number does not go forward, above which they are no restarts


@dataclass
class Written:
    """What a script wrote: by step the last loss, events, devices it named, and the most decimals of any loss."""

    losses: dict[int, float] = field(default_factory=dict)
    events: list[LossEvent] = field(default_factory=list)
    devices: set[str] = field(default_factory=set)
    decimals: int = 0
    repeats: int = 0

    @property
    def resolution(self) -> float:
        """The step between two losses that can be told apart as they were written; 0 where float32 is coarser."""
        finite = [abs(value) for value in self.losses.values() if math.isfinite(value)]
        step = 10.0**-self.decimals
        return step if finite and step > 2.0**-24 * sorted(finite)[len(finite) // 2] else 0.0


class _Literal(float):
    """A number that remembers how it was written."""

    text: str

    def __new__(cls, text: str) -> _Literal:
        made = super().__new__(cls, text)
        made.text = text
        return made


def parse(path: Path, name: str) -> Written:
    """Read the file that the run called `name` wrote.

    Raises:
        BadInput: it is missing, empty, too large, or a line of it is none of the contract's.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BadInput(f"{name}: {path} is larger than {_MOST_BYTES >> 20} MiB; write one short line for each step")
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        raise BadInput(
            f"{name}: the script wrote no losses; it must append a line `step loss` for each step to the file named in "
            f"${LOSSES} (docs/evidence/parity.md)"
        ) from None
    found = Written()
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                _line(line.strip(), found)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise BadInput(
                    f"{name}: line {number} of the losses is {line.strip()[:80]!r}, which is neither `step loss`, nor "
                    f'`event KIND STEP`, nor {{"step": N, "loss": X}} ({str(error)[:120]})'
                ) from None
    if not found.losses:
        raise BadInput(f"{name}: the script's file of losses has no loss in it; write a line `step loss` for each step")
    if found.repeats > max(1, _MOST_REPEATS * len(found.losses)):
        raise BadInput(
            f"{name}: {found.repeats} step numbers do not go forward; write one loss for each step, or number the "
            "micro-batches through"
        )
    return found


def _line(line: str, into: Written) -> None:
    if line.startswith("{"):
        raw = json.loads(line, parse_float=_Literal)
        if "device" in raw:
            into.devices.add(str(raw["device"]).partition(":")[0])
        if "event" in raw:
            _event(raw["event"], raw["step"], str(raw.get("text", "")), into)
        else:
            _loss(raw["step"], raw["loss"], into)
    elif line.startswith("event"):
        _, kind, step, *text = line.split(None, 3)
        _event(kind, step, "".join(text), into)
    else:
        step, loss = line.split()
        _loss(step, _Literal(loss), into)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(f"{value!r} is no number of a step")
    return int(value)


def _loss(step: Any, loss: Any, into: Written) -> None:
    if isinstance(loss, bool) or not isinstance(loss, int | float):
        raise ValueError(f"{loss!r} is no loss")
    number = _whole(step)
    last = next(reversed(into.losses), None)
    if last is not None and number <= last:
        into.repeats += 1
        told = any(event.kind == "restart" and event.step == number for event in into.events)
        if not told:
            into.events.append(LossEvent(step=number, kind="restart", text=f"the step number went back from {last}"))
        into.losses.pop(number, None)  # what was computed again counts, and comes last
        for later in [s for s in into.losses if s > number]:
            del into.losses[later]
    mantissa, _, exponent = getattr(loss, "text", str(loss)).lower().partition("e")
    if math.isfinite(loss):
        into.decimals = min(max(into.decimals, len(mantissa.partition(".")[2]) - int(exponent or 0)), 300)
    into.losses[number] = float(loss)


def _event(kind: Any, step: Any, text: str, into: Written) -> None:
    known: EventKind = kind if kind in get_args(EventKind) else "other"
    said = text if known == kind else f"{kind}: {text}".rstrip(": ")
    into.events.append(LossEvent(step=_whole(step), kind=known, text=said[:500]))
