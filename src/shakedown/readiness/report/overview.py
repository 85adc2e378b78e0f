"""What a reader needs to decide, one row per process."""

from __future__ import annotations

from collections import Counter

from ..judge.measured import PooledTiming
from ..judge.results import CaseResult, PathSummary
from ..record import Record
from . import break_even, payback, projection
from .words import (
    Pairs,
    Section,
    Table,
    by_side,
    cases,
    grouped_findings,
    loss,
    name_of,
    pairs,
    seconds,
    share,
    side_of,
    size,
    worst,
)

PHASES = ("data", "forward", "backward", "optimizer", "step")  # the last is all of a step that is one program
OTHER = {"restart": "restart", "probe": "neighbours"}  # columns of processes that compare no case


def sections(record: Record) -> list[Section]:
    """The overview, in the order it is read."""
    of = pairs(record)
    made = [
        _numbers(record, of),
        _variations(record, of),
        _paths(record, of),
        _graphs(record),
        _startup(record, of),
        _steps(record),
        break_even.brief(record),
        projection.brief(record),
        payback.brief(record),
        _findings(record, of),
        _open(record),
    ]
    return [section for section in made if section]


def _numbers(record: Record, of: Pairs) -> Section:
    rows = []
    for side, own in by_side(of).items():
        compared = [(cell, result) for cell, result in own if cell.cases]
        verdict = worst([case.verdict for _, result in compared for case in result.cases])
        judged = [case.tensors for _, result in compared for case in result.cases if case.tensors]
        if not judged:
            rows.append((side_of(*side), verdict, "–", "–", "–", "–", "–"))
            continue
        ratios = [t.worst_ratio_to_cpu for t in judged if t.worst_ratio_to_cpu is not None]
        first = next(case for _, result in compared for case in result.cases if case.tensors)
        rows.append(
            (
                side_of(*side),
                verdict,
                str(sum(1 for _, result in compared if any(c.tensors for c in result.cases))),
                f"{sum(t.judged - t.failed for t in judged)}/{sum(t.judged for t in judged)}",
                share(max(t.worst_margin for t in judged)),
                f"{max(ratios):.2f}" if ratios else "–",
                _loss(first),
            )
        )
    header = ("mode", "verdict", "processes", "tensors", "of gate", "of CPU's", "loss")
    steps = [case.training_steps for _, case in cases(of) if case.training_steps]
    said = (
        "Outputs, loss, gradients, buffers, updated weights and optimizer state of two training steps in every case and "
        "variation, each against float64 on the CPU. Of gate: how much of the allowed error the worst tensor used. Of CPU's: "
        "that error over the CPU's own at the same precision. "
        f"Loss: case {record.trial['cases'][0]}, first batch, before training and after {max(steps, default=0)} steps."
    )
    return Section("Same numbers?", [said], [Table(header, rows)])


def _loss(case: CaseResult) -> str:
    if "device_step1" not in case.losses:
        return "–"  # nothing is trained
    return f"{loss(case.losses['device_step1'])} > {loss(case.losses['device_last'])}"


def _variations(record: Record, of: Pairs) -> Section:
    """What became of each change that all modes met alike."""
    names = [case.partition("~")[2] for case in record.trial["varied"]]
    names += [name for kind, name in OTHER.items() if any(cell.kind == kind for cell, _ in of)]
    rows = []
    for (mode, dtype), own in by_side(of).items():
        found: dict[str, str] = {}
        for cell, result in own:
            if cell.kind in OTHER:
                found[OTHER[cell.kind]] = result.verdict
            for case in result.cases:
                if "~" in case.case:
                    found[case.case.partition("~")[2]] = case.verdict
        if found:
            rows.append((side_of(mode, dtype), *(found.get(name, "–") for name in names)))
    said = [
        "One change at a time, each in a process of its own: padding; inputs in another memory order; reading and printing "
        "the loss now and then; large, tiny and tied inputs. Restart: training that was saved, ended and loaded. Neighbours: "
        "the workload's operators with other layouts, dtypes and sizes, and fixed probes of number formats."
    ]
    return Section("Variations", said if rows else [], [Table(("mode", *names), rows)])


