"""From what failed to what has to change: the name of an operator, a layout, a precision, a shape or a restart.

A finding's word names the change where a check knows it. A mismatch that no word explains is named by its pattern: what the
failing cases have in common that the matching ones do not.
"""

from __future__ import annotations

from typing import Literal

from ..evidence import Frozen
from .results import CaseResult, Cell, Finding
from .seen import UNLIKE, Seen

Kind = Literal["operator", "layout", "precision", "shape", "restart"]
# Which result a failing finding belongs to; what is in neither list is correctness.
PATH_WORDS = (
    "fallback",
    "hidden-fallback",
    "recompile-bound",
    "not-captured",
    "graph-by-operator",
    "graph-split",
    "more-programs-than-expected",
    "partly-compiled",
)
OPERATION_WORDS = ("over-budget", "resume-broken", "cold-start", "warm-start", "memory-grows")
_KINDS: dict[str, Kind] = {
    "operator-differs": "operator",
    "fallback": "operator",
    "fallback-bound": "operator",
    "hidden-fallback": "operator",
    "graph-by-operator": "operator",
    "graph-split": "operator",
    "not-captured": "operator",
    "recompile-bound": "shape",
    "more-programs-than-expected": "shape",
    "resume-broken": "restart",
    "refused": "precision",
    "wrong": "precision",
}
_ADVICE: dict[str, str] = {
    "operator-differs": "keep it off the target, replace it, or have it mended; its neighbours are in the findings",
    "fallback": "replace it, or accept it in the requirements with a budget and a reason",
    "fallback-bound": "replace what runs on the CPU, or raise budgets.fallback_share with a reason",
    "hidden-fallback": "replace it, or find out where it runs: the target's own account leaves it out",
    "graph-by-operator": "replace the operator that has no lowering, or run this part eager",
    "graph-split": "replace the operator that has no lowering, or move it out of the compiled function",
    "not-captured": "remove what ends the capture, or run this part eager",
    "recompile-bound": "pad to a few lengths (`shakedown shapes` plans them)",
    "more-programs-than-expected": "pad to fewer lengths (`shakedown shapes` plans them), or expect more programs",
    "resume-broken": "save and restore what was lost",
    "refused": "keep values of this kind off the target",
    "wrong": "keep values of this kind off the target",
}
_BLOCKING = ("precision-blocked", "over-budget", "task-outside-limit")
_HARD = {"large", "tiny", "ties"}
PLAIN = ("sequence", "single")  # processes that run cases as they are


class Change(Frozen):
    """One named change. ``because`` are the words of the findings, or ``mismatch`` or ``crash``; ``where`` are cells."""

    kind: Kind
    name: str
    advice: str
    because: list[str]
    where: list[str]


def blocks(seen: Seen) -> list[str]:
    """Requirements that the target does not meet and that no named change of the workload would."""
    found = [f"{one.word}: {one.text}" for one in seen.failing() if one.word.startswith(_BLOCKING)]
    sides: dict[tuple[str, str], list[tuple[Cell, CaseResult]]] = {}
    for cell, case in seen.cases():
        if cell.kind in PLAIN and case.verdict != "untested":
            sides.setdefault((cell.mode, cell.dtype), []).append((cell, case))
    for (mode, dtype), own in sides.items():
        if all(case.verdict in ("crashed", "killed") for _, case in own):
            reason = own[0][1].reason.splitlines()[0] if own[0][1].reason else own[0][1].verdict
            found.append(f"{mode} in {dtype} is required and runs no case ({reason})")
    return list(dict.fromkeys(found))


def needed(seen: Seen) -> list[Change]:
    """Every change that has to be made, those that a check named first."""
    named: dict[tuple[Kind, str], tuple[str, list[str], list[str]]] = {}

    def note(kind: Kind, name: str, advice: str, word: str, where: str) -> None:
        _, words, places = named.setdefault((kind, name), (advice, [], []))
        if word not in words:
            words.append(word)
        if where not in places:
            places.append(where)

    for one in seen.findings:
        base = one.word.partition("(")[0]
        if base in _KINDS and (one.fails or base == "fallback"):
            note(_KINDS[base], _name(one), _ADVICE[base], one.word, one.cell)
    explained = {where for _, _, places in named.values() for where in places}
    explained |= {one.cell for one in seen.failing() if one.word.startswith(_BLOCKING)}
    # One operator that is wrong by itself explains the cases of its precision; nothing else explains numbers.
    wrong = {_precision(seen, one.cell) for one in seen.with_words("operator-differs", "wrong") if one.fails}
    rest = [
        (cell, case)
        for cell, case in seen.bad_cases()
        if cell.dtype not in wrong and not (cell.id in explained and not case.findings and case.verdict == "mismatch")
    ]
    for side, bad in _by_side(rest).items():
        kind, name, advice = _pattern(seen, side, bad)
        for cell, case in bad:
            note(kind, name, advice, "mismatch" if case.verdict == "mismatch" else "crash", cell.id)
    for one in seen.failing():
        if one.word.startswith("loss-parity") and not rest and one.cell not in explained:
            note(
                "operator",
                "not located",
                "find it with `shakedown bisect` on a cell of the same mode",
                one.word,
                one.cell,
            )
    return [
        Change(kind=kind, name=name, advice=advice, because=words, where=places)
        for (kind, name), (advice, words, places) in named.items()
    ]


