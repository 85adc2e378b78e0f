"""Was it really compiled? Graphs, breaks, recompilations and calls that silently ran as written.

Three different things stop an operator from being part of one program, and each has another remedy. *Capture*: Dynamo did
not get it into a graph (a break, a skip, a limit): change the code at the named line. *Lowering*: it is in a graph, and
the backend could not make a program of it: wait for the backend, or write it otherwise. *Fallback*: it ran on the CPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Literal

from .. import evidence as ev
from ..errors import EvidenceError
from ..evidence import Frozen, PathRow
from ..evidence.graphs import FullGraph, GraphBreak, GraphRecord, OutsideOperator, SkippedFunction
from ..requirements import Requirements
from .results import Cell, Finding

Cause = Literal[
    "data-dependent control flow",
    "data-dependent shape",
    "host read",
    "side effect",
    "unsupported call",
    "asked for",
    "backend failure",
    "limit reached",
    "other",
]

# PyTorch's names for graph breaks (torch/_dynamo/graph_break_registry.json has some 500), the first match decides.
# They are stable strings without context; a new one that matches nothing is "other", with its name in the evidence.
_CAUSES: tuple[tuple[Cause, str], ...] = (
    ("limit reached", r"recompile limit"),
    ("backend failure", r"Backend compiler"),
    ("asked for", r"torch\._dynamo\.(graph_break|skip_frame|step_unsupported)|compiler\.disable"),
    ("host read", r"Tensor\.(item|tolist|numpy)|nb_(int|float|index)_impl|_local_scalar_dense"),
    ("data-dependent shape", r"Dynamic shape|Dynamic slicing|unbacked|data-dependent output shape"),
    ("data-dependent control flow", r"Data-dependent|Data dependent|symbolic shapes|guard_scalar"),
    (
        "side effect",
        r"builtin (print|open|input)|Logger|debugging function|_warnings|module: (time|logging|sys|os|io)\b",
    ),
    ("side effect", r"side effect|global|mutat"),
    (
        "unsupported call",
        r"marked as skipped|[Uu]nsupported|builtin operator|call |method|not implemented|fake tensor|function|HOP",
    ),
)

# What a guard that did not hold was about; the texts are PyTorch's.
_GUARDS: tuple[tuple[str, str], ...] = (
    ("shape", r"size mismatch|rank mismatch|\.size\(|\.shape|len\("),
    ("stride", r"stride mismatch|\.stride\("),
    ("dtype", r"dtype mismatch|default_dtype"),
    ("device", r"device mismatch|device index"),
    ("requires_grad", r"requires_grad|dispatch key"),
    ("grad mode", r"grad_mode|GRAD_MODE|inference_mode|GLOBAL_STATE"),
    ("aliasing", r"[Dd]uplicate tensor|overlap"),
    ("global", r"G\["),
    ("value", r"=="),
    ("object", r"check_obj_id|check_type_id|ID_MATCH|TYPE_MATCH| is "),
)


def cause(kind: str, context: str) -> Cause:
    """The class of a graph break, from PyTorch's name for it and what it saw."""
    # An operator that is data-dependent because it reads a value says so in the context only.
    text = f"{kind} | {context}"
    return next((name for name, pattern in _CAUSES if re.search(pattern, text)), "other")


def guard_about(guard: str) -> str:
    """What a failed guard was about: shape, stride, dtype, device, value, global..."""
    return next((name for name, pattern in _GUARDS if re.search(pattern, guard)), "other")


class LedgerRow(Frozen):
    """One shape of one case. ``share`` is its share of all calls of the process, ``declared_share`` the one in the
    requirements, None where they give none.
    """

    case: str
    shapes: str
    calls: int
    share: float
    declared_share: float | None
    compiled: int
    ran_eager: int
    without_graph: int


class Problem(Frozen):
    """One thing that kept operators out of compiled programs."""

    kind: Literal["capture", "lowering", "fallback"]
    cause: str
    text: str
    place: str
    count: int