def _paths(record: Record, of: Pairs) -> Section:
    shown = record.trial["cases"][0]
    rows = []
    sources: dict[str, None] = {}
    left: dict[tuple[str, str, str], int | None] = {}
    seen = True
    for cell, case in cases(of):
        if case.paths is None or cell.mode == "reference" or cell.cache == "warm" or cell.kind == "single":
            continue
        sources[case.paths.source] = None
        seen &= case.paths.fallbacks is not None
        for fallback in case.paths.fallbacks or []:
            key = (fallback.name, fallback.phase, fallback.reason)
            left[key] = max((n for n in (left.get(key), fallback.count) if n is not None), default=None)
        if case.case == shown and cell.kind == "sequence":
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


def _graphs(record: Record) -> Section:
    """Compiled: how much of it was. Adaptive: how much was fused."""
    by_id = {cell.id: cell for cell in record.cells}
    rows = []
    for cell_id, one in record.judgement.graphs.items():
        cell = by_id[cell_id]
        if cell.kind != "sequence" or cell.cache == "warm":
            continue
        outside = "–" if one.share_outside is None else share(one.share_outside)
        full = "–" if one.full_graph is None else "yes" if one.full_graph.passes else one.full_graph.reason
        again = str(one.compiled_again) + (f", {one.ran_eager} calls ran eager" if one.ran_eager else "")
        rows.append((name_of(cell), str(one.captured), again, outside, full))
    fused = []
    for cell_id, seen in record.judgement.fusion.items():
        cell = by_id[cell_id]
        for case, found in seen.items() if cell.kind == "sequence" and cell.cache != "warm" else ():
            part = "–" if found.share is None else share(found.share)
            rest = "; ".join(f"{one.count} {one.reason}" for one in found.not_fused[:2]) or "–"
            fused.append((name_of(cell), case, f"{found.fused} of {found.total}", part, str(found.groups), rest))
    said = []
    if rows:
        said.append(
            "Compiled: graphs of forward and loss over all cases, compilations because a guard no longer held, the share of "
            "forward and backward time outside graphs, and whether one graph for all would do."
        )
    if fused:
        said.append(
            "Adaptive eager: operators of a settled step that ran in fused programs, and why the others did not."
        )
    return Section(
        "Graphs and fusion",
        said,
        [
            Table(("process", "graphs", "compiled again", "outside", "one graph"), rows),
            Table(("process", "case", "fused", "share", "groups", "not fused"), fused),
        ],
    )


def _startup(record: Record, of: Pairs) -> Section:
    """One row for each mode and precision: a start of the first case, cold and warm."""
    first = record.trial["cases"][0]
    rows = []
    for one in record.judgement.timings:
        if one.case != first:
            continue
        starts = {start.cache: start for start in one.starts}
        row = [side_of(one.mode, one.dtype)]
        for cache in ("cold", "warm", "none"):
            start = starts.get(cache)
            row += ["–", "–"] if start is None else [_spread(start.start_up), _spread(start.first_step)]
        rows.append((*row, _first_programs(of, one)))
    header = (
        "mode",
        "cold: start",
        "first step",
        "warm: start",
        "first step",
        "no cache: start",
        "first step",
        "programs cold",
    )
    said = [
        f"Case {first}, seconds from starting the process to the workload on the device, and of its first step; the range over "
        "processes where there were several. Programs: compiled in the first step of the cold process.",
        *_caches(of),
    ]
    return Section("What starting costs", said, [Table(header, rows)])


def _spread(values: list[float]) -> str:
    low, high = min(values), max(values)
    return seconds(low) if low == high else f"{seconds(low)}–{seconds(high)}"


def _first_programs(of: Pairs, one: PooledTiming) -> str:
    for cell, result in of:
        if (cell.mode, cell.dtype) == (one.mode, one.dtype) and cell.cache != "warm" and result.cases:
            return _programs(result.cases[0].paths)
    return "–"


