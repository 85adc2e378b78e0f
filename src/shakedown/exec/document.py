"""The report of ``shakedown exec`` as a document: what each process of the script left, put together."""

from __future__ import annotations

import json
import linecache
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, TypeAdapter

from shakedown.readiness.evidence.files import Frozen

from .job import Outcome, Place

LABEL = "rehearsal on the host's processor: not a measurement of Trainium"
_ORDER: tuple[Outcome, ...] = ("not redirected", "redirected", "answered", "ignored")


class Ran(Frozen):
    """An operator (``aten::name.overload``) or a graph (``graph::name``) that ran on the device, and how often."""

    name: str
    count: int


class FellBack(Frozen):
    """An operator that ran on the CPU instead, for one reason: how often, bytes that crossed for it, seconds."""

    name: str
    reason: str
    count: int
    nbytes: int
    seconds: float


class Moved(Frozen):
    """Copies in one direction between host and device."""

    name: str
    count: int
    nbytes: int


class Programs(Frozen):
    """Programs that XLA compiled here, the seconds that took, and how many were found in the cache instead."""

    compiled: int
    compile_seconds: float
    cached: int


class Memory(Frozen):
    """Bytes of values on the device. ``peak_bytes`` is None where the device does not keep it."""

    peak_bytes: int | None
    bytes_at_end: int


class Process(Frozen):
    """One process of the script. ``used`` says whether the device was used in it; what follows is empty where it was not.

    ``graphs`` are the rows of ``torch.neuron.compile_report()``. ``failure`` says why there is no more.
    """

    pid: int
    argv: list[str]
    forked: bool = False
    seconds: float = 0.0
    torch: str = ""
    used: bool = False
    adaptive: bool = False
    profile: str = ""
    operators: tuple[Ran, ...] = ()
    fallbacks: tuple[FellBack, ...] = ()
    transfers: tuple[Moved, ...] = ()
    programs: Programs = Programs(compiled=0, compile_seconds=0.0, cached=0)
    graphs: dict[str, list[Any]] = Field(default_factory=dict)
    memory: Memory = Memory(peak_bytes=None, bytes_at_end=0)
    failure: str = ""


class Document(Frozen):
    """One run. ``mode`` is None where none was asked for, so that the environment decided; ``environment`` what the options set.

    ``main`` is the script's own process, None where it left no report; ``silent`` are processes that left none. ``exit_code`` is
    what the command returns. ``places`` are those of all processes.
    """

    schema_version: Literal["shakedown.exec/1"] = "shakedown.exec/1"
    label: str = LABEL
    command: list[str]
    environment: dict[str, str]
    mode: Literal["eager", "adaptive", "compile"] | None
    redirect_cuda: bool
    ended: str
    exit_code: int
    seconds: float
    main: Process | None
    others: list[Process]
    silent: list[int]
    places: list[Place]


_PLACES = TypeAdapter(list[Place])


def gather(root: Path) -> tuple[dict[int, Process], list[Place], list[int]]:
    """What the processes left in the directory `root`: reports by process, all places, processes without a report."""
    processes: dict[int, Process] = {}
    places: list[Place] = []
    for file in sorted(root.glob("*.report.json")):
        try:
            raw = json.loads(file.read_text())
            rows = _PLACES.validate_python(raw.pop("places", []))
            process = Process(**raw)
        except (OSError, ValueError, TypeError, AttributeError):  # the directory is the script's to write into
            continue
        places += rows
        processes[process.pid] = process
    started = {int(file.stem) for file in root.glob("*.started") if file.stem.isdigit()}
    return processes, merged(places), sorted(started - set(processes))


def merged(places: list[Place]) -> list[Place]:
    """Each place once, with its line's text: the script's own first, what was not redirected before the rest."""
    found: dict[Place, int] = {}
    for place in places:
        key = replace(place, count=0)
        found[key] = found.get(key, 0) + place.count
    rows = [
        replace(key, count=count, text=linecache.getline(key.file, key.line).strip()[:200])
        for key, count in found.items()
    ]
    return sorted(rows, key=lambda p: (p.library, _ORDER.index(p.outcome), p.file, p.line, p.call, p.via))