class GraphSummary(Frozen):
    """One compiled process: what was captured, whether all of it, and the ledger of shapes.

    ``whole`` says whether every call ran in captured graphs without a break, None where there were no calls, else the
    first reason why not. ``full_graph`` is what became of ``fullgraph=True``, None where it was not tried: it also captures
    what reads a number or selects by values, which ends a graph otherwise. ``share_outside`` is the share of forward
    and backward time outside graphs, None where it was not observed.
    """

    captured: int
    graph_runs: int
    compiled_again: int
    ran_eager: int
    whole: bool | None
    whole_reason: str
    full_graph: FullGraph | None
    share_outside: float | None
    operators_outside: dict[str, int]
    problems: list[Problem]
    ledger: list[LedgerRow]


Records = dict[str, GraphRecord]  # by case, in the order in which they ran


def read(root: Path, cell: Cell) -> Records:
    """The records that `cell` left. Raises :class:`EvidenceError` when one is damaged."""
    paths = {case: root / "evidence" / cell.id / f"{case}.graphs.json" for case in cell.cases}
    return {case: ev.read(GraphRecord, path) for case, path in paths.items() if path.exists()}


def read_full_graph(root: Path, cell: Cell) -> FullGraph | None:
    """What became of ``fullgraph=True`` in `cell`, None where it was not tried."""
    path = root / "evidence" / cell.id / "full-graph.json"
    return ev.read(FullGraph, path) if path.exists() else None


def ledger(records: Records, requirements: Requirements) -> list[LedgerRow]:
    """How often each shape came and what it cost, in the order of their first calls."""
    total = sum(row.calls for record in records.values() for row in record.shapes)
    declared = {f"{case.size}x{case.length}": case.share for case in requirements.cases if case.share}
    return [
        LedgerRow(
            case=case,
            shapes=row.shapes,
            calls=row.calls,
            share=row.calls / total,
            declared_share=declared.get(case.partition("~")[0].partition("#")[0]),
            compiled=row.compiled,
            ran_eager=row.ran_eager,
            without_graph=row.without_graph,
        )
        for case, record in records.items()
        for row in record.shapes
    ]


def whole(records: Iterable[GraphRecord]) -> tuple[bool | None, str]:
    """Whether all these calls ran in captured graphs without a break, and the first reason why not."""
    records = list(records)
    if not any(row.calls for record in records for row in record.shapes):
        return None, "no call of a compiled function was seen"
    for record in records:
        for site in record.break_sites:
            return False, f"{cause(site.kind, site.context)} at {_break(site)}"
        for skip in record.skipped:
            return False, f"{skip.function} ({_at(skip.file, skip.at_line)}) is not compiled: {skip.reason}"
        for limit in record.limits:
            return False, f"{limit.function} ({_at(limit.file, limit.line)}) reached {limit.limit} = {limit.allowed}"
        for graph in record.splits:
            return False, f"{_outside_of(graph.outside[0])}, so that graph {graph.graph} is {_programs(graph.programs)}"
        for one in record.by_operator:
            return False, f"graph {one.graph} runs operator by operator: {one.reason}"
        for row in record.shapes:
            if row.without_graph:
                return False, f"{row.without_graph} calls with {row.shapes} ran no graph"
    return True, ""


def problems(record: GraphRecord, rows: list[PathRow]) -> list[Problem]:
    """What kept operators out of compiled programs in one case, with `rows` of its observed step, by kind."""
    found = [
        Problem(
            kind="capture",
            cause=cause(site.kind, site.context),
            text=f"{site.kind}: {site.context}" if site.context else site.kind,
            place=f"{_at(site.file, site.line)} in {site.function}",
            count=site.count,
        )
        for site in record.break_sites
    ]
    found += [
        Problem(
            kind="lowering" if skip.failure == "BackendCompilerFailed" else "capture",
            cause="backend failure" if skip.failure == "BackendCompilerFailed" else cause(skip.reason, ""),
            text=f"not compiled at all: {skip.reason}",
            place=f"{_at(skip.file, skip.at_line)} in {skip.function}",
            count=skip.ran_eager or 0,
        )
        for skip in record.skipped
    ]
    found += [
        Problem(
            kind="capture",
            cause="limit reached",
            text=f"{limit.limit} = {limit.allowed}; last guard: {limit.guard}",
            place=f"{_at(limit.file, limit.line)} in {limit.function}",
            count=limit.ran_eager,
        )
        for limit in record.limits
    ]
    found += [
        Problem(kind="lowering", cause="no program", text=graph.reason, place=f"graph {graph.graph}", count=1)
        for graph in record.by_operator
    ]
    found += [
        Problem(
            kind="lowering",
            cause="outside programs",
            text=f"{one.operator}: {one.reason}; graph {graph.graph} is {_programs(graph.programs)}",
            place=_short(one.place),
            count=1,
        )
        for graph in record.splits
        for one in graph.outside
    ]
    found += [
        Problem(
            kind="fallback",
            cause="ran on the CPU",
            text=row.detail,
            place=f"{row.name}, {row.phase}",
            count=row.count or 0,  # 0: only the name is known
        )
        for row in rows
        if row.kind == "fallback" and row.phase in ("forward", "backward")
    ]
    return found


