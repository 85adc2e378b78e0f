"""Judge a run that has ended, list its files, and write the record."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import shakedown

from .. import evidence as ev
from .. import requirements
from ..errors import EvidenceError
from ..evidence import Evidence, untrusted
from ..judge import decision
from ..judge.results import Cell
from . import reading
from .document import LABELS, FileEntry, Identity, Label, Record, Trial

_DERIVED = ("record.json", "report.", "comparison.")  # made from the record, or the record itself
_UNKEPT = ("cache", "scratch")


def seal(root: Path, description: dict[str, Any], cells: list[Cell]) -> Record:
    """Judge the run in `root`, list its files, and write ``record.json``. Returns what a reader of it gets."""
    demand = requirements.unlock(root / "requirements.json")
    label = label_of(root, description["target"], cells)
    judgement, vectors = decision.judge(root, cells, demand, rehearsal=label == "rehearsal")
    plain = {
        cell: {case: [dataclasses.asdict(v) for v in judged] for case, judged in cases.items()}
        for cell, cases in vectors.items()
    }
    ev.write_atomic(root / "vectors.json", json.dumps(plain, indent=1, allow_nan=False).encode())
    unsealed = Record(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        shakedown_version=shakedown.__version__,
        label=label,
        label_text=_on_purpose(root, cells) + LABELS[label],
        trial=cast(Trial, description),
        identity=_identity(root, cells),
        snapshot=untrusted.read_json(root / "snapshot" / "snapshot.json"),
        snapshot_sha256=ev.sha256(root / "snapshot" / "snapshot.json"),
        requirements=demand,
        requirements_sha256=ev.sha256(root / "requirements.json"),
        cells=cells,
        judgement=judgement,
        files={
            name: FileEntry(nbytes=(root / name).stat().st_size, sha256=ev.sha256(root / name))
            for name in sorted(reading.files(root))
            if answered_for(name)
        },
    )
    sealed = unsealed.model_copy(update={"seal": seal_of(unsealed)})
    ev.write_atomic(root / reading.NAME, (sealed.model_dump_json(indent=1) + "\n").encode())
    return reading.load(root)


def _on_purpose(root: Path, cells: list[Cell]) -> str:
    """What comes before the label of a device that was made wrong for the sake of the trial, so that nobody takes it for
    another; nothing where it was left alone.
    """
    made = {name for one in evidence_of(root, cells) for name in one.identity["also"].get("faults", [])}
    return f"FAULTY ON PURPOSE ({', '.join(sorted(made))}). " if made else ""


def seal_of(record: Record) -> str:
    """The seal that belongs to `record`."""
    return digest(json.loads(record.model_dump_json()))


def digest(raw: dict[str, Any]) -> str:
    """SHA-256 over every field of a document but the seal, in canonical JSON. It was the same in all versions."""
    return hashlib.sha256(ev.canonical({name: value for name, value in raw.items() if name != "seal"})).hexdigest()


def answered_for(name: str) -> bool:
    """Whether the record answers for a file: not for itself, reports made from it, caches, unfinished parts, and what has a
    name that no record can hold (hidden files above all), so that nothing of the trial has it.
    """
    unfinished = name.endswith(".part") or not untrusted.is_relative_path(name)
    return not unfinished and not name.startswith(_DERIVED) and name.split("/")[0] not in _UNKEPT


def evidence_of(root: Path, cells: list[Cell]) -> list[Evidence]:
    """Everything that processes wrote about cases and that can be read."""
    found = []
    for cell in cells:
        for case in cell.cases:
            path = root / "evidence" / cell.id / f"{case}.json"
            if path.exists():
                try:
                    found.append(ev.read(Evidence, path))
                except EvidenceError:
                    continue  # judgement reports it, with the reason
    return found


def label_of(root: Path, target: str, cells: list[Cell]) -> Label:
    """Rehearsal unless a process on `neuron` proved that another product answered: doubt never becomes a
    measurement.
    """
    if target == "cpu":
        return "self-check"
    if target != "neuron":
        return "measurement"
    reference = {cell.id for cell in cells if cell.mode == "reference"}
    families = {e.identity["also"]["family"] for e in evidence_of(root, cells) if e.cell not in reference}
    return "measurement" if families and families <= {"native", "legacy"} else "rehearsal"


def _identity(root: Path, cells: list[Cell]) -> Identity:
    """Host and versions, equal in all evidence (judgement refuses it otherwise), and what differs by cell."""
    found = evidence_of(root, cells)
    return {
        "fixed": found[0].identity["fixed"] if found else {},
        "cells": {e.cell: e.identity["also"] for e in found},
    }
