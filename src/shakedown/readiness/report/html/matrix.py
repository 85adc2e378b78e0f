"""The matrix of cells, and what each process and case has to show: rows, marks and anchors, without a number of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...judge.results import CaseResult, Cell, CellResult, Verdict
from ...record import Record
from ..overview import OTHER
from ..words import MODES, SEVERITY, Table, loss, name_of, pairs, seconds, side_of, worst
from .files import Files, Source
from .vectors import Vectors

_OF_CASES = ("sequence", "single", "variation")  # kinds of process whose result is that of their cases
FINDINGS_SHOWN = 12
TENSORS_SHOWN = 8


@dataclass(frozen=True)
class Mark:
    """One process's verdict on one case, which leads to its details."""

    anchor: str
    verdict: Verdict
    name: str
    said: str


@dataclass(frozen=True)
class Side:
    """A column: all processes of one mode and precision."""

    mode: str
    dtype: str
    name: str


@dataclass(frozen=True)
class Row:
    """A case, a variation, or what else processes were for; one list of marks for each column, and its worst verdict."""

    name: str
    marks: Sequence[tuple[Side, str, Sequence[Mark]]]


@dataclass(frozen=True)
class CaseView:
    """One case of one process."""

    case: str
    verdict: str
    reason: str
    facts: Sequence[tuple[str, str]]
    findings: Sequence[str]
    more: int
    tensors: Table | None
    sources: Sequence[Source]


@dataclass(frozen=True)
class Process:
    """One process: its verdict, why, and its cases."""

    anchor: str
    cell: Cell
    name: str
    verdict: str
    reason: str
    facts: Sequence[tuple[str, str]]
    cases: Sequence[CaseView]
    findings: Sequence[str]
    more: int
    words: str  # what a text filter looks in
    verdicts: str


def verdicts(record: Record) -> list[Verdict]:
    """Those that occur, the worst first."""
    results = record.judgement.cells
    found = {result.verdict for result in results} | {case.verdict for result in results for case in result.cases}
    return [verdict for verdict in SEVERITY if verdict in found]


def sides(record: Record) -> list[Side]:
    """The columns, in the order in which the trial names them."""
    found = dict.fromkeys((cell.mode, cell.dtype) for cell in record.cells)
    return [Side(mode, dtype, side_of(mode, dtype)) for mode, dtype in found]


def rows(record: Record) -> list[Row]:
    """The matrix: plain cases, then variations, then restarts, neighbours and whatever else had processes of its own."""
    found: dict[tuple[int, str], dict[tuple[str, str], list[Mark]]] = {}
    for number, (cell, result) in enumerate(pairs(record)):
        for place, name, verdict in _verdicts(cell, result):
            mark = Mark(f"cell-{number}", verdict, name_of(cell), f"{name}, {name_of(cell)}: {verdict}")
            found.setdefault((place, name), {}).setdefault((cell.mode, cell.dtype), []).append(mark)
    made = []
    for place, name in sorted(found, key=lambda row: row[0]):
        marks = [(side, found[place, name].get((side.mode, side.dtype), [])) for side in sides(record)]
        made.append(Row(name, [(side, worst([m.verdict for m in own]) if own else "", own) for side, own in marks]))
    return made


def _verdicts(cell: Cell, result: CellResult) -> list[tuple[int, str, Verdict]]:
    """Rows that a process is part of, with the place of their kind; one that ended before its first case is in all of its own."""
    if cell.kind not in _OF_CASES:
        return [(2, OTHER.get(cell.kind, cell.kind), result.verdict)]
    ended = {case.case: case.verdict for case in result.cases} or dict.fromkeys(cell.cases, result.verdict)
    return [(int("~" in case), case.partition("#")[0], verdict) for case, verdict in ended.items()]


