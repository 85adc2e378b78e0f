"""Stage 6: evidence and requirements to one judgement, with what it rests on and what stays open."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from .. import evidence as ev
from ..errors import EvidenceError
from ..requirements import Requirements
from ..scan.results import Scan
from . import budgets, checks, decisions, fusion, graphs, memory, pooled, probes, scan, traces
from .judgement import Judgement
from .numerics import Vector, norm
from .results import FAILED, BetweenModes, Cell, CellResult, Statement
from .verdict import Found, judge_cell

OPEN = (
    "distribution over several devices",
    "loss parity over a long run: here k steps are compared, each from the device's own state",
    "cost and payback",
)


def judge(
    root: Path, cells: list[Cell], requirements: Requirements, rehearsal: bool
) -> tuple[Judgement, dict[str, dict[str, list[Vector]]]]:
    """Judge a whole run from its directory: a pure function of the files there."""
    found = Found.read(root, cells)
    results: list[CellResult] = []
    vectors: dict[str, dict[str, list[Vector]]] = {}
    for cell in cells:
        result, vectors[cell.id] = judge_cell(found, cell, requirements)
        results.append(result)
    matched = {(r.cell, c.case): c.verdict == "match" for r in results for c in r.cases}
    timings = pooled.pooled(cells, found.cases, found.self_tests, matched, requirements)
    found_by_checks = [
        *(f for r in results for c in r.cases for f in decisions.flipped(c.decisions, r.cell, c.case)),
        *checks.findings(root, cells, requirements),
        *budgets.findings(timings, requirements),
    ]
    failing = {f.cell for f in found_by_checks if f.fails}
    results = [
        r.model_copy(update={"verdict": "mismatch"}) if r.cell in failing and r.verdict == "match" else r
        for r in results
    ]
    by_id = {cell.id: cell for cell in cells}
    candidates = [r for r in results if by_id[r.cell].mode != "reference"]
    tested = [r for r in candidates if r.verdict != "untested"]
    failed = [r for r in tested if r.verdict in FAILED]
    references = [r for r in results if by_id[r.cell].mode == "reference"]
    # A varied case that the CPU cannot do at this precision (an overflow, say) decides nothing about the others.
    doubtful = [r.cell for r in references if any(c.verdict == "mismatch" and "~" not in c.case for c in r.cases)]
    untested = len(candidates) - len(tested)
    rest = f"; {untested} {'cell is' if untested == 1 else 'cells are'} untested" if untested else ""
    kind = "rehearsal" if rehearsal else "measured"
    where = " in rehearsal on the embedded device, which is not Trainium" if rehearsal else ""
    if doubtful:
        verdict = "inconclusive"
        sentence = f"the CPU does not pass its own gates ({', '.join(doubtful)}), so they decide nothing"
    elif not tested:
        verdict, sentence = "inconclusive", "nothing was tested on the target"
    elif failed:
        verdict = "failed"
        sentence = f"{len(failed)} of {len(tested)} tested cells failed{where}: " + ", ".join(
            f"{r.cell} ({r.verdict})" for r in failed
        )
    else:
        verdict = "passed"
        sentence = f"all {len(tested)} tested cells match float64 truth within what rounding explains{where}{rest}"
    return Judgement(
        verdict=verdict,  # type: ignore[arg-type]
        sentence=sentence,
        cells=results,
        between_modes=_between_modes(found, cells),
        timings=timings,
        memory=memory.read(root, cells),
        graphs=_graphs(found, cells, requirements),
        fusion=_fusion(root, cells),
        probes=probes.summary(root, cells),
        traces=_traces(root, cells),
        scan=_scan(root, cells),
        findings=found_by_checks,
        statements=_statements(results, by_id, kind),
    ), vectors


def _graphs(found: Found, cells: list[Cell], requirements: Requirements) -> dict[str, graphs.GraphSummary]:
    made = {}
    for cell in cells:
        try:
            records = graphs.read(found.root, cell)
            tried = graphs.read_full_graph(found.root, cell)
        except EvidenceError:
            continue  # the check on graphs names it
        rows = {c: found.cases[cell.id, c].paths.later_step or [] for c in records if (cell.id, c) in found.cases}
        if records:
            made[cell.id] = graphs.summarise(records, rows, requirements, tried)
    return made


def _fusion(root: Path, cells: list[Cell]) -> dict[str, dict[str, fusion.FusionSummary]]:
    made = {}
    for cell in cells:
        try:
            seen = {case: fusion.summarise(document) for case, document in fusion.read(root, cell).items()}
        except EvidenceError:
            continue  # the check on fusion names it
        if found := {case: one for case, one in seen.items() if one is not None}:
            made[cell.id] = found
    return made


def _scan(root: Path, cells: list[Cell]) -> Scan | None:
    try:
        return scan.read_joined(root, cells)
    except EvidenceError:
        return None  # the check on the source names it


def _traces(root: Path, cells: list[Cell]) -> dict[str, list[traces.TraceSummary]]:
    made = {}
    for cell in cells:
        try:
            found = traces.of_cell(root, cell)
        except EvidenceError:
            continue  # the check on traces names it
        if found:
            made[cell.id] = found
    return made


def _statements(results: list[CellResult], by_id: dict[str, Cell], kind: str) -> list[Statement]:
    """One sentence for each mode and precision that the decision rests on, then what is open."""
    said: list[Statement] = []
    untested: dict[str, list[str]] = {}
    sides: dict[tuple[str, str], list[CellResult]] = {}
    for result in results:
        cell = by_id[result.cell]
        if result.verdict == "untested":
            untested.setdefault(result.reason, []).append(cell.id)
        else:
            sides.setdefault((cell.mode, cell.dtype), []).append(result)
    for (mode, dtype), own in sides.items():
        verdicts = Counter(case.verdict for result in own for case in result.cases)
        words = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        others = [f"{result.cell} {result.verdict}" for result in own if not result.cases]
        text = f"{mode} {dtype}: {len(own)} processes, cases {words or 'none'}" + "".join(f"; {one}" for one in others)
        seen = [case.paths for result in own for case in result.cases if case.paths]
        if mode != "reference" and seen:
            fallbacks = {f.name for paths in seen for f in paths.fallbacks or []}
            hidden = any(paths.fallbacks is None for paths in seen)
            text += "; fallbacks cannot be seen on this target" if hidden else ""
            text += "" if hidden else f"; {len(fallbacks)} operators fell back to the CPU"
        spoken = "measured" if mode == "reference" else kind
        said.append(Statement(kind=spoken, text=text))  # type: ignore[arg-type]
    said += [Statement(kind="open", text=f"{', '.join(names)}: {reason}") for reason, names in untested.items()]
    return said + [Statement(kind="open", text=text) for text in (*_not_tried(list(by_id.values())), *OPEN)]


def _not_tried(cells: list[Cell]) -> list[str]:
    """What this trial had no process for, because it was quick or its requirements did not ask for it."""
    run = [cell for cell in cells if cell.mode != "reference" and cell.outcome.status != "untested"]
    kinds = {cell.kind for cell in run}
    said = {
        "variation": "no variation of the inputs was tried (padding, layout, logging, hard inputs)",
        "restart": "restart with optimizer state was not tried",
        "probe": "neighbours of the workload's operators, and number formats, were not probed",
    }
    made = [text for kind, text in said.items() if kind not in kinds]
    if any(cell.cache == "cold" for cell in run) and not any(cell.cache == "warm" for cell in run):
        made.append("a start with a warm cache was not tried")
    return made


def _between_modes(found: Found, cells: list[Cell]) -> list[BetweenModes]:
    """Compare compiled and adaptive with eager directly, in step 1, where both start from the same bits."""
    result = []
    for cell in cells:
        if cell.mode not in ("compiled", "adaptive") or cell.cache == "warm" or cell.kind != "sequence":
            continue
        other_id = cell.id.replace(cell.mode, "eager", 1)
        for case in cell.cases:
            one, other = found.cases.get((other_id, case)), found.cases.get((cell.id, case))
            if one is None or other is None or ev.blendable(one, other):
                continue
            left, right = ev.tensors(one, found.root), ev.tensors(other, found.root)
            worst, name, equal = 0.0, "", True
            for key in sorted(left.keys() & right.keys()):
                if not key.startswith("step1/") or "/weight/" in key or left[key].shape != right[key].shape:
                    continue
                a, b = left[key].astype(np.float64), right[key].astype(np.float64)
                equal &= bool(np.array_equal(a, b, equal_nan=True))
                size = norm(a)
                gap = norm(a - b) / size if size else 0.0
                if gap > worst:
                    worst, name = gap, key
            result.append(
                BetweenModes(one=other_id, other=cell.id, case=case, bit_equal=equal, relative_l2=worst, tensor=name)
            )
    return result
