"""What the command and the script's processes agree on: a directory, named in one variable, and the files in it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Literal

FILE = "job.json"

# What became of a use of CUDA. redirected: it went to the device. ignored: it means nothing there and was accepted. answered: a
# question about CUDA, and what it was told. not redirected: it cannot be; it raised, or stays as it is.
Outcome = Literal["redirected", "ignored", "answered", "not redirected"]


@dataclass(frozen=True)
class Place:
    """A line of the script's own code that named CUDA, or of a library where no line of the script led there (``library``).

    ``via`` is the line of the library that the script called and that named CUDA, ``""`` where the script did. ``rule`` is the
    id of the rule of ``shakedown scan`` that finds the same in a source, where there is one. ``text`` is the line itself. A
    ``count`` of 0: it was found in the source, and whether it ran is not known.
    """

    # For the report, which it is a part of. (A plain dataclass, since pydantic is slow to load in the script's process.)
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    file: str
    line: int
    call: str
    became: str
    outcome: Outcome
    rule: str
    library: bool
    via: str = ""
    count: int = 0
    text: str = ""


@dataclass(frozen=True)
class Job:
    """What is to be done inside the script's processes. ``root`` is the directory for their reports."""

    root: str
    redirect_cuda: bool = False
    default_device: bool = False

    def write(self) -> None:
        (Path(self.root) / FILE).write_text(json.dumps(asdict(self)))


def read(root: Path) -> Job:
    """The job in the directory `root`.

    Raises:
        OSError, ValueError, TypeError: it is not there, or not one of ours.
    """
    return Job(**json.loads((root / FILE).read_text()))


def report_of(root: Path, pid: int) -> Path:
    """Where process `pid` leaves its report."""
    return root / f"{pid}.report.json"


def started_by(root: Path, pid: int) -> Path:
    """The mark that process `pid` has the device: a process that dies leaves this and no report."""
    return root / f"{pid}.started"