def processes(record: Record, files: Files, vectors: Vectors) -> list[Process]:
    """Every process with its cases, in the order of the record."""
    said: dict[tuple[str, str], list[str]] = {}
    for one in record.judgement.findings:
        said.setdefault((one.cell, one.case), []).append(f"{'FAILS ' if one.fails else ''}{one.word}: {one.text}")
    return [_process(number, cell, result, said, files, vectors) for number, (cell, result) in enumerate(pairs(record))]


def _process(
    number: int,
    cell: Cell,
    result: CellResult,
    said: Mapping[tuple[str, str], Sequence[str]],
    files: Files,
    vectors: Vectors,
) -> Process:
    cases = [_case(cell, case, said.get((cell.id, case.case), ()), files, vectors) for case in result.cases]
    known = {case.case for case in result.cases}
    own = [text for (of, case), texts in said.items() if of == cell.id and case not in known for text in texts]
    name = name_of(cell)
    facts = [
        ("process", cell.id),
        ("for", cell.kind),
        ("mode", MODES.get(cell.mode, cell.mode)),
        ("precision", cell.dtype),
        ("ended", f"{cell.outcome.status}{f', {cell.outcome.reason}' if cell.outcome.reason else ''}"),
        ("took", seconds(cell.outcome.seconds) if cell.outcome.seconds else "–"),
    ]
    if cell.cache != "none":
        facts.append(
            (f"cache {cell.cache}", f"{'proved' if result.cache_proved else 'NOT proved'}: {result.cache_proof}")
        )
    if result.repeats:
        facts.append(("repeats the cold process", result.repeats))
    if cell.outcome.status in ("crashed", "timeout", "killed"):
        facts.append(("standard error ends", cell.outcome.stderr_tail[-1500:]))
    verdicts = " ".join(dict.fromkeys((result.verdict, *(case.verdict for case in result.cases))))
    words = " ".join((name, cell.id, verdicts, *(c.case for c in cases), *own, *(t for c in cases for t in c.findings)))
    return Process(
        anchor=f"cell-{number}",
        cell=cell,
        name=name,
        verdict=result.verdict,
        reason=result.reason,
        facts=facts,
        cases=cases,
        findings=own[:FINDINGS_SHOWN],
        more=max(len(own) - FINDINGS_SHOWN, 0),
        words=words[:4000].lower(),
        verdicts=verdicts,
    )


def _case(cell: Cell, case: CaseResult, said: Sequence[str], files: Files, vectors: Vectors) -> CaseView:
    facts: list[tuple[str, str]] = []
    t = case.tensors
    if t is not None:
        facts += [
            ("tensors within their bounds", f"{t.judged - t.failed} of {t.judged}"),
            ("worst tensor", t.worst_name),
            ("its relative L2 error", f"{t.worst_relative_l2:.2e}, allowed {t.worst_allowed:.2e}"),
        ]
        if t.worst_ratio_to_cpu is not None:
            facts.append(("over the CPU's own error", f"{t.worst_ratio_to_cpu:.2f}"))
    steps = [key.removeprefix("device_") for key in case.losses if key.startswith("device_step")]
    facts += [
        (
            f"loss, {step}",
            f"{loss(case.losses[f'device_{step}'], 6)}; on the CPU {loss(case.losses.get(f'cpu_{step}'), 6)}",
        )
        for step in steps
    ]
    if case.timing is not None:
        later = case.timing.later
        median = f"withheld: {later.withheld}" if later.withheld else seconds(later.median)
        facts.append(("median step of this process", f"{median} (n = {later.n})"))
    findings = [*case.findings, *said]
    base = f"evidence/{cell.id}/{case.case}"
    return CaseView(
        case=case.case,
        verdict=case.verdict,
        reason=case.reason,
        facts=facts,
        findings=findings[:FINDINGS_SHOWN],
        more=max(len(findings) - FINDINGS_SHOWN, 0),
        tensors=vectors.worst_of(cell.id, case.case, TENSORS_SHOWN),
        sources=files.sources(
            name for name in files.record.files if name.startswith(f"{base}.") and name.endswith(".json")
        ),
    )
