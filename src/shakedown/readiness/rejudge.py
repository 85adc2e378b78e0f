"""The evidence in a directory, judged by this version's rules: of a finished trial, or of one that was interrupted.

Needs neither torch nor the target, and writes nothing.
"""

from __future__ import annotations

from pathlib import Path

from . import evidence as ev
from . import matrix, record, requirements, state, targets
from .errors import BadInput, EvidenceError, RecordError
from .evidence import Frozen
from .judge import decision
from .judge.disposition import Decision
from .judge.results import Cell
from .record.document import Label


class Rejudged(Frozen):
    """A decision made now. ``recorded`` is the disposition that the record holds, None where there is no record yet, and
    ``same`` whether the whole decision is the recorded one.
    """

    directory: str
    label: Label
    recorded: str | None
    same: bool | None
    decision: Decision


def judge(root: Path) -> Rejudged:
    """Judge what lies in `root`.

    Raises:
        BadInput: there is no trial, or what describes it cannot be read.
    """
    if (root / record.NAME).exists():
        return _finished(root)
    if not (root / "trial.json").exists():
        raise BadInput(
            f"there is no trial in {root}: neither a record nor the beginning of one (`shakedown run` makes one)"
        )
    try:
        known = ev.read(state.State, root / "trial.json")
        demand = requirements.unlock(root / "requirements.json")
    except EvidenceError as error:
        raise BadInput(str(error)) from None
    target = targets.get(known.target)
    shapes = matrix.Shapes(tuple(known.plain), known.varied)
    cells = matrix.plan(
        target, tuple(known.modes), tuple(known.dtypes), shapes, demand, quick=known.quick, trace=known.trace
    )
    return _judged(root, state.outcomes(root, cells), demand, record.label_of(root, known.target, cells), None)


def _finished(root: Path) -> Rejudged:
    try:
        sealed = record.load(root)
    except RecordError as error:
        raise BadInput(str(error)) from None
    return _judged(root, sealed.cells, sealed.requirements, sealed.label, sealed)


def _judged(
    root: Path, cells: list[Cell], demand: requirements.Requirements, label: Label, sealed: record.Record | None
) -> Rejudged:
    try:
        made, _ = decision.judge(root, cells, demand, rehearsal=label == "rehearsal")
    except Exception as error:  # evidence of a stranger can break a judge in ways that no list foresees
        said = ev.printable(f"{type(error).__name__}: {error}".splitlines()[0])[:300]
        raise BadInput(f"the evidence in {root} cannot be judged: {said}") from None
    before, older = (sealed.judgement.decision, sealed.judgement.older) if sealed is not None else (None, None)
    return Rejudged(
        directory=str(root),
        label=label,
        recorded=f"verdict {older.verdict}" if older else before.disposition if before is not None else None,
        same=made.decision == before if before is not None else None,
        decision=made.decision,
    )
