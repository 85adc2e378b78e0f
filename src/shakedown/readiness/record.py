"""Stage 7: one versioned, self-contained artefact. It can be checked and judged again without the target, or torch.

``record.json`` names every file of the run by size and SHA-256 and ends in a seal, the hash of its own other fields.
The seal shows damage and careless edits, not a determined forger; who signs records signs this hash.

Schema history: ``/1`` first version; ``/2`` all kinds of evidence, timings pooled over processes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

import shakedown

from . import evidence as ev
from . import requirements
from .errors import EvidenceError, RecordError, TrialError
from .evidence import Evidence, Frozen
from .judge import decision
from .judge.judgement import Judgement
from .judge.results import Cell

SCHEMA = "shakedown.record/2"
LABELS: dict[str, str] = {
    "rehearsal": "REHEARSAL: the target was Shakedown's embedded device, not AWS Trainium. Nothing here measures "
    "Trainium.",
    "measurement": "Measured on the named device.",
    "self-check": "Self-check: the CPU was compared with itself. This shows that the trial works, and says nothing of "
    "any device.",
}


class FileEntry(Frozen):
    """A file of the run, by its size and SHA-256."""

    nbytes: int
    sha256: str


class Record(Frozen):
    """The whole trial as one document."""

    schema_version: str = SCHEMA
    created: str
    shakedown_version: str
    label: Literal["rehearsal", "measurement", "self-check"]
    label_text: str
    trial: dict[str, Any]
    identity: dict[str, Any]
    snapshot: dict[str, Any]
    snapshot_sha256: str
    requirements: requirements.Requirements
    requirements_sha256: str
    cells: list[Cell]
    judgement: Judgement
    files: dict[str, FileEntry]
    seal: str = ""

    @property
    def exit_code(self) -> int:
        """0 only when what was tested is suitable."""
        return 0 if self.judgement.decision.suitable else 1


class Verification(Frozen):
    """What came of checking a record: no problems means verified."""

    directory: str
    verified: bool
    problems: list[str]
    files_checked: int
    decision_in_record: str
    decision_judged_again: str


def seal(root: Path, description: dict[str, Any], cells: list[Cell]) -> Record:
    """Judge the run in `root`, list its files, and write ``record.json``."""
    demand = requirements.unlock(root / "requirements.json")
    label = _label(root, description["target"], cells)
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
        label_text=LABELS[label],
        trial=description,
        identity=_identity(root, cells),
        snapshot=json.loads((root / "snapshot" / "snapshot.json").read_text()),
        snapshot_sha256=ev.sha256(root / "snapshot" / "snapshot.json"),
        requirements=demand,
        requirements_sha256=ev.sha256(root / "requirements.json"),
        cells=cells,
        judgement=judgement,
        files={
            name: FileEntry(nbytes=(root / name).stat().st_size, sha256=ev.sha256(root / name)) for name in _files(root)
        },
    )
    sealed = unsealed.model_copy(update={"seal": seal_of(unsealed)})
    ev.write_atomic(root / "record.json", (sealed.model_dump_json(indent=1) + "\n").encode())
    return sealed


def seal_of(record: Record) -> str:
    """SHA-256 over every field but the seal, in canonical JSON."""
    return hashlib.sha256(ev.canonical(record.model_dump(mode="json", exclude={"seal"}))).hexdigest()


def _files(root: Path) -> list[str]:
    """Every file that the record answers for: all but itself, the report made from it, caches and unfinished parts."""
    names = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        unfinished = path.name.startswith(".") or path.suffix == ".part"
        if (
            path.is_file()
            and not unfinished
            and name not in ("record.json", "report.md")
            and name.split("/")[0] not in ("cache", "scratch")
        ):
            names.append(name)
    return names


def _evidence(root: Path, cells: list[Cell]) -> list[Evidence]:
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


def _label(root: Path, target: str, cells: list[Cell]) -> Literal["rehearsal", "measurement", "self-check"]:
    """Rehearsal unless a process on `neuron` proved that another product answered: doubt never becomes a
    measurement.
    """
    if target == "cpu":
        return "self-check"
    if target != "neuron":
        return "measurement"
    reference = {cell.id for cell in cells if cell.mode == "reference"}
    families = {e.identity["also"]["family"] for e in _evidence(root, cells) if e.cell not in reference}
    return "measurement" if families and families <= {"native", "legacy"} else "rehearsal"


def _identity(root: Path, cells: list[Cell]) -> dict[str, Any]:
    """Host and versions, equal in all evidence (judgement refuses it otherwise), and what differs by cell."""
    found = _evidence(root, cells)
    return {
        "fixed": found[0].identity["fixed"] if found else {},
        "cells": {e.cell: e.identity["also"] for e in found},
    }


def load(root: Path) -> Record:
    """Read ``record.json``. Raises :class:`RecordError` when it is missing, damaged or of another version."""
    path = root / "record.json"
    try:
        raw = json.loads(path.read_text())
    except OSError as error:
        raise RecordError(f"there is no record in {root}: {error.strerror}") from None
    except ValueError as error:
        raise RecordError(f"{path} is not JSON: {error}") from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA:
        raise RecordError(f"{path} has schema {version!r}; this version reads {SCHEMA}")
    try:
        return Record.model_validate(raw)
    except ValidationError as error:
        raise RecordError(f"{path} does not follow {SCHEMA}: {error.errors()[0]['msg']}") from None


def verify(root: Path) -> Verification:
    """Check seal and files, then judge the evidence again and compare the verdicts."""
    record = load(root)
    problems = [] if seal_of(record) == record.seal else ["the record was changed after it was sealed"]
    for name, entry in record.files.items():
        path = root / name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif ev.sha256(path) != entry.sha256:
            problems.append(f"{name} was changed")
    strangers = set(_files(root)) - record.files.keys()
    problems += [f"{name} is not in the record" for name in sorted(strangers) if name.startswith("evidence/")]
    for found in _evidence(root, record.cells):
        if found.requirements_sha256 != record.requirements_sha256:
            problems.append(f"{found.cell}/{found.case} was made under other requirements")
        if found.snapshot_sha256 != record.snapshot_sha256:
            problems.append(f"{found.cell}/{found.case} was made from another snapshot")
    again = "not possible"
    try:
        judged, _ = decision.judge(root, record.cells, record.requirements, rehearsal=record.label == "rehearsal")
        again = judged.decision.disposition
        problems += _differences(record.judgement, judged)
    except (TrialError, OSError, ValueError, KeyError) as error:
        problems.append(f"the evidence cannot be judged again: {error}")
    return Verification(
        directory=str(root),
        verified=not problems,
        problems=problems,
        files_checked=len(record.files),
        decision_in_record=record.judgement.decision.disposition,
        decision_judged_again=again,
    )


def _differences(before: Judgement, now: Judgement) -> list[str]:
    """Verdicts that came out differently. Last digits may differ between processors; verdicts may not."""
    found = []
    was, now_is = before.decision.disposition, now.decision.disposition
    if was != now_is:
        found.append(f"the decision was {was!r} and is {now_is!r} when judged again")
    for old, new in zip(before.cells, now.cells, strict=True):
        if old.verdict != new.verdict:
            found.append(f"{old.cell} was {old.verdict!r} and is {new.verdict!r} when judged again")
        for case, case_again in zip(old.cases, new.cases, strict=True):
            if case.verdict != case_again.verdict:
                found.append(
                    f"{old.cell}/{case.case} was {case.verdict!r} and is {case_again.verdict!r} when judged again"
                )
    return found
