"""What a reader needs to decide, one row per process."""

from __future__ import annotations

from ..judge.results import CaseResult, PathSummary
from ..record import Record
from .words import Pairs, Section, Table, cases, loss, name_of, pairs, seconds, share, size

PHASES = ("data", "forward", "backward", "optimizer")


def sections(record: Record) -> list[Section]:
    """The overview, in the order it is read."""
    of = pairs(record)
    made = [
        _numbers(record, of),
        _paths(record, of),
        _startup(record, of),
        _steps(record, of),
        _failures(of),
        _open(record),
    ]
    return [section for section in made if section]


def _numbers(record: Record, of: Pairs) -> Section:
    rows = []
    for cell, result in of:
        judged = [case.tensors for case in result.cases if case.tensors]
        if not judged:
            rows.append((name_of(cell), result.verdict, "–", "–", "–", "–"))
            continue
        ratios = [t.worst_ratio_to_cpu for t in judged if t.worst_ratio_to_cpu is not None]
        first = next(case for case in result.cases if case.tensors)
        rows.append(
            (
                name_of(cell),
                result.verdict,
                f"{sum(t.judged - t.failed for t in judged)}/{sum(t.judged for t in judged)}",
                share(max(t.worst_margin for t in judged)),
                f"{max(ratios):.2f}" if ratios else "–",
                _loss(first),
            )
        )
    header = ("process", "verdict", "tensors", "of gate", "of CPU's", "loss")
    steps = [case.training_steps for _, case in cases(of) if case.training_steps]
    said = (
        "Outputs, loss, gradients, buffers and updated weights of two training steps in every case, each against "
        "float64 on the CPU. Of gate: how much of the allowed error the worst tensor used. Of CPU's: that error "
        "over the CPU's own at the same precision. "
        f"Loss: case {record.trial['cases'][0]}, first batch, before training and after {max(steps, default=0)} steps."
    )
    return Section("Same numbers?", [said], [Table(header, rows)])


def _loss(case: CaseResult) -> str:
    if "device_step1" not in case.losses:
        return "–"  # nothing is trained
    return f"{loss(case.losses['device_step1'])} > {loss(case.losses['device_last'])}"


def _paths(record: Record, of: Pairs) -> Section:
    shown = record.trial["cases"][0]
    rows = []
    sources: dict[str, None] = {}
    left: dict[tuple[str, str, str], int | None] = {}
    seen = True
    for cell, case in cases(of):
        if case.paths is None or cell.mode == "reference" or cell.cache == "warm":
            continue
        sources[case.paths.source] = None
        seen &= case.paths.fallbacks is not None
        for fallback in case.paths.fallbacks or []:
            key = (fallback.name, fallback.phase, fallback.reason)
            left[key] = max((n for n in (left.get(key), fallback.count) if n is not None), default=None)
        if case.case == shown:
            moved = [p.moved_bytes for p in case.paths.phases if p.moved_bytes is not None]
            total = size(sum(moved)) if moved else "not seen"
            rows.append((name_of(cell), *(_phase(case.paths, phase) for phase in PHASES), total))
    if not rows:
        return Section("What ran where")
    header = ("process", *PHASES, "moved")
    said = f"One later step of case {shown}, by phase: calls on the device; 'left' are calls that ran on the CPU. "
    tables = [Table(header, rows)]
    if left:
        calls = {key: "not counted" if count is None else str(count) for key, count in left.items()}
        gone = [(name, phase, calls[name, phase, reason], reason) for name, phase, reason in sorted(left)]
        tables.append(Table(("left the device", "phase", "calls a step", "why"), gone))
    elif seen:
        said += "No operator left the device in any case. "
    return Section("What ran where", [said + f"Source: {'; '.join(sources)}."], tables)


def _phase(paths: PathSummary, name: str) -> str:
    found = next((p for p in paths.phases if p.phase == name), None)
    if found is None:
        return "–"
    return f"{found.executed}" + (f", {found.fallbacks} left" if found.fallbacks else "")


