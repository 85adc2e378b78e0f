"""What one process of localisation is asked to do. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..worker import Job


@dataclass(frozen=True)
class BisectJob(Job):
    """What one process of localisation does. ``root`` is the record's directory, ``out`` where results go."""

    stage: str = "eager"  # eager | compiled | adaptive
    case: str = ""
    step: int = 1
    out: str = ""
    suspected: bool = True  # the trial found this cell wrong

    @property
    def folder(self) -> Path:
        return Path(self.out)