def _name(one: Finding) -> str:
    """What a finding names: the part in its word's brackets, or the first word of its text."""
    _, bracket, inside = one.word.partition("(")
    if bracket:
        return inside.rstrip(")")
    first = one.text.split(" ran ")[0].split("(")[0].split(": ")[0].strip()
    return first if len(first) <= 80 else one.word


def _precision(seen: Seen, cell_id: str) -> str:
    return next((cell.dtype for cell in seen.cells if cell.id == cell_id), "")


def _variation(case: str) -> str:
    return case.partition("~")[2].partition("#")[0]


def _shape(case: str) -> str:
    return case.partition("~")[0].partition("#")[0]


def _by_side(bad: list[tuple[Cell, CaseResult]]) -> dict[str, list[tuple[Cell, CaseResult]]]:
    """Together where they say the same: what only variations show, and what plain cases show."""
    plain = {(cell.mode, cell.dtype) for cell, case in bad if not _variation(case.case)}
    found: dict[str, list[tuple[Cell, CaseResult]]] = {}
    for cell, case in bad:
        varied = _variation(case.case)
        # A mode whose plain cases fail will fail when varied, too: that says nothing about the variation.
        group = "plain" if (cell.mode, cell.dtype) in plain else "hard" if varied in _HARD else varied
        found.setdefault(group, []).append((cell, case))
    return found


def _pattern(seen: Seen, side: str, bad: list[tuple[Cell, CaseResult]]) -> tuple[Kind, str, str]:
    """Kind, name and advice for cases that fail alike."""
    if side == "noncontiguous":
        return "layout", "of the inputs", "make the inputs contiguous before the model"
    if side == "padding":
        return "shape", "padded batches", "mask what is padded, or do not pad"
    if side == "hard":
        values = sorted({_variation(case.case) for _, case in bad})
        return "precision", f"of {' and '.join(values)} values", "keep such values out, or compute them in a wider type"
    plain = [(cell, case) for cell, case in seen.cases() if cell.kind in PLAIN and not _variation(case.case)]
    good = [(cell, case) for cell, case in plain if case.verdict == "match"]
    modes: set[str] = {cell.mode for cell, _ in bad}
    dtypes = {cell.dtype for cell, _ in bad}
    shapes = {_shape(case.case) for _, case in bad}
    only = _only_mode(modes, good, dtypes)
    if all((cell.mode in modes) <= (cell.dtype not in dtypes) for cell, _ in good) and any(
        cell.mode in modes and cell.dtype not in dtypes for cell, _ in good
    ):
        other = sorted({cell.dtype for cell, _ in good if cell.mode in modes})
        return "precision", ", ".join(sorted(dtypes)), f"use {' or '.join(other)}, which matches here{only}"
    fine = {_shape(case.case) for cell, case in good if cell.mode in modes and cell.dtype in dtypes} - shapes
    if fine:
        return "shape", ", ".join(sorted(shapes)), f"keep to shapes that match here ({', '.join(sorted(fine))}){only}"
    cell, case = bad[0]
    found = case.findings[0] if case.findings else case.reason
    return "operator", f"not located yet, seen in {_tensor(found)}", f"`shakedown bisect` on {cell.id} names it{only}"


def _tensor(text: str) -> str:
    first = text.splitlines()[0].partition(": ")[0] if text else "its result"
    return first if len(first) <= 80 else first[:77] + "..."


def _only_mode(modes: set[str], good: list[tuple[Cell, CaseResult]], dtypes: set[str]) -> str:
    others = sorted({cell.mode for cell, _ in good if cell.mode not in modes and cell.dtype in dtypes})
    return f"; only {' and '.join(sorted(modes))}: {' and '.join(others)} matched" if others else ""


def next_steps(seen: Seen, suitable: bool, changes: list[Change]) -> list[str]:
    """What to run or to settle next."""
    said: list[str] = []
    if seen.doubtful():
        said.append(
            "look at the workload itself: the CPU is outside the gates of this precision; give dtypes that it can do, or a "
            "criterion of your own in the requirements"
        )
    located = {one.name for one in changes if not one.name.startswith("not located")}
    wrong = next((cell.id for cell, case in seen.bad_cases() if case.verdict == "mismatch"), None)
    if wrong is not None and not located:
        said.append(f"shakedown bisect RECORD {wrong}: names the first operator that differs, and writes a case of it")
    late = sorted({cell.id for cell, result in seen.candidates() if result.verdict == "timeout"})
    if late:
        said.append(f"raise run.timeout_seconds, and look at the logs of {', '.join(late[:3])}")
    if unlike := seen.unlike():
        said.append(f"run again so that all processes stand on the same ground ({unlike[0].removeprefix(UNLIKE)})")
    if changes:
        said.append("make the change, run again, and compare: shakedown compare BEFORE AFTER")
    said += _untried(seen)
    if seen.rehearsal:
        said.append("repeat on the target itself: a rehearsal shows nothing of Trainium's numbers, speed or memory")
    return said


def _untried(seen: Seen) -> list[str]:
    kinds = {cell.kind for cell, result in seen.candidates() if result.verdict != "untested"}
    if kinds and not kinds - {"sequence"}:
        return ["run without --quick: variations, restart, neighbours and further processes were not tried"]
    return []
