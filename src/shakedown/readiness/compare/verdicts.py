"""Verdicts, disposition and findings of two records."""

from __future__ import annotations

from ..judge.results import FAILED, CaseResult, CellResult, Verdict
from .results import Change, FindingChange, VerdictChange
from .sides import Opened

# From best to worst. Inconclusive can still become anything; blocked cannot become better without a change.
DISPOSITIONS = ("suitable", "needs-change", "inconclusive", "blocked")
_VERDICTS = ("passed", "inconclusive", "failed")


def verdicts(before: Opened, after: Opened) -> tuple[list[VerdictChange], int]:
    """What is not as it was, or failed before and still does; and how many processes are as they were."""
    made: list[VerdictChange] = []
    unchanged = 0
    for cell in dict.fromkeys((*before.cells, *after.cells)):
        old, new = (side.cells[cell][1] if cell in side.cells else None for side in (before, after))
        whole = _change(cell, "", old, new)
        parts = [_change(cell, case, _case(old, case), _case(new, case)) for case in _cases(old, new) if old and new]
        found = [one for one in (whole, *parts) if one is not None]
        made += found
        unchanged += not found
    return made, unchanged


def _cases(old: CellResult | None, new: CellResult | None) -> list[str]:
    return list(dict.fromkeys(case.case for result in (old, new) if result for case in result.cases))


def _case(result: CellResult | None, case: str) -> CaseResult | None:
    return next((one for one in result.cases if one.case == case), None) if result else None


def _change(
    cell: str, case: str, old: CellResult | CaseResult | None, new: CellResult | CaseResult | None
) -> VerdictChange | None:
    before, after = (one.verdict if one else None for one in (old, new))
    change = kind_of(before, after)
    if change is None:
        return None
    why = "" if new is None else new.reason
    if new is None:
        why = "this record has no such case" if case else "this record has no such process"
    elif not why and after in FAILED:
        why = _first_finding(new)
    return VerdictChange(cell=cell, case=case, before=before, after=after, change=change, why=why)


def _first_finding(result: CellResult | CaseResult) -> str:
    if isinstance(result, CaseResult):
        return result.findings[0] if result.findings else ""
    return next((f"{case.case}: {case.findings[0]}" for case in result.cases if case.findings), "")


def kind_of(before: Verdict | None, after: Verdict | None) -> Change | None:
    """What became of one verdict; None where nothing did. ``untested`` and no such process are the same: no verdict."""
    had, has = before not in (None, "untested"), after not in (None, "untested")
    if not had and not has:
        return None
    if not has:
        return "no longer tested"
    if not had:
        return "fails now" if after in FAILED else "newly tested"
    if before in FAILED:
        return "still fails" if after in FAILED else "fixed"
    return "broken" if after in FAILED else None


def regressions(changes: list[VerdictChange], before: Opened, after: Opened) -> list[str]:
    """Each verdict that is worse than it was, then the disposition, in words."""
    said = [
        f"{one.cell}{f' {one.case}' if one.case else ''} matched and {_now(one)}{f': {one.why}' if one.why else ''}"
        for one in changes
        if one.regression
    ]
    old, new = before.record.judgement.verdict, after.record.judgement.verdict
    if _VERDICTS.index(new) > _VERDICTS.index(old):
        said.append(f"the trial {'passed' if old == 'passed' else 'was ' + old} and is {new} now")
    one, other = before.side().disposition, after.side().disposition
    if one in DISPOSITIONS and other in DISPOSITIONS and DISPOSITIONS.index(other) > DISPOSITIONS.index(one):
        said.append(f"the disposition was {one!r} and is {other!r} now")
    return said


def _now(one: VerdictChange) -> str:
    if one.change == "no longer tested":
        return "is not tested now"
    return f"is a {one.after} now" if one.after == "mismatch" else f"ended as {one.after} now"


def findings(before: Opened, after: Opened) -> list[FindingChange]:
    """Findings by their word and place, since texts hold figures that are never twice the same.

    What is gone is looked for only where the later record tested anything: a process that did not run found nothing.
    """
    old, new = (_by_place(side) for side in (before, after))
    made: dict[tuple[str, str, bool], tuple[str, list[str]]] = {}
    for change, mine, other, tested in (("new", new, old, None), ("gone", old, new, after)):
        for (word, cell, case), (text, fails) in mine.items():
            if (word, cell, case) in other or (tested is not None and not _tested(tested, cell, case)):
                continue
            made.setdefault((change, word, fails), (text, []))[1].append(f"{cell} {case}".strip())
    return [
        FindingChange(change=change, word=word, text=text, fails=fails, where=where)  # type: ignore[arg-type]
        for (change, word, fails), (text, where) in sorted(made.items(), key=lambda item: (not item[0][2], item[0][:2]))
    ]


def _by_place(side: Opened) -> dict[tuple[str, str, str], tuple[str, bool]]:
    found: dict[tuple[str, str, str], tuple[str, bool]] = {}
    for one in side.record.judgement.findings:
        found.setdefault((one.word, one.cell, one.case), (one.text, one.fails))
    return found


def _tested(side: Opened, cell: str, case: str) -> bool:
    if not cell:
        return True
    result = side.cells[cell][1] if cell in side.cells else None
    if result is None or result.verdict == "untested":
        return False
    one = _case(result, case)
    return not case or (one is not None and one.verdict != "untested")
