"""Before the trial: can the workload go as its requirements say? Judged from shapes, operators and documents.

Nothing is executed on any device: the step is traced without values (:mod:`.trace`), the source is read
(:mod:`shakedown.readiness.scan`), and a support profile says what becomes of the operators. So a forecast knows neither time nor
numbers, and predicts programs without promising them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Literal

from .. import requirements, targets, workload
from ..errors import BadInput, WorkloadError
from ..evidence import Frozen, sha256
from ..requirements import CaseDemand, Requirements
from ..requirements.positions import lines, nearest
from ..scan import Hit, scan
from . import support
from .expect import reasons
from .known import Known, Programs, Reason
from .programs import programs
from .trace import PHASES, Traced, trace

SCHEMA = "shakedown.forecast/1"
Outcome = Literal["compatible as specified", "needs a revised test plan", "blocked"]
LIMITS = (
    "No time: what a step, a compilation or a fallback costs is measured by the trial.",
    "No numbers: precision is compared by the trial; only dtypes are known here.",
    "One path: branches on values are followed one way, and what the step computes on the CPU itself is not followed.",
    "No compiler: whether a program compiles on the device, and how many there will be, is predicted from shapes.",
    "The profile holds what was published about the release; where that is silent, the embedded device's table speaks, which "
    "is a rehearsal.",
)

Progress = Callable[[str, float], None]


class PhaseCount(Frozen):
    """Distinct operators of one phase in one mode: how many would run on the device, on the CPU, and nowhere."""

    mode: str
    phase: str
    native: int
    fallback: int
    missing: int


class Traces(Frozen):
    """What was traced: case, dtype, how the model was made, distinct operators, and whether the end was reached."""

    case: str
    dtype: str
    built: str
    operators: int
    complete: bool


class Forecast(Frozen):
    """The whole forecast. ``kind`` says what it is: documents and shapes, nothing that was measured."""

    schema_version: str = SCHEMA
    kind: str = "forecast: from shapes, source and documents; nothing ran on any device"
    workload: str
    workload_sha256: str
    requirements_file: str
    requirements_file_sha256: str
    target: str
    profile: str
    torch: str
    modes: tuple[str, ...]
    dtypes: tuple[str, ...]
    cases: tuple[str, ...]
    outcome: Outcome
    sentence: str
    reasons: list[Reason]
    programs: Programs
    phases: list[PhaseCount]
    traces: list[Traces]
    limits: tuple[str, ...] = LIMITS


def forecast(
    spec: str,
    requirements_file: Path | None = None,
    profile: str | None = None,
    target: str = "neuron",
    progress: Progress = lambda what, share: None,
) -> Forecast:
    """Forecast the workload `spec` under a support profile (None: the active one).

    Raises:
        BadInput: workload, requirements, profile or target are not there or wrong, or the workload cannot be built.
    """
    demand, chosen_target = requirements.load(requirements_file), targets.get(target)
    source = workload.resolve(spec)
    loaded = load(source)
    chosen = profile or support.active_profile()
    rules = support.rules(chosen)  # a profile with a mistake is told before the work
    cases = _cases(demand, loaded)
    dtypes = tuple(demand.workload.dtypes) or loaded.dtypes
    modes = tuple(demand.workload.modes)
    traces: list[Traced] = []
    ends = list(dict.fromkeys((min(cases, key=_elements), max(cases, key=_elements))))
    jobs = [(workload.Case(case.size, case.padded_to or case.length), dtype) for case in ends for dtype in dtypes]
    for index, (case, dtype) in enumerate(dict.fromkeys(jobs)):
        progress(f"tracing {case} in {dtype}", 0.1 + 0.7 * index / len(jobs))
        traced = trace(loaded, case, dtype)
        for stop in traced.stops:
            if stop.phase == "build":
                raise WorkloadError(f"{source.path}: {stop.why}{f' at {stop.line}' if stop.line else ''}")
        traces.append(traced)
    progress("asking the profile", 0.8)
    asked: dict[str, support.Mode] = {"eager": "eager"} if {"eager", "adaptive"} & {*modes} else {}
    if "compiled" in modes:
        asked["compiled"] = "compiled"
    placed = {name: [support.place(traced, mode, chosen) for traced in traces] for name, mode in asked.items()}
    progress("reading the source", 0.9)
    limit = _recompile_limit()
    known = Known(
        demand=demand,
        cases=cases,
        modes=modes,
        target=chosen_target,
        profile=chosen,
        rules=rules,
        traces=traces,
        placed=placed,
        hits=_hits(source),
        programs=programs(demand, cases, sequences=_sequences(traces), limit=limit),
        recompile_limit=limit,
        at=_line_finder(requirements_file),
    )
    found = reasons(known)
    outcome = _outcome(found)
    return Forecast(
        workload=source.name,
        workload_sha256=source.sha256,
        requirements_file=str(requirements_file or ""),
        requirements_file_sha256=sha256(requirements_file) if requirements_file else "",
        target=target,
        profile=chosen,
        torch=traces[0].torch,
        modes=modes,
        dtypes=dtypes,
        cases=tuple(f"{case.size}x{case.length}" for case in cases),
        outcome=outcome,
        sentence=_sentence(source.name, outcome, found, chosen),
        reasons=found,
        programs=known.programs,
        phases=_phases(known),
        traces=[
            Traces(
                case=traced.case,
                dtype=traced.dtype,
                built=traced.built,
                operators=len(traced.operators()),
                complete=traced.complete,
            )
            for traced in traces
        ],
    )


def load(source: workload.Source) -> workload.Workload:
    """:func:`.workload.load`, with whatever the file raises as a :class:`WorkloadError`, and what it prints on standard error."""
    try:
        with redirect_stdout(sys.stderr):
            return workload.load(source)
    except BadInput:
        raise
    except (Exception, SystemExit) as error:
        raise WorkloadError(f"{source.path} cannot be imported: {type(error).__name__}: {error}") from error


def _cases(demand: Requirements, loaded: workload.Workload) -> list[CaseDemand]:
    """The requirements' cases or the workload's own, and the real maximum."""
    cases = list(demand.cases) or [CaseDemand(size=case.size, length=case.length) for case in loaded.cases]
    if demand.variations.maximum:
        largest = workload.Case.parse(demand.variations.maximum)
        if not any(
            (case.size, case.length) == (largest.size, largest.length)
            or (case.size, case.padded_to) == (largest.size, largest.length)
            for case in cases
        ):
            cases.append(CaseDemand(size=largest.size, length=largest.length))
    return cases


def _elements(case: CaseDemand) -> int:
    return case.size * (case.padded_to or case.length)


def _sequences(traces: list[Traced]) -> bool:
    """Whether lengths are of sequences: an input has them as its second and last but at most one dimension."""
    for traced in traces:
        case = workload.Case.parse(traced.case)
        if any(len(i.shape) in (2, 3) and i.shape[:2] == (case.size, case.length) for i in traced.inputs):
            return True
    return False


def _hits(source: workload.Source) -> list[Hit]:
    return scan(source).hits


def _recompile_limit() -> int:
    import torch._dynamo

    return int(torch._dynamo.config.recompile_limit)


def _line_finder(file: Path | None) -> Callable[[str], str]:
    """Of a dotted key: the key and where it stands, ``workload.float64 (requirements.toml:7)``."""
    positions: dict[Any, int] = lines(file.read_text()) if file else {}

    def at(key: str) -> str:
        place = tuple(key.split("."))
        if file is None or place not in positions:
            return key
        return f"{file.name}:{nearest(positions, place)}: {key}"

    return at


def _outcome(found: list[Reason]) -> Outcome:
    levels = {reason.level for reason in found}
    if "blocks" in levels:
        return "blocked"
    return "needs a revised test plan" if "revise" in levels else "compatible as specified"


def _sentence(name: str, outcome: Outcome, found: list[Reason], profile: str) -> str:
    words = list(dict.fromkeys(r.word for r in found if r.level == ("blocks" if outcome == "blocked" else "revise")))
    why = f": {', '.join(words)}" if words else ""
    return f"{name} under profile {profile}: {outcome}{why}."


def _phases(known: Known) -> list[PhaseCount]:
    rows = []
    for mode, by_trace in known.placed.items():
        for phase in PHASES:
            worst: dict[str, str] = {}
            for placed in by_trace:
                for one in placed:
                    if one.phase == phase:
                        before = worst.get(one.support.operator, "native")
                        order = ("native", "fallback", "missing")
                        worst[one.support.operator] = max(before, one.support.verdict, key=order.index)
            counts = {word: list(worst.values()).count(word) for word in ("native", "fallback", "missing")}
            rows.append(PhaseCount(mode=mode, phase=phase, **counts))
    return rows