def _startup(record: Record, of: Pairs) -> Section:
    rows = []
    crowded = []
    for cell, result in of:
        case = next((case for case in result.cases if case.timing), None)
        if case is None or case.timing is None:
            continue
        start = case.timing.startup
        if (case.timing.first_step_foreign_cores or 0.0) > record.requirements.timing.foreign_load:
            crowded.append(name_of(cell))
        rows.append(
            (
                name_of(cell),
                seconds(start["import_torch"]),
                seconds(start["device_init"]),
                seconds(start["restore"] + start["optimizer"]),
                seconds(sum(case.timing.first_step.values())),
                _programs(case.paths),
                seconds(cell.outcome.seconds),
            )
        )
    header = ("process", "import", "device", "model", "first step", "programs", "in all")
    text = (
        "Once per process. Import: torch. Model: weights onto the device, and an optimizer, with which PyTorch imports "
        "its compiler. First step: of the first case. Programs: compiled, or loaded from the cache, in that step."
    )
    said = [text, *_caches(of)]
    if crowded:
        said.append(
            "Other processes kept the machine busy in the first step of "
            f"{'every process' if len(crowded) == len(rows) else ', '.join(crowded)}: these times are too long."
        )
    return Section("What starting costs", said, [Table(header, rows)])


def _caches(of: Pairs) -> list[str]:
    """One sentence when every cache was in the state that was claimed, otherwise one for each that was not."""
    claimed = [(cell, result) for cell, result in of if cell.cache != "none" and any(c.timing for c in result.cases)]
    said = [
        f"{name_of(cell)}: cache state NOT proved, {result.cache_proof}."
        for cell, result in claimed
        if not result.cache_proved
    ]
    if claimed and not said:
        said = [
            "Cache states proved: cold processes found an empty cache, warm ones a filled one and compiled nothing."
        ]
    return said + [f"{name_of(cell)}: {result.repeats}." for cell, result in claimed if result.repeats]


def _programs(paths: PathSummary | None) -> str:
    if paths is None or paths.compiled is None:
        return "–"
    parts = [f"{paths.compiled} compiled"] if paths.compiled else []
    parts += [f"{paths.loaded} loaded"] if paths.loaded else []
    return ", ".join(parts) or "none"


def _steps(record: Record, of: Pairs) -> Section:
    names = record.trial["cases"]
    rows = []
    doubts: dict[str, dict[str, list[str]]] = {}
    for cell, result in of:
        if not any(case.timing for case in result.cases):
            continue
        row = [name_of(cell)]
        for case in result.cases:
            text, doubt = _step(case)
            if doubt:
                doubts.setdefault(doubt, {}).setdefault(name_of(cell), []).append(case.case)
                text += " *" if text != "withheld" else ""
            row.append(text)
        rows.append(tuple(row))
    said = [
        "One training step from batch on the host to updated weights, completion awaited: median (quartiles) over the "
        "timed steps of one process; not an average. * has a doubt, below."
    ]
    for doubt, where in doubts.items():
        said.append(f"{'; '.join(f'{name} ' + ', '.join(found) for name, found in where.items())}: {doubt}.")
    return Section("What a step costs", said, [Table(("process", *names), rows)])


def _step(case: CaseResult) -> tuple[str, str]:
    if case.timing is None:
        return "–", ""
    later = case.timing.later
    if later.withheld:
        return "withheld", later.withheld
    return f"{seconds(later.median)} ({seconds(later.q1)}–{seconds(later.q3)})", "; ".join(later.warnings)


def _failures(of: Pairs) -> Section:
    said = []
    seen: dict[tuple[str, ...], str] = {}
    for cell, result in of:
        found = [f"{case.case}: {text}" for case in result.cases for text in case.findings]
        if found and tuple(found) in seen:
            said.append(f"{name_of(cell)}: the same {len(found)} findings as {seen[tuple(found)]}.")
            continue
        seen[tuple(found)] = name_of(cell)
        found = [f"{name_of(cell)} {text}" for text in found]
        said += found[:5]
        if len(found) > 5:
            said.append(f"{name_of(cell)}: and {len(found) - 5} more, in the report file.")
        if cell.outcome.status in ("crashed", "timeout", "killed"):
            said.append(f"{name_of(cell)}: {result.verdict}, {cell.outcome.reason} ({cell.outcome.stderr_file}).")
    return Section("Findings", said)


def _open(record: Record) -> Section:
    """What nobody should think was tested."""
    return Section("Untested", [s.text + "." for s in record.judgement.statements if s.kind == "open"])
