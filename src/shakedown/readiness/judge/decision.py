"""Stage 6: evidence and requirements to one judgement, with what it rests on and what stays open."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .. import evidence as ev
from ..cost import payback
from ..errors import EvidenceError
from ..evidence import Identity
from ..requirements import Requirements
from ..scan.results import Scan
from . import (
    break_even,
    budgets,
    checks,
    decisions,
    disposition,
    fusion,
    graphs,
    identity,
    memory,
    parity_cells,
    pooled,
    probes,
    projection,
    scan,
    shape_rows,
    shapes,
    traces,
)
from .judgement import Judgement
from .numerics import Vector, norm
from .results import BetweenModes, Cell, CellResult
from .seen import Seen
from .verdict import Found, judge_cell


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
    groups = pooled.groups(cells, found.cases, found.self_tests, matched, requirements)
    timings = pooled.of(groups, found.cases, requirements)
    graph_summaries = _graphs(found, cells, requirements)
    ledger, found_in_ledger = shapes.judge(
        root, shape_rows.Tried(cells, results, timings, graph_summaries), requirements
    )
    found_by_checks = [
        *(f for r in results for c in r.cases for f in decisions.flipped(c.decisions, r.cell, c.case)),
        *checks.findings(root, cells, requirements),
        *budgets.findings(timings, requirements),
        *found_in_ledger,
    ]
    failing = {f.cell for f in found_by_checks if f.fails}
    results = [
        r.model_copy(update={"verdict": "mismatch"}) if r.cell in failing and r.verdict == "match" else r
        for r in results
    ]
    seen = Seen(cells, results, found_by_checks, timings, identities(root, cells), requirements, rehearsal)
    return Judgement(
        decision=disposition.decide(seen),
        cells=results,
        between_modes=_between_modes(found, cells),
        timings=timings,
        memory=memory.read(root, cells),
        graphs=graph_summaries,
        fusion=_fusion(root, cells),
        probes=probes.summary(root, cells),
        traces=_traces(root, cells),
        scan=_scan(root, cells),
        findings=found_by_checks,
        parity=parity_cells.results(root, cells, requirements),
        break_even=break_even.judge(groups, timings, requirements),
        shapes=ledger,
        projection=projection.judged(root, cells, requirements),
        payback=payback.judged(requirements.costs),
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


def identities(root: Path, cells: list[Cell]) -> dict[str, Identity]:
    """Who measured, for each process that said so. A damaged file is the identity check's to name."""
    found = {}
    for cell in cells:
        try:
            found[cell.id] = ev.read(Identity, root / "evidence" / cell.id / identity.FILE)
        except EvidenceError:
            continue
    return found


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
            left, right = found.tensors(one), found.tensors(other)
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
