"""Loss parity inside a trial: each process of the target that trained for many steps, against the CPU's runs."""

from __future__ import annotations

from pathlib import Path

from .. import evidence as ev
from ..errors import EvidenceError
from ..evidence.failure import Failure
from ..evidence.losses import LossRuns
from ..requirements import Requirements
from .parity import Rule, compare
from .parity_results import PASSING, UNDECIDED, ParityResult
from .results import Cell, Finding

WITH_IT = (
    "by itself it passes no training: gradients and updated weights of steps 1 and k are judged in the other cells"
)


def results(root: Path, cells: list[Cell], requirements: Requirements) -> list[ParityResult]:
    """One result for each process of the target that was to train for many steps, in the order of the cells."""
    own = [cell for cell in cells if cell.kind == "parity"]
    references = {cell.dtype: cell for cell in own if cell.mode == "reference"}
    return [_result(root, cell, references, requirements) for cell in own if cell.mode != "reference"]


def findings(root: Path, cells: list[Cell], requirements: Requirements) -> list[Finding]:
    """``loss-parity(class)`` for each result, ``loss-parity(plain-rule)`` where only that rule fails. What could not be decided
    does not fail: it stays open.
    """
    found = []
    for one in results(root, cells, requirements):
        fails = one.passed is False
        word = "plain-rule" if fails and one.parity in (*PASSING, *UNDECIDED) else one.parity
        found.append(Finding(word=f"loss-parity({word})", cell=one.cell, case=one.case, text=one.text, fails=fails))
    return found


def _result(root: Path, cell: Cell, references: dict[str, Cell], requirements: Requirements) -> ParityResult:
    case = cell.cases[0]
    named = {"cell": cell.id, "case": case, "mode": cell.mode}
    reference = references.get(cell.dtype)
    try:
        if reference is None:
            raise EvidenceError(f"no run of the CPU in {cell.dtype} was planned")
        theirs, mine = _read(root, reference, case), _read(root, cell, case)
        _blendable(theirs, mine)
        by_role = {run.role: run for run in theirs.runs}
        (candidate,) = mine.runs
        if reason := by_role["reference"].reason or candidate.reason:
            raise EvidenceError(reason)
        if candidate.samples_sha256 != by_role["reference"].samples_sha256:
            raise EvidenceError(
                "the batches are not those of the CPU: make_batch() does not repeat itself under one seed"
            )
        found = compare(
            by_role["reference"],
            [run for run in theirs.runs if run.role == "twin"],
            candidate,
            rule(requirements),
            low=by_role.get("low"),
            repeat=by_role.get("repeat"),
        )
    except (EvidenceError, ValueError, KeyError) as error:
        found = ParityResult(
            dtype=cell.dtype, device=cell.target, parity="untested", passed=None, text=str(error), steps=0, twins=0
        )
    return found.model_copy(update=named | {"notes": [*found.notes, WITH_IT]})


def rule(requirements: Requirements) -> Rule:
    """What the requirements allow."""
    asked = requirements.parity
    plain = asked.tolerance or None
    return Rule(allowed_ratio=asked.allowed_ratio, limit=asked.limit, tolerance=plain, at=tuple(asked.at))


def _read(root: Path, cell: Cell, case: str) -> LossRuns:
    """What a process left, or why it left nothing."""
    folder = root / "evidence" / cell.id
    if cell.outcome.status != "finished":
        raise EvidenceError(f"{cell.id}: {cell.outcome.status}: {cell.outcome.reason}")
    failed = folder / f"{case}.failure.json"
    if failed.exists():
        failure = ev.read(Failure, failed)
        raise EvidenceError(f"{cell.id}: {failure.error}: {failure.message}")
    return ev.read(LossRuns, folder / f"{case}.losses.json")


def _blendable(one: LossRuns, other: LossRuns) -> None:
    differs = [
        f"{name} differs"
        for name in sorted({*one.identity, *other.identity})
        if one.identity.get(name) != other.identity.get(name)
    ]
    differs += ["the snapshots differ"] * (one.snapshot_sha256 != other.snapshot_sha256)
    differs += ["the requirements differ"] * (one.requirements_sha256 != other.requirements_sha256)
    if differs:
        raise EvidenceError("not comparable: " + "; ".join(differs))
