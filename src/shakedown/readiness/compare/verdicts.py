"""Verdicts, results of the decision and findings of two records.

A verdict is worse when something that was shown is so no more: it failed, or it was not tested. What failed before, or was
never shown, cannot get lost.
"""

from __future__ import annotations

from ..judge.disposition import worse
from ..judge.parity import ParityResult
from ..judge.results import FAILED, CaseResult, CellResult, Verdict
from .results import Change, FindingChange, ResultChange, VerdictChange
from .sides import Opened


def verdicts(before: Opened, after: Opened) -> tuple[list[VerdictChange], int]:
    """What is not as it was, or failed before and still does; and how many processes are as they were."""
    made: list[VerdictChange] = []
    unchanged = 0
    for cell in dict.fromkeys((*before.cells, *after.cells)):
        old, new = (side.cells[cell][1] if cell in side.cells else None for side in (before, after))
        whole = _change(after, cell, "", old, new)
        parts = [
            _change(after, cell, case, _case(old, case), _case(new, case)) for case in _cases(old, new) if old and new
        ]
        found = [one for one in (whole, *parts) if one is not None]
        made += found
        unchanged += not found
    return made, unchanged


def _cases(old: CellResult | None, new: CellResult | None) -> list[str]:
    return list(dict.fromkeys(case.case for result in (old, new) if result for case in result.cases))


def _case(result: CellResult | None, case: str) -> CaseResult | None:
    return next((one for one in result.cases if one.case == case), None) if result else None


def _change(
    of: Opened, cell: str, case: str, old: CellResult | CaseResult | None, new: CellResult | CaseResult | None
) -> VerdictChange | None:
    """What became of one process or case; `of` is the later record, whose words explain it."""
    before, after = (one.verdict if one else None for one in (old, new))
    change = kind_of(before, after)
    if change is None:
        return None
    why = "" if new is None else new.reason
    if new is None:
        why = "this record has no such case" if case else "this record has no such process"
    elif not why and after in FAILED:
        why = _first_finding(of, cell, new)
    return VerdictChange(cell=cell, case=case, before=before, after=after, change=change, why=why)


def _first_finding(of: Opened, cell: str, result: CellResult | CaseResult) -> str:
    """The first thing that is wrong with the numbers, or else what another check found."""
    if isinstance(result, CaseResult):
        return result.findings[0] if result.findings else ""
    said = [f"{case.case}: {case.findings[0]}" for case in result.cases if case.findings]
    said += [f"{one.word}: {one.text}" for one in of.record.judgement.findings if one.fails and one.cell == cell]
    return said[0] if said else ""


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


def regressions(changes: list[VerdictChange], results: list[ResultChange]) -> list[str]:
    """Each verdict that is worse than it was, in words: results first."""
    said = [
        f"{one.name} was {one.before!r} and is {one.after!r} now: {one.why}"
        if one.after
        else f"{one.name} was {one.before!r} and is not tested now"
        for one in results
        if one.regression
    ]
    return said + [
        f"{one.cell}{f' {one.case}' if one.case else ''} matched and {_now(one)}{f': {one.why}' if one.why else ''}"
        for one in changes
        if one.regression
    ]


def _now(one: VerdictChange) -> str:
    if one.change == "no longer tested":
        return "is not tested now"
    return f"is a {one.after} now" if one.after == "mismatch" else f"ended as {one.after} now"


def results(before: Opened, after: Opened) -> list[ResultChange]:
    """The disposition, the four results and loss parity, where they are not what they were."""
    old, new = (side.record.judgement.decision for side in (before, after))
    made = []
    decided = (
        before.record.upgraded_from is None and after.record.upgraded_from is None
    )  # older versions did not decide
    if decided and old.disposition != new.disposition:
        got_worse = worse(old.disposition, new.disposition)
        made.append(_result("disposition", old.disposition, new.disposition, got_worse, new.sentence))
    was, now = ({one.name: one for one in decision.results} for decision in (old, new))
    for name, mine in now.items():
        theirs = was.get(name)
        if theirs is not None and theirs.standing != mine.standing:
            made.append(_result(name, theirs.standing, mine.standing, theirs.standing == "met", mine.sentence))
    losses = [{_place(one): one for one in side.record.judgement.parity} for side in (before, after)]
    for place in dict.fromkeys((*losses[0], *losses[1])):
        one, other = (found.get(place) for found in losses)
        if one is not None and other is not None and one.parity == other.parity:
            continue
        lost = one is not None and one.passed is True and (other is None or other.passed is not True)
        text = other.text if other is not None else ""
        before_class, after_class = (found.parity if found is not None else None for found in (one, other))
        made.append(_result(f"loss parity {place}", before_class, after_class, lost, text))
    return made


def _result(name: str, before: str | None, after: str | None, regression: bool, why: str) -> ResultChange:
    return ResultChange(name=name, before=before, after=after, regression=regression, why=why)


def _place(one: ParityResult) -> str:
    return " ".join(part for part in (one.mode, one.dtype, one.case, one.cell) if part)


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
