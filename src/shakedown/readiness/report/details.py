"""The rest of the report: every case, every phase, every finding, and how it was measured."""

from __future__ import annotations

from ..judge.results import PathSummary, TimingSummary
from ..record import Record
from .words import Pairs, Section, Table, cases, grouped_findings, loss, name_of, pairs, seconds, size


def sections(record: Record) -> list[Section]:
    """Sections of the report file that follow the overview."""
    of = pairs(record)
    made = [
        _numbers(of),
        _between(record),
        _paths(of),
        _fallbacks(of),
        _first_steps(of),
        _caches(of),
        _steps(of),
        _findings(of),
        _checks(record),
        _statements(record),
        _method(record),
    ]
    return [section for section in made if section]


def _numbers(of: Pairs) -> Section:
    rows = []
    for cell, case in cases(of):
        t, losses = case.tensors, case.losses
        if t is None:
            rows.append((name_of(cell), case.case, case.verdict, "–", "–", "–", "–", "–", case.reason or "–"))
            continue
        steps = [key.removeprefix("device_") for key in losses if key.startswith("device_step")]
        rows.append(
            (
                name_of(cell),
                case.case,
                case.verdict,
                f"{t.judged - t.failed} of {t.judged}",
                f"`{t.worst_name}`",
                f"{t.worst_relative_l2:.1e} of {t.worst_allowed:.1e}",
                "–" if t.worst_ratio_to_cpu is None else f"{t.worst_ratio_to_cpu:.2f}",
                "–" if t.largest_outside_criterion is None else f"{t.largest_outside_criterion:.2%}",
                "; ".join(f"{s}: {loss(losses[f'device_{s}'], 6)} / {loss(losses[f'cpu_{s}'], 6)}" for s in steps),
            )
        )
    header = (
        "process", "case", "verdict", "tensors within", "worst tensor", "relative L2 of allowed", "error / CPU's",
        "outside elementwise criterion", "loss here / on the CPU",
    )  # fmt: skip
    said = "The elementwise criterion is reported and decides nothing. The vector of every tensor is in vectors.json."
    return Section("Numbers by case", [said], [Table(header, rows)])


def _between(record: Record) -> Section:
    rows = [
        (f"{b.one} and {b.other}", b.case, "yes" if b.bit_equal else "no", f"{b.relative_l2:.1e}", b.tensor or "–")
        for b in record.judgement.between_modes
    ]
    header = ("modes", "case", "bit-equal", "largest relative difference", "tensor")
    return Section("Compiled against eager, first step", [], [Table(header, rows)])


def _paths(of: Pairs) -> Section:
    rows = [
        (
            name_of(cell),
            case.case,
            p.phase,
            str(p.executed),
            str(p.distinct),
            "not seen" if p.fallbacks is None else str(p.fallbacks),
            size(p.moved_bytes),
        )
        for cell, case in cases(of)
        if case.paths
        for p in case.paths.phases
    ]
    header = ("process", "case", "phase", "calls on the device", "distinct", "left for the CPU", "bytes moved")
    return Section("Where one later step ran", [], [Table(header, rows)])


def _fallbacks(of: Pairs) -> Section:
    rows = [
        (
            name_of(cell),
            case.case,
            f.phase,
            f.name,
            f.reason,
            "–" if f.count is None else str(f.count),
            seconds(f.seconds),
            size(f.nbytes),
        )
        for cell, case in cases(of)
        if case.paths
        for f in case.paths.fallbacks or []
    ]
    return Section(
        "Operators that left the device",
        [],
        [Table(("process", "case", "phase", "operator", "why", "calls", "time", "bytes"), rows)],
    )


def _first_steps(of: Pairs) -> Section:
    rows = []
    for cell, case in cases(of):
        if case.timing is None:
            continue
        graphs = "–"
        if case.graphs is not None:
            breaks = case.graphs["breaks"]
            graphs = f"{case.graphs['captured']} captured, {sum(breaks.values())} breaks"
            graphs += "".join(f"; {reason}" for reason in breaks)
        start = case.timing.startup
        rows.append(
            (
                name_of(cell),
                case.case,
                ", ".join(f"{name} {seconds(value)}" for name, value in start.items()),
                ", ".join(f"{name} {seconds(value)}" for name, value in case.timing.first_step.items()),
                _programs(case.paths),
                graphs,
            )
        )
    said = (
        "Start-up happens once per process: launch is from starting the process to its first line, restore from "
        "loading the workload to weights on the device, optimizer the building of the first one. Every phase of a "
        "first step is awaited."
    )
    return Section(
        "Start-up and first steps",
        [said],
        [Table(("process", "case", "start-up", "first step", "programs in it", "graphs so far"), rows)],
    )


