"""Is a record what it was when it was sealed, and does its evidence still lead to its verdicts?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from .. import evidence as ev
from ..evidence import Frozen, printable, untrusted
from ..judge import decision
from ..judge.judgement import Judgement
from . import reading, sealing
from .document import SCHEMA, Record

_CONTENT = "evidence/tensors/"  # files there are named by the beginning of their own hash


class Verification(Frozen):
    """What came of checking a record: no problems means verified.

    Notes are for the reader and refute nothing: an old record whose evidence is judged differently by today's rules.
    """

    directory: str
    verified: bool
    problems: list[str]
    notes: list[str] = Field(default=[])
    record_schema: str = SCHEMA
    shakedown_version: str = ""
    files_checked: int
    decision_in_record: str
    decision_judged_again: str


def verify(root: Path) -> Verification:
    """Check seal and files, then judge the evidence again and compare the verdicts.

    Raises :class:`RecordError` where there is no readable record.
    """
    raw = reading.exact(root)
    record = reading.understood(untrusted.shown(raw), root / reading.NAME)
    problems = [] if sealing.digest(raw) == raw.get("seal") else ["record.json was changed after it was sealed"]
    problems += _files(root, record)
    problems += _foundations(root, record)
    older = record.judgement.older
    notes = [record.says_not_recorded] if record.says_not_recorded else []
    again, differences = _again(root, record)
    if record.upgraded_from is None:
        problems += differences
    elif differences:
        rules = f"its verdicts were made by older rules, those of {record.upgraded_from}"
        notes.append(f"{rules}; judged by today's: {'; '.join(differences)}")
    return Verification(
        directory=str(root),
        verified=not problems,
        problems=problems,
        notes=notes,
        record_schema=record.upgraded_from or record.schema_version,
        shakedown_version=record.shakedown_version,
        files_checked=len(record.files),
        decision_in_record=f"verdict {older.verdict}" if older else record.judgement.decision.disposition,
        decision_judged_again=again,
    )


def _files(root: Path, record: Record) -> list[str]:
    """What is wrong with the files, one by one."""
    there = reading.files(root)
    problems = []
    for name, entry in record.files.items():
        if name not in there:
            problems.append(f"{name} is missing")
            continue
        found = ev.sha256(root / name) if there[name] == entry.nbytes else ""
        if found != entry.sha256:
            size = "" if found else f": it has {there[name]:,} bytes, and had {entry.nbytes:,}"
            problems.append(f"{name} was changed{size}")
        elif name.startswith(_CONTENT) and not found.startswith(Path(name).stem):
            problems.append(f"{name} does not hold what its name says: its hash begins with {found[:16]}")
    strangers = sorted(name for name in there if name not in record.files and sealing.answered_for(name))
    # What a reader puts beside the record (notes, an export) is theirs; what judging reads is not.
    return problems + [
        f"{printable(n)} is not in the record" for n in strangers if n.startswith(("evidence/", "snapshot/"))
    ]


def _foundations(root: Path, record: Record) -> list[str]:
    """Evidence must have been made from this snapshot, under these requirements."""
    problems = []
    for found in sealing.evidence_of(root, record.cells):
        if found.requirements_sha256 != record.requirements_sha256:
            problems.append(f"{found.cell}/{found.case} was made under other requirements")
        if found.snapshot_sha256 != record.snapshot_sha256:
            problems.append(f"{found.cell}/{found.case} was made from another snapshot")
    return problems


def _again(root: Path, record: Record) -> tuple[str, list[str]]:
    """The disposition when judged again, and every verdict that came out differently."""
    try:
        judged, _ = decision.judge(root, record.cells, record.requirements, rehearsal=record.label == "rehearsal")
    except Exception as error:  # evidence of a stranger can break a judge in ways that no list foresees
        said = printable(f"{type(error).__name__}: {error}".splitlines()[0])[:300]
        return "not possible", [f"the evidence cannot be judged again: {said}"]
    differences = _differences(record, judged)
    unread = [case.reason for cell in judged.cells for case in cell.cases if "this version reads" in case.reason]
    return judged.decision.disposition, [*differences, *(unread[:1] if differences else [])]


def _differences(record: Record, now: Judgement) -> list[str]:
    """Verdicts that came out differently. Last digits may differ between processors; verdicts may not."""
    before, found = record.judgement, []
    if before.older is None and before.decision.disposition != now.decision.disposition:
        found.append(_differs("the decision", before.decision.disposition, now.decision.disposition))
    verdicts, again = _verdicts(before), _verdicts(now)
    if verdicts.keys() != again.keys():
        odd = ", ".join(sorted(verdicts.keys() ^ again.keys())[:5])
        found.append(f"the record judges other cells or cases than it has: {odd}")
    return found + [_differs(n, v, again[n]) for n, v in verdicts.items() if n in again and again[n] != v]


def _differs(name: str, before: Any, now: Any) -> str:
    return f"{name} was {before!r} and is {now!r} when judged again"


def _verdicts(judgement: Judgement) -> dict[str, str]:
    found: dict[str, str] = {cell.cell: cell.verdict for cell in judgement.cells}
    return found | {f"{cell.cell}/{case.case}": case.verdict for cell in judgement.cells for case in cell.cases}
