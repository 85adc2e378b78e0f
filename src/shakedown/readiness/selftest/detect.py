"""From the judgement of a trial to what its checks said, in fixed words, and to what became of a fault."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..judge.judgement import Judgement
from ..judge.results import FAILED, Cell
from .fault import By, Fault
from .results import Detection, Result

_TENSOR = re.compile(r"^step\d+/(\w+)/")
_STRUCTURE = (
    ("weights read back", "move"),
    ("captured nothing", "capture"),
    ("a tied weight has come apart", "tie"),
    ("the device made no", "missing"),
    ("has shape", "shape"),
    ("on the device and", "dtype"),
)
# The check that a finding's word belongs to; what stands before a bracket decides.
_CHECKS = {
    "resumed": "restart",
    "resume-broken": "restart",
    "late-compile": "timing",
    "lasting-change": "timing",
    "untested(timing)": "timing",
    "memory-grows": "memory",
    "over-budget": "budgets",
    "fallback": "paths",
    "fallback-bound": "paths",
    "hidden-fallback": "paths",
    "loss-parity": "parity",
    "cache-not-cold": "cache",
    "cache-not-warm": "cache",
    "not-repeatable": "repeats",
    "recompile-bound": "graphs",
    "not-captured": "graphs",
    "partly-compiled": "graphs",
    "graph-by-operator": "graphs",
    "graph-split": "graphs",
    "more-programs-than-expected": "graphs",
    "not-fused": "fusion",
    "decision-flipped": "decisions",
    "operator-differs": "probes",
    "neighbour-differs": "probes",
    "order-dependent": "probes",
    "precision-blocked": "probes",
    "flushes-denormals": "probes",
    "wrong": "probes",
    "refused": "probes",
    "crashed": "process",
    "killed": "process",
    "timeout": "process",
    "mismatch": "numbers",
}
# What says where and how a trial was made, and nothing about the device under it: processes share compiled programs here.
_GROUND = (
    "departs-from-baseline",
    "unsupported-combination",
    "untested(baseline)",
    "family-disagreement",
    "cache-not-cold",
    "resumed",
    "padding-neutral",
)
_BEFORE_OPTIMIZER = ("mismatch(output)", "mismatch(loss)", "mismatch(gradient)")
_ON_PURPOSE = "faulty-on-purpose"


def check_of(word: str) -> str:
    """The check that says `word`."""
    return _CHECKS.get(word) or _CHECKS.get(word.partition("(")[0]) or "other"


def detections(judgement: Judgement, cells: Sequence[Cell]) -> list[Detection]:
    """Everything that was said about cells of the target, what fails first."""
    by_id = {cell.id: cell for cell in cells}
    found: list[Detection] = []

    def say(word: str, cell: str, case: str, text: str, fails: bool) -> None:
        of = by_id.get(cell)
        if of is None or of.mode != "reference":
            found.append(
                Detection(
                    check=check_of(word),
                    word=word,
                    cell=cell,
                    mode=of.mode if of else cell.partition("-")[0],
                    dtype=of.dtype if of else "",
                    case=case,
                    text=text,
                    fails=fails,
                )
            )

    for result in judgement.cells:
        if result.verdict in FAILED and result.verdict != "mismatch":
            say(result.verdict, result.cell, "", result.reason, True)
        for case in result.cases:
            if case.verdict == "untested" and result.verdict not in FAILED:
                say("untested", result.cell, case.case, case.reason, False)
            for text in case.findings if case.verdict == "mismatch" else ():
                say(_word(text), result.cell, case.case, text, True)
    for finding in judgement.findings:
        if finding.word not in _GROUND and finding.word != _ON_PURPOSE:
            say(finding.word, finding.cell, finding.case, finding.text, finding.fails)
    return sorted(found, key=lambda one: not one.fails)


def _word(text: str) -> str:
    """The fixed word of a finding about the numbers of a case."""
    if tensor := _TENSOR.match(text):
        return f"mismatch({tensor[1]})"
    if text.startswith("decision-flipped"):
        return "decision-flipped"
    return f"mismatch({next((word for said, word in _STRUCTURE if said in text), 'structure')})"


def meant(by: By, one: Detection) -> bool:
    """Whether `one` is what was to be said."""
    named = one.word == by.word or (one.fails and one.word.startswith(f"{by.word}("))
    return named and by.says in one.text and by.mode in ("", one.mode)


def result_of(fault: Fault, dtype: str, found: Sequence[Detection]) -> tuple[Result, list[Detection]]:
    """What became of a fault in one precision, and the detections that decide it."""
    mine = [one for one in found if one.dtype in ("", dtype)]
    failing = [one for one in mine if one.fails]
    right = [one for by in fault.by for one in mine if meant(by, one)]
    every = all(any(meant(by, one) for one in mine) for by in fault.by)
    # What an optimizer does wrong must not be blamed on what came before it.
    blamed = {by.phase for by in fault.by} == {"optimizer"} and any(one.word in _BEFORE_OPTIMIZER for one in failing)
    if fault.nature == "legal":
        if failing:
            return "alarm", failing
        return ("legal", right) if every else ("missed", [])
    if every and fault.by and not blamed:
        return "caught", right
    if dtype in fault.hidden_in and not failing:
        return "below rounding", []
    if failing:
        return "other word", failing
    return "missed", []
