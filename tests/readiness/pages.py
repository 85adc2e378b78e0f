"""Records for tests of the HTML report: a real small one, the same with every kind of result, with hostile text, and a large one.

What a trial on the CPU in this process cannot show (graphs, projections, a hundred processes) is put into the record as the
documents that judging makes; files that go with it are written and entered with their hash.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from shakedown.readiness import evidence as ev
from shakedown.readiness.judge import shapes
from shakedown.readiness.judge.amortise import Curve, Point
from shakedown.readiness.judge.break_even import BreakEven, Estimate
from shakedown.readiness.judge.graphs import GraphSummary, Problem
from shakedown.readiness.judge.judgement import Judgement
from shakedown.readiness.judge.measured import PooledTiming
from shakedown.readiness.judge.parity_results import ParityCurve, ParityEvent, ParityResult, ParityWindow
from shakedown.readiness.judge.projected import Bound, CaseProjection, Projection
from shakedown.readiness.judge.resample import Interval
from shakedown.readiness.judge.results import Finding
from shakedown.readiness.record import FileEntry, Record

from . import faults, support

PAYLOADS = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "'--><svg onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "{{ 7*7 }}{% raw %}",
    "\u202egnp.exe\u2066",
    "שלום עולם مرحبا",
    "👩‍🔬 emoji",
    "long" * 300,
    "\x00\x1b[31m\n`unpaired",
)

NAME = """"><img src=x onerror='window.hacked=1'>\u202e{{7*7}}"""  # what a name of a process or case may hold


def real(folder: Path) -> tuple[Path, Record]:
    """A trial of the tiny workload on the CPU, in which an activation comes out 0.2 % too large."""
    record = support.run_faults(folder / "run", {"scaled": faults.scaled}, ("float32",))
    return folder / "run", record


