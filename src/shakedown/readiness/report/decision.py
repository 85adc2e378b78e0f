"""The decision in words: the disposition, the four results, what to change, and what to run next."""

from __future__ import annotations

from ..judge.disposition import Decision
from ..record import Record
from .words import Section, Table


def headline(decision: Decision) -> str:
    """One sentence, the disposition first."""
    return f"{decision.disposition}: {decision.sentence}"


def sections(record: Record) -> list[Section]:
    """What a reader should see before anything else."""
    decision = record.judgement.decision
    rows = [(result.name, result.standing, result.sentence) for result in decision.results]
    made = [Section("Decision", [], [Table(("result", "standing", "because"), rows)])]
    if decision.changes:
        changes = [
            (f"{one.kind}: {one.name}", one.advice, ", ".join(one.because), _listed(one.where))
            for one in decision.changes
        ]
        made.append(Section("To be changed", [], [Table(("what", "how", "because", "seen in"), changes)]))
    if decision.blocked_by:
        made.append(Section("Blocked by", list(decision.blocked_by)))
    if decision.next:
        made.append(Section("Next", list(decision.next)))
    return made


def _listed(where: list[str]) -> str:
    return ", ".join(where[:3]) + (f" and {len(where) - 3} more" if len(where) > 3 else "")