def _caches(of: Pairs) -> Section:
    rows = [
        (name_of(cell), "proved" if result.cache_proved else "NOT proved", result.cache_proof, result.repeats or "–")
        for cell, result in of
        if cell.cache != "none"
    ]
    return Section("Cache states", [], [Table(("process", "state", "by", "repeats"), rows)])


def _programs(paths: PathSummary | None) -> str:
    if paths is None or paths.compiled is None:
        return "not seen"
    return (
        f"{paths.compiled} compiled in {seconds(paths.compile_seconds)}, "
        f"{paths.loaded} loaded in {seconds(paths.load_seconds)}"
    )


def _steps(of: Pairs) -> Section:
    rows = [(name_of(cell), case.case, *_step_row(case.timing)) for cell, case in cases(of) if case.timing]
    header = ("process", "case", "median step", "quartiles", "n", "phases, each awaited (medians)", "doubts")
    return Section("Later steps", [], [Table(header, rows)])


def _step_row(timing: TimingSummary) -> tuple[str, ...]:
    later = timing.later
    if later.withheld:
        return ("withheld", "–", str(later.n), "–", later.withheld)
    phases = ", ".join(f"{phase} {seconds(value)}" for phase, value in timing.later_phases.items())
    spread = f"{seconds(later.q1)} to {seconds(later.q3)}"
    return (seconds(later.median), spread, str(later.n), phases, "; ".join(later.warnings) or "none")


def _findings(of: Pairs) -> Section:
    rows = [(name_of(cell), case.case, text) for cell, case in cases(of) for text in case.findings]
    rows += [
        (name_of(cell), "–", f"{cell.outcome.reason}; standard error ends: {cell.outcome.stderr_tail[-1500:]}")
        for cell, _ in of
        if cell.outcome.status in ("crashed", "timeout", "killed")
    ]
    return Section("All findings", [], [Table(("process", "case", "finding"), rows)])


def _checks(record: Record) -> Section:
    """What the checks of the other kinds of evidence found; the same text of several processes once."""
    rows = [
        (word, "yes" if fails else "no", text, ", ".join(where))
        for fails, word, text, where in grouped_findings(record)
    ]
    return Section("Findings of the checks", [], [Table(("word", "fails", "what", "where"), rows)])


def _statements(record: Record) -> Section:
    rows = [(s.kind, s.text) for s in record.judgement.decision.statements]
    return Section("What the verdict rests on", [], [Table(("kind", "statement"), rows)])


def _method(record: Record) -> Section:
    fixed, trial, snapshot = record.identity["fixed"], record.trial, record.snapshot
    versions = ", ".join(f"{name} {version}" for name, version in fixed.get("versions", {}).items())
    off = snapshot["dropout_switched_off"]
    lines = [
        f"Compiled means {trial['compiled_means']}.",
        f"A step is {trial['step_means']}.",
        f"Workload {trial['workload']} {snapshot['dimensions']}: {snapshot['parameters']} parameters, "
        f"{snapshot['optimizer']}, seed {snapshot['seed']}; dropout switched off in {', '.join(off) or 'no module'}.",
        f"Host: {fixed.get('cpu')}, {fixed.get('threads')} threads, {fixed.get('platform')}.",
        f"Software: Python {fixed.get('python')}, {versions}.",
        *_profiles(record),
        f"Snapshot {record.snapshot_sha256}.",
        f"Requirements {record.requirements_sha256}, locked before the first result.",
        f"Record sealed on {record.created} as {record.seal}.",
    ]
    return Section("How it was measured", lines)


def _profiles(record: Record) -> list[str]:
    """What the embedded device imitated, where it imitated a release."""
    found = [cell.get("profile") for cell in record.identity["cells"].values()]
    imitated = sorted({(p["name"], p.get("sha256", "")) for p in found if p and p["name"] != "native"})
    return [
        f"Support profile {name} ({sha256}): the device imitated the documented limits of that release."
        for name, sha256 in imitated
    ]
