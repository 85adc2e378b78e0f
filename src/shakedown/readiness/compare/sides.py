"""The two records of a comparison: opened, checked for damage, and asked whether they are about the same workload."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel

from .. import evidence as ev
from ..errors import BadInput, EvidenceError, RecordError
from ..judge.results import Cell, CellResult
from ..record import Record, reading, sealing
from .results import Side

_Document = TypeVar("_Document", bound=BaseModel)
DIFFERENT = "--allow-different-workload"


@dataclass(frozen=True)
class Opened:
    """A sealed record and the directory that it lies in, which may hold nothing else."""

    root: Path
    record: Record

    @cached_property
    def cells(self) -> dict[str, tuple[Cell, CellResult]]:
        """Each process with its judgement."""
        of = self.record
        return {cell.id: (cell, result) for cell, result in zip(of.cells, of.judgement.cells, strict=True)}

    @property
    def quick(self) -> bool:
        """Whether it was a first look; the first records did not say, and were none."""
        return self.record.trial.get("quick", False)

    def path(self, name: str) -> Path | None:
        """A file of the run, if it is there. Raises :class:`EvidenceError` where it is not the one that was sealed."""
        entry, path = self.record.files.get(name), self.root / name
        if entry is None or not path.resolve().is_relative_to(self.root.resolve()) or not path.is_file():
            return None
        if ev.sha256(path) != entry.sha256:
            raise EvidenceError(f"{path} is not the file that the record was sealed with")
        return path

    def read(self, kind: type[_Document], name: str) -> _Document | None:
        """A document of the run; None where it is not there. Raises :class:`EvidenceError` where it is damaged."""
        path = self.path(name)
        return ev.read(kind, path) if path else None

    def side(self) -> Side:
        """What a reader must know of this record."""
        of = self.record
        return Side(
            directory=str(self.root),
            seal=of.seal,
            created=of.created,
            shakedown_version=of.shakedown_version,
            label=of.label,
            upgraded_from=of.upgraded_from,
            workload=of.trial["workload"],
            workload_sha256=of.trial["workload_sha256"],
            snapshot_sha256=of.snapshot_sha256,
            target=of.trial["target"],
            quick=self.quick,
            disposition=of.judgement.decision.disposition,
            sentence=of.judgement.decision.sentence,
        )


def opened(path: Path) -> Opened:
    """The record at `path`, a run's directory or its ``record.json``.

    Raises:
        BadInput: there is none, it cannot be read, or it is not what was sealed.
    """
    root = path.parent if path.name == reading.NAME else path
    name = root / reading.NAME
    try:
        raw = reading.exact(root)
        record = reading.understood(ev.untrusted.shown(raw), name)
    except RecordError as error:
        raise BadInput(f"{error}; give the directory of a finished trial, or its record.json") from None
    if sealing.digest(raw) != raw.get("seal"):
        raise BadInput(
            f"{name} was changed after it was sealed, so nothing follows from it: take the original, and see what "
            f"`shakedown verify {root}` says"
        )
    judged = [result.cell for result in record.judgement.cells]
    if judged != [cell.id for cell in record.cells] or len(set(judged)) != len(judged):
        raise BadInput(f"{name} is not a record of a trial: its processes and their verdicts do not belong together")
    return Opened(root, record)


def unlike(before: Opened, after: Opened) -> str:
    """Why two records are not about the same workload, in one sentence; empty when they are.

    The same file, the same weights, and the same batches in the cases that both have. A record that has a case more is
    about the same workload.
    """
    found = other_source(before, after.record.trial["workload"], after.record.trial["workload_sha256"])
    if found or before.record.snapshot_sha256 == after.record.snapshot_sha256:
        return found
    one, other = before.record.snapshot, after.record.snapshot
    for name in ("seed", "dimensions", "optimizer", "optimizer_groups"):
        if one.get(name) != other.get(name):
            return f"they start from different snapshots: {name} is not the same"
    for file in ("weights.safetensors", "optimizer.safetensors"):
        hashes = [snapshot["files"].get(file) for snapshot in (one, other)]
        if None not in hashes and hashes[0] != hashes[1]:
            return f"they start from different snapshots: {file} is not the same"
    return _unlike_batches(before, after)


def other_source(baseline: Opened, name: str, sha256: str) -> str:
    """Why the workload `name`, whose file hashes to `sha256`, is not that of `baseline`; empty when it is."""
    known = baseline.record.trial
    if known["workload_sha256"] == sha256:
        return ""
    if known["workload"] == name:
        return f"the file of the workload {name} was changed between them"
    return f"one is about {known['workload']} and the other about {name}"


def _unlike_batches(before: Opened, after: Opened) -> str:
    """Whether the batches of common cases and steps differ. Where their files are not both there, doubt refuses."""
    file = "batches.safetensors"
    if before.record.snapshot["files"].get(file) == after.record.snapshot["files"].get(file):
        return ""
    try:
        paths = [side.path(f"snapshot/{file}") for side in (before, after)]
        loaded = [ev.load_tensors(path) for path in paths if path]
    except (EvidenceError, OSError, ValueError) as error:
        return f"their batches cannot be compared: {error}"
    if len(loaded) < 2:
        return (
            f"their cases differ, and without both snapshot/{file} it cannot be shown that common batches are the same"
        )
    one, other = loaded
    common = one.keys() & other.keys()
    different = sorted(key for key in common if not _equal(one[key], other[key]))
    if not common:
        return "they have no case in common"
    return f"they were given different batches: {different[0]}" if different else ""


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def flat(value: Any, name: str = "") -> dict[str, str]:
    """Leaves of nested tables by dotted name, as text."""
    if not isinstance(value, dict):
        return {name: str(value)}
    found: dict[str, str] = {}
    for key, inner in value.items():
        found |= flat(inner, f"{name}.{key}" if name else str(key))
    return found
