"""What a trial must remember to go on after an interruption: what was asked, and what became of each process.

``trial.json`` is written before the first cell runs, ``evidence/<cell>/outcome.json`` when a process has ended. A cell with
an outcome is finished and is not run again; one without is run from its beginning.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import shakedown

from . import evidence as ev
from .errors import BadInput, EvidenceError
from .judge.results import Cell, Outcome
from .observe import identity

SCHEMA = "shakedown.trial/1"


class State(ev.Frozen):
    """The request of a trial, and what its evidence rests on."""

    schema_version: str = SCHEMA
    shakedown_version: str
    source_sha256: str
    versions: dict[str, str]
    workload: dict[str, str]
    target: str
    modes: list[str]
    dtypes: list[str]
    plain: list[str]
    varied: dict[str, str]
    quick: bool
    trace: bool
    timeout_seconds: float | None
    requirements_sha256: str
    snapshot_sha256: str


def new(**fields: Any) -> State:
    """The state of a trial that begins now, with this version."""
    return State(
        shakedown_version=shakedown.__version__,
        source_sha256=identity.source_sha256(),
        versions=identity.versions(),
        **fields,
    )


def load(root: Path) -> State:
    """The state of the unfinished trial in `root`.

    Raises:
        BadInput: there is none, it is finished, or what it rests on has changed meanwhile.
    """
    if (root / "record.json").exists():
        raise BadInput(f"the trial in {root} is finished; read {root / 'report.md'}, or start another with a new --out")
    if not (root / "trial.json").exists():
        raise BadInput(f"there is no trial in {root} that could go on; start one with `shakedown run`")
    try:
        state = ev.read(State, root / "trial.json")
    except EvidenceError as error:
        raise BadInput(str(error)) from None
    changed = [
        name
        for name, before, now in (
            ("Shakedown's version", state.shakedown_version, shakedown.__version__),
            ("Shakedown's source", state.source_sha256, identity.source_sha256()),
            ("installed packages", state.versions, identity.versions()),
            ("requirements.json", state.requirements_sha256, _sha256(root / "requirements.json")),
            ("the snapshot", state.snapshot_sha256, _sha256(root / "snapshot" / "snapshot.json")),
            ("the workload", state.workload["sha256"], _sha256(Path(state.workload["path"]))),
        )
        if before != now
    ]
    if changed:
        raise BadInput(
            f"the trial in {root} cannot go on, because it would mix what must not be compared: {', '.join(changed)} "
            "changed since it began. Start a new record with another --out"
        )
    return state


def _sha256(path: Path) -> str:
    return ev.sha256(path) if path.exists() else "missing"


def keep(root: Path, cell: Cell) -> None:
    """Remember that `cell` has ended."""
    ev.write(cell.outcome, root / "evidence" / cell.id / "outcome.json")


def outcomes(root: Path, cells: list[Cell]) -> list[Cell]:
    """`cells` with the outcomes of those that have ended."""
    found = []
    for cell in cells:
        path = root / "evidence" / cell.id / "outcome.json"
        found.append(cell.model_copy(update={"outcome": ev.read(Outcome, path)}) if path.exists() else cell)
    return found


def restored(root: Path, cells: list[Cell]) -> list[Cell]:
    """`cells` with the outcomes of those that have ended; what the others left half done is removed."""
    for cell in cells:
        folder = root / "evidence" / cell.id
        if folder.exists() and not (folder / "outcome.json").exists():
            shutil.rmtree(folder)
    return outcomes(root, cells)


def declared(root: Path) -> dict[str, Any]:
    """What the workload says about itself, as the snapshot process wrote it."""
    return dict(json.loads((root / "logs" / "declared.json").read_text()))