def summarise(
    records: Records, rows: dict[str, list[PathRow]], requirements: Requirements, tried: FullGraph | None = None
) -> GraphSummary:
    """All that the records of one compiled process say; `rows` of each case's observed step, where there are any."""
    passes, reason = whole(records.values())
    share, outside = _outside(records.values())
    return GraphSummary(
        captured=sum(record.captured for record in records.values()),
        graph_runs=sum(graph.runs for record in records.values() for graph in record.graphs),
        compiled_again=sum(again.count for record in records.values() for again in record.recompilations),
        ran_eager=sum(limit.ran_eager for record in records.values() for limit in record.limits),
        whole=passes,
        whole_reason=reason,
        full_graph=tried,
        share_outside=share,
        operators_outside=outside,
        problems=[p for case, record in records.items() for p in problems(record, rows.get(case, []))],
        ledger=ledger(records, requirements),
    )


def _outside(records: Iterable[GraphRecord]) -> tuple[float | None, dict[str, int]]:
    """Median share of forward and backward time outside graphs over the observed steps, and operators there in one step."""
    shares: list[float] = []
    operators: dict[str, int] = {}
    for record in records:
        if record.regions is not None:
            steps = zip(record.regions.seconds, record.regions.seconds_inside)
            shares += [1 - inside / seconds for seconds, inside in steps if seconds]
            for name, count in record.regions.outside.items():
                operators[name] = max(operators.get(name, 0), round(count / record.regions.steps))
    return median(shares) if shares else None, operators


def findings(root: Path, cells: list[Cell], requirements: Requirements) -> list[Finding]:
    """Compiled runs that were not, or that will not stay so; and where compiled code ends."""
    found: list[Finding] = []
    for cell in cells:
        if cell.mode != "compiled" or cell.outcome.status == "untested":
            continue
        try:
            records = read(root, cell)
            read_full_graph(root, cell)
        except EvidenceError as error:
            found.append(Finding(word="untested(graphs)", cell=cell.id, text=str(error), fails=False))
            continue
        for case in cell.cases:
            written = (root / "evidence" / cell.id / f"{case}.json").exists()
            if case not in records and written and cell.kind in ("sequence", "single", "variation"):
                text = "nothing was recorded about graphs"
                found.append(Finding(word="untested(graphs)", cell=cell.id, case=case, text=text, fails=False))
        for case, record in records.items():
            found += [
                Finding(word=word, cell=cell.id, case=case, text=text, fails=fails)
                for word, text, fails in _of_case(record, requirements)
            ]
        if partly := _partly(records):
            found.append(Finding(word="partly-compiled", cell=cell.id, text=partly, fails=False))
        if cell.kind == "sequence":  # the others run a part of the shapes, or other ones
            found += [
                Finding(word=word, cell=cell.id, text=text, fails=fails)
                for word, text, fails in _of(records, requirements)
            ]
    return found