def put(root: Path, record: Record, name: str, data: bytes) -> Record:
    """Write a file of the record, and enter it."""
    (root / name).write_bytes(data)
    entry = FileEntry(nbytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    return record.model_copy(update={"files": record.files | {name: entry}})


def judged(record: Record, **changed: Any) -> Record:
    """The record with parts of its judgement replaced."""
    return record.model_copy(update={"judgement": record.judgement.model_copy(update=changed)})


def rich(record: Record) -> Record:
    """With results of every kind: a graph break, curves, break-even, loss parity, shapes, a projection."""
    first = record.trial["cases"][0]
    cell = record.cells[-1].id
    problem = Problem(kind="capture", cause="host read", text="Tensor.item()", place="tiny.py:30 in forward", count=2)
    summary = GraphSummary(
        captured=2, graph_runs=8, compiled_again=0, ran_eager=0, whole=False, whole_reason="a break", full_graph=None,
        share_outside=0.2, operators_outside={"aten.item": 2}, problems=[problem], ledger=[],
    )  # fmt: skip
    timings = [
        one.model_copy(
            update={
                "median": 0.002 * (i + 1), "withheld": "", "n": 40, "curves": [_curve("cold", 2.0, 0.002 * (i + 1))],
                "interval": Interval(low=0.0018 * (i + 1), high=0.0023 * (i + 1), coverage=0.9),
            }
        )
        for i, one in enumerate(record.judgement.timings)
    ]  # fmt: skip
    even = BreakEven(
        mode="eager", dtype="float32", case=first, cache="cold", over="reference", over_cache=None, kind="measured",
        answer="after", why="", extra=None, saved=None, planned_steps=1000, within_plan="yes", points=[], over_points=[],
        steps=Estimate(value=120.0, low=90.0, high=200.0, coverage=0.9),
    )  # fmt: skip
    return judged(
        record,
        graphs={cell: summary},
        timings=timings,
        break_even=[even],
        parity=[_parity(cell)],
        shapes=_shapes(record, timings),
        projection=_projection(cell, first),
    )


def _curve(cache: Any, setup: float, step: float) -> Curve:
    points = [
        Point(steps=n, value=v, low=0.8 * v, high=1.3 * v, coverage=0.9)
        for n in (1, 10, 100, 1000, 10000)
        for v in [(setup + (n - 1) * step) / n]
    ]
    return Curve(
        cache=cache, setup=setup, setup_processes=3, step=step, step_processes=3, points=points, over_cpu=points
    )


def _parity(cell: str) -> ParityResult:
    steps = list(range(1, 61))
    losses: list[float | None] = [4.0 * math.exp(-s / 40) for s in steps]
    curve = ParityCurve(
        steps=steps,
        reference=losses,
        candidate=[None if s == 50 else 1.01 * (x or 0) for s, x in zip(steps, losses)],
        lowest_twin=[0.98 * (x or 0) for x in losses],
        highest_twin=[1.02 * (x or 0) for x in losses],
    )
    windows = [
        ParityWindow(first=a, last=a + 29, reference=3.0, gap=0.03, twins=[0.02], floor=1e-6, ratio=r)
        for a, r in ((1, 0.8), (31, 4.2))
    ]
    return ParityResult(
        cell=cell, case="2x8", mode="eager", dtype="float32", device="neuron", parity="growing", passed=False,
        text="the gap grows faster than every twin's", steps=60, twins=5, ratio=4.2, windows=windows, curve=curve,
        events=[ParityEvent(step=31, kind="restart", text="restart")],
    )  # fmt: skip


def _shapes(record: Record, timings: list[PooledTiming]) -> shapes.ShapeLedger:
    weights = {(2, n, n): 1.0 / n for n in range(4, 60)}
    known = shapes.Distribution("lengths.txt", weights, 1000)
    made = shapes.ledger(known, shapes.Tried(record.cells, record.judgement.cells, timings), record.requirements)
    assert made.plan is not None
    curve = tuple(
        p.model_copy(update={"compile_seconds": 4.0 * i, "step_seconds": 0.1 / i, "total_seconds": 4.0 * i + 100 / i})
        for i, p in enumerate(made.plan.curve, 1)
    )
    return made.model_copy(update={"plan": made.plan.model_copy(update={"basis": "costs", "curve": curve})})


def _projection(cell: str, case: str) -> Projection:
    bounds = [
        Bound(
            unit=unit, seconds=seconds, whole_step_seconds=seconds, as_fused_seconds=None, by_phase={}, intensity=1.0, ridge=2.0,
            roof="memory", share_bound_by_memory=1.0, transfers=[], transfer_seconds=None, fits=True, memory_share=0.1,
            reason="" if seconds else "no rate is published",
        )
        for unit, seconds in (("logical core", 1e-4), ("chip", None))
    ]  # fmt: skip
    one = CaseProjection(
        cell=cell, mode="eager", dtype="float32", case=case, programs=3, calls=9, flops=1e6, transcendentals=None,
        matrix_flops={}, bytes_accessed=1e6, least_bytes=1e6, memory=None, bounds=bounds, unseen=[], unanalysed={},
    )  # fmt: skip
    return Projection(
        instance="trn2.48xlarge", chip="Trainium2", chips=16, logical_cores=64, dated="2026-11-01",
        figures={}, missing=[], units=[], cases=[one],
        batch_limits=[], assumptions=["programs do not overlap"], not_projected=[],
    )  # fmt: skip


_FREE = {
    "text", "sentence", "reason", "why", "advice", "source", "label_text", "stderr_tail", "place", "cause", "worst_name",
    "cache_proof", "repeats", "word", "boundary", "findings", "next", "blocked_by", "warnings", "notes", "created", "operation",
}  # fmt: skip


def hostile(root: Path, record: Record) -> Record:
    """The record with hostile text wherever text is free, with hostile names of cases, cells and files, source and tensors."""
    spoiled = record.model_dump(mode="json")
    everything = " ".join(PAYLOADS)
    spoiled["judgement"] = _spoiled(spoiled["judgement"], everything)
    for key in ("created", "label_text"):
        spoiled[key] += everything
    spoiled["identity"]["fixed"] |= {everything: everything, "nested": {everything: [everything]}}
    spoiled["identity"]["cells"][everything] = {"device": everything}
    spoiled["trial"]["workload"] = everything
    names = {cell["id"]: f"{cell['id']}{NAME}" for cell in spoiled["cells"]}
    for cell in spoiled["cells"]:
        cell["id"] = names[cell["id"]]
        cell["cases"] = [case + NAME for case in cell["cases"]]
        cell["outcome"]["reason"] = cell["outcome"]["stderr_tail"] = everything
    for result in spoiled["judgement"]["cells"]:
        result["cell"] = names[result["cell"]]
        for case in result["cases"]:
            case["case"] += NAME
    for memory in spoiled["judgement"]["memory"]:
        memory["cell"] = names[memory["cell"]]
    spoiled["judgement"]["graphs"] = {names[k]: v for k, v in spoiled["judgement"]["graphs"].items()}
    for one in spoiled["judgement"]["graphs"].values():
        for problem in one["problems"]:
            problem["place"] = "tiny.py:2 in " + everything
    vectors = {
        names[cell]: {
            case + NAME: [t | {"name": everything, "findings": [everything]} for t in tensors]
            for case, tensors in cases.items()
        }
        for cell, cases in json.loads((root / "vectors.json").read_text()).items()
    }  # fmt: skip
    made = Record.model_validate(spoiled)
    made = put(root, made, "vectors.json", json.dumps(vectors).encode())
    return put(root, made, "workload.py", "\n".join(["x = 1", *PAYLOADS]).encode(errors="backslashreplace"))


def _spoiled(value: Any, payload: str) -> Any:
    if isinstance(value, dict):
        return {
            key: (
                one + payload
                if key in _FREE and isinstance(one, str)
                else [x + payload if isinstance(x, str) else _spoiled(x, payload) for x in one]
                if key in _FREE and isinstance(one, list)
                else _spoiled(one, payload)
            )
            for key, one in value.items()
        }
    return [_spoiled(one, payload) for one in value] if isinstance(value, list) else value


def large(root: Path, record: Record, cells: int = 200, findings: int = 10_000) -> Record:
    """The record with so many processes and findings, and with the tensors of all of them."""
    last, result = record.cells[-1], record.judgement.cells[-1]
    ids = [f"compiled-bfloat16-{i}" for i in range(cells)]
    copies = [last.model_copy(update={"id": name, "mode": "compiled", "dtype": "bfloat16"}) for name in ids]
    results = [result.model_copy(update={"cell": name}) for name in ids]
    found = [
        Finding(word="odd", cell=ids[i % cells], case="2x8", text=f"finding {i}", fails=False) for i in range(findings)
    ]
    vectors = json.loads((root / "vectors.json").read_text())
    few = {case: tensors[:40] for case, tensors in vectors[last.id].items()}
    vectors |= dict.fromkeys(ids, few)
    made = judged(record, cells=[*record.judgement.cells, *results], findings=found)
    made = made.model_copy(update={"cells": [*record.cells, *copies]})
    return put(root, made, "vectors.json", json.dumps(vectors).encode())


def judgement_of(record: Record) -> Judgement:
    """The record's judgement, read back from its JSON: what was put in has the form that it must have."""
    return Judgement.model_validate(json.loads(ev.canonical(record.judgement.model_dump(mode="json"))))
