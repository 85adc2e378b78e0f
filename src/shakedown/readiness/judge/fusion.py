"""Did adaptive eager fuse what it could? The share of a steady step, and the reason of each operator that is outside."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from .. import evidence as ev
from ..errors import EvidenceError
from ..evidence import Frozen
from ..evidence.fusion import Fusion, FusionGroup
from ..requirements import Requirements
from .results import Cell, Finding

LEAST_SHARE = 0.5  # under half of a step fused, the mode is adaptive in name: what it saves is the smaller part


class NotFused(Frozen):
    """Operators of a steady step outside fused programs, with one reason."""

    reason: str
    operators: dict[str, int]
    count: int


class FusionSummary(Frozen):
    """``share`` of the operators of a steady step ran in fused programs, ``share_of_recorded`` of those that adaptive eager
    could have fused. ``operators_per_run`` is how many a run of a fused program replaces, on average: two are hardly a
    gain. None where nothing ran.
    """

    fused: int
    one_by_one: int
    total: int
    share: float | None
    share_of_recorded: float | None
    operators_per_run: float | None
    settled: bool
    groups: int
    not_fused: list[NotFused]
    flushes: dict[str, int]


def summarise(fusion: Fusion) -> FusionSummary | None:
    """The figures of one case; None where they cannot be seen."""
    step = fusion.step
    if step is None:
        return None
    total = sum(step.operators.values()) + sum(step.fallbacks.values())
    recorded = step.fused + step.one_by_one
    outside: list[NotFused] = []
    rest = Counter(step.operators)
    for group in step.groups:
        for name, count in group.operators.items():
            rest[name] -= count * (group.runs_fused + group.runs_one_by_one)
        if group.runs_one_by_one:
            names = {name: count * group.runs_one_by_one for name, count in group.operators.items()}
            outside.append(NotFused(reason=_reason(group, fusion), operators=names, count=sum(names.values())))
    alone = dict((+rest).most_common())
    if alone:
        flushes = ", ".join(f"{reason} {count}" for reason, count in step.flushes.items()) or "none"
        outside.append(
            NotFused(
                reason=f"ran at once, or alone between two flushes (of the step: {flushes})",
                operators=alone,
                count=sum(alone.values()),
            )
        )
    if step.fallbacks:
        outside.append(NotFused(reason="ran on the CPU", operators=step.fallbacks, count=sum(step.fallbacks.values())))
    return FusionSummary(
        fused=step.fused,
        one_by_one=step.one_by_one,
        total=total,
        share=min(1.0, step.fused / total) if total else None,
        share_of_recorded=step.fused / recorded if recorded else None,
        operators_per_run=step.fused / runs if (runs := sum(group.runs_fused for group in step.groups)) else None,
        settled=fusion.settled,
        groups=len(step.groups),
        not_fused=sorted(outside, key=lambda one: -one.count),
        flushes=step.flushes,
    )


def _reason(group: FusionGroup, fusion: Fusion) -> str:
    if group.errors:
        return f"the fused program of group {group.name} failed to compile: {group.errors[0].splitlines()[0]}"
    if not group.runs_before:
        return f"group {group.name} came for the first time: each step has another path"
    if not group.compile_seconds:
        return f"the fused program of group {group.name} was not ready (compiler {fusion.compiler or 'not started'})"
    return f"no program of group {group.name} returns the results that were alive"


def read(root: Path, cell: Cell) -> dict[str, Fusion]:
    """The documents that `cell` left, by case. Raises :class:`EvidenceError` when one is damaged."""
    paths = {case: root / "evidence" / cell.id / f"{case}.fusion.json" for case in cell.cases}
    return {case: ev.read(Fusion, path) for case, path in paths.items() if path.exists()}


def findings(root: Path, cells: list[Cell], requirements: Requirements) -> list[Finding]:
    """``not-fused`` where adaptive eager was asked for and most of a steady step runs outside fused programs."""
    found: list[Finding] = []
    for cell in cells:
        if cell.mode != "adaptive" or cell.outcome.status == "untested":
            continue
        try:
            documents = read(root, cell)
        except EvidenceError as error:
            found.append(Finding(word="untested(fusion)", cell=cell.id, text=str(error), fails=False))
            continue
        for case, fusion in documents.items():
            summary = summarise(fusion)
            if summary is None:
                word, text = "unobservable(fusion)", fusion.reason
            elif summary.share is not None and summary.share < LEAST_SHARE:
                word, text = "not-fused", _text(summary)
            else:
                continue
            found.append(Finding(word=word, cell=cell.id, case=case, text=text, fails=False))
    return found


def _text(summary: FusionSummary) -> str:
    reasons = "; ".join(f"{one.count} {one.reason}" for one in summary.not_fused[:4])
    settled = "" if summary.settled else " before fusing had settled"
    return f"{summary.fused} of {summary.total} operators of a step ran in fused programs{settled}: {reasons}"