def _of_case(record: GraphRecord, requirements: Requirements) -> list[tuple[str, str, bool]]:
    found: list[tuple[str, str, bool]] = []
    calls = sum(row.calls for row in record.shapes)
    without = sum(row.without_graph for row in record.shapes)
    for limit in record.limits:
        compiled = record.captured_before + record.captured
        text = (
            f"{limit.function} ({_at(limit.file, limit.line)}) reached torch._dynamo.config.{limit.limit} = {limit.allowed}: "
            f"{limit.ran_eager} calls ran eager, as written, where {compiled} compilations look healthy; the last guard "
            f"that failed was about {guard_about(limit.guard)}: {limit.guard}"
        )
        found.append(("recompile-bound", text, True))
    if calls and without == calls and not record.limits:
        why = _reasons(record) or "no reason was recorded"
        found.append(("not-captured", f"none of {calls} calls ran a captured graph: {why}", True))
    if record.by_operator:
        graphs = {graph.graph.rpartition("_")[0] for graph in record.by_operator}
        everything = bool(record.captured) and len(graphs) >= record.captured
        text = f"the backend runs {'every graph' if everything else f'{len(graphs)} of {record.captured} graphs'}"
        reasons = "; ".join(sorted({graph.reason for graph in record.by_operator}))
        found.append(("graph-by-operator", f"{text} operator by operator, in name compiled: {reasons}", everything))
    if record.splits:
        operators = dict.fromkeys(_outside_of(one) for graph in record.splits for one in graph.outside)
        pieces = sum(graph.programs for graph in record.splits)
        text = f"the backend splits {len(record.splits)} graphs into {_programs(pieces)}: {'; '.join(operators)}"
        found.append(("graph-split", text, False))
    if record.unseen:
        found.append(("unobservable(graphs)", "; ".join(record.unseen), False))
    return found


def _partly(records: Records) -> str:
    """Where compiled code ends in the cases that ran graphs at all; empty where it does not."""
    places: dict[str, list[str]] = {}
    some: list[GraphRecord] = []
    for case, record in records.items():
        calls = sum(row.calls for row in record.shapes)
        without = sum(row.without_graph for row in record.shapes)
        if record.limits or (calls and without == calls):
            continue  # said in stronger words
        said = [f"{cause(site.kind, site.context)} at {_break(site)}" for site in record.break_sites]
        said += [_skipped(skip) for skip in record.skipped]
        if without and not said:
            said = ["calls that ran no graph, for no recorded reason"]
        for place in said:
            places.setdefault(place, []).append(case)
        if said:
            some.append(record)
    if not places:
        return ""
    text = "; ".join(f"{place} (case {', '.join(cases)})" for place, cases in places.items())
    share, operators = _outside(some)
    if share is None:
        return text
    listed = ", ".join(f"{count} {name}" for name, count in operators.items()) or "none"
    return f"{text}; {share:.0%} of forward and backward time is outside graphs, operators there in one step: {listed}"


def _of(records: Records, requirements: Requirements) -> list[tuple[str, str, bool]]:
    expected = requirements.workload.expected_programs
    captured = sum(record.captured for record in records.values())
    if not expected or not records or captured == expected:
        return []
    shapes = ", ".join(f"{row.compiled} for {row.shapes}" for row in ledger(records, requirements) if row.compiled)
    text = f"{captured} graphs were compiled where the requirements plan with {expected}: {shapes}"
    guards = {guard_about(again.guard) for record in records.values() for again in record.recompilations}
    if guards:
        text += f"; guards that failed were about {', '.join(sorted(guards))}"
    if captured > expected:
        return [("more-programs-than-expected", text, True)]
    return [("fewer-programs-than-expected", text, False)]


def _reasons(record: GraphRecord) -> str:
    said = [f"{cause(site.kind, site.context)} at {_break(site)}" for site in record.break_sites]
    return "; ".join(said + [_skipped(skip) for skip in record.skipped])


def _outside_of(one: OutsideOperator) -> str:
    return f"{one.operator}{f' at {_short(one.place)}' if one.place else ''} is in no program ({one.reason})"


def _programs(number: int) -> str:
    return f"{number} program{'' if number == 1 else 's'}"


def _short(place: str) -> str:
    """``file:line`` without the folder, and without the code."""
    return Path(place.partition(" (")[0]).name


def _skipped(skip: SkippedFunction) -> str:
    counted = "its calls are not counted" if skip.ran_eager is None else f"{skip.ran_eager} calls"
    return f"{skip.function} ({_at(skip.file, skip.at_line)}) is not compiled, {counted}"


def _break(site: GraphBreak) -> str:
    text = f"{_at(site.file, site.line)} in {site.function} ({site.kind}"
    return text + (f": {site.context})" if site.context else ")")


def _at(file: str, line: int) -> str:
    return f"{Path(file).name}:{line}"
