"""What one process that runs a training script is asked to do. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from ..evidence import Frozen
from ..evidence.losses import LossRole, Nudge
from ..worker import Job


@dataclass(frozen=True)
class ScriptJob(Job):
    """One run of the script. ``root`` is the output directory, ``cell`` the run's name."""

    arguments: tuple[str, ...] = ()
    part: LossRole = "reference"
    twin: int = 0  # its number, from 1; 0: this run is no twin
    compute: str = "float32"  # what the script is told to compute in; ``dtype`` is the declared precision


class Seen(Frozen):
    """What was seen of a script from outside while it ran."""

    schema_version: str = "shakedown.script-run/1"
    family: str
    devices: list[str]
    nudge: Nudge | None
    faults: list[str]