def _caches(of: Pairs) -> list[str]:
    """One sentence when every cache was in the state that was claimed, otherwise one for each that was not."""
    claimed = [(cell, result) for cell, result in of if cell.cache != "none" and any(c.timing for c in result.cases)]
    unequal = [
        f"{name_of(cell)}: {result.repeats}." for cell, result in claimed if result.repeats and not result.repeats_equal
    ]
    said = [
        f"{name_of(cell)}: cache state NOT proved, {result.cache_proof}."
        for cell, result in claimed
        if not result.cache_proved
    ]
    if claimed and not said:
        said = [
            "Cache states proved: cold processes found an empty cache, warm ones a filled one and compiled nothing."
        ]
    if any(result.repeats for _, result in claimed) and not unequal:
        said.append("Every warm process gave the same bits as the cold one.")
    return said + unequal


def _programs(paths: PathSummary | None) -> str:
    if paths is None or paths.compiled is None:
        return "–"
    parts = [f"{paths.compiled} compiled"] if paths.compiled else []
    parts += [f"{paths.loaded} loaded"] if paths.loaded else []
    return ", ".join(parts) or "none"


def _steps(record: Record) -> Section:
    """One row for each mode and precision, one column for each case."""
    names = list(dict.fromkeys(one.case for one in record.judgement.timings if "~" not in one.case))
    rows: dict[tuple[str, str], dict[str, str]] = {}
    doubts: dict[str, list[str]] = {}
    for one in record.judgement.timings:
        if "~" in one.case:
            continue
        found = rows.setdefault((one.mode, one.dtype), {})
        where = f"{side_of(one.mode, one.dtype)} {one.case}"
        if one.median is None:
            found[one.case] = "withheld"
            doubts.setdefault(one.withheld, []).append(where)
            continue
        found[one.case] = _step(one)
        for warning in one.warnings:
            doubts.setdefault(warning, []).append(where)
    said = [
        "One step in the steady state, from batch on the host to updated weights, completion awaited: median of the processes' "
        "medians (its interval by a bootstrap over processes and steps), and its ratio to the CPU where one may be claimed. "
        "Not an average."
    ]
    said += [f"{text}: {_listed(where, len(record.judgement.timings))}." for text, where in list(doubts.items())[:8]]
    table = [(side_of(*side), *(found.get(name, "–") for name in names)) for side, found in rows.items()]
    return Section("What a step costs", said if table else [], [Table(("mode", *names), table)])


def _step(one: PooledTiming) -> str:
    text = seconds(one.median)
    if one.interval is not None:
        text += f" ({seconds(one.interval.low)}–{seconds(one.interval.high)})"
    over = next((ratio for ratio in one.ratios if ratio.over == "reference"), None)
    if over is not None and over.value is not None:
        text += f", {over.value:.2f}x CPU" if over.claim != "none" else ", no claim"
    return text


def _listed(where: list[str], of: int) -> str:
    return f"{len(where)} of {of} step times" if len(where) > 4 else ", ".join(where)


def _findings(record: Record, of: Pairs) -> Section:
    """What failed first, then what a reader should know; the report file has all of it."""
    said = []
    seen: dict[tuple[str, ...], str] = {}
    for cell, result in of:
        found = [f"{case.case}: {text}" for case in result.cases for text in case.findings]
        if found and tuple(found) in seen:
            said.append(f"{name_of(cell)}: the same {len(found)} findings as {seen[tuple(found)]}.")
            continue
        seen[tuple(found)] = name_of(cell)
        said += [f"{name_of(cell)} {text}" for text in found[:5]]
        if len(found) > 5:
            said.append(f"{name_of(cell)}: and {len(found) - 5} more, in the report file.")
        if cell.outcome.status in ("crashed", "timeout", "killed"):
            said.append(f"{name_of(cell)}: {result.verdict}, {cell.outcome.reason} ({cell.outcome.stderr_file}).")
    notes: Counter[str] = Counter()
    for fails, word, text, places in grouped_findings(record):
        if fails:
            said.append(f"FAILS {word}: {text} ({_places(places)}).")
        else:
            notes[word] += 1
    if notes:
        listed = ", ".join(f"{word} ({count})" if count > 1 else word for word, count in sorted(notes.items()))
        said.append(f"For the reader, in the report file: {listed}.")
    return Section("Findings", said)


def _places(where: list[str]) -> str:
    return ", ".join(where[:3]) + (f" and {len(where) - 3} more" if len(where) > 3 else "")


def _open(record: Record) -> Section:
    """What nobody should think was tested."""
    return Section("Untested", [s.text + "." for s in record.judgement.decision.statements if s.kind == "open"])
