"""Words from a comparison of two records: as Markdown for a pull request, and on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from ..compare.results import Comparison, Side, StepChange, VerdictChange
from ..judge.resample import Interval
from .render import section_lines, show_section
from .words import Section, Table, seconds, share, side_of, size

_ROWS = 25  # of one table; the JSON has all of them
_NOTHING = "–"
_DECIDING = ("What limits it", "Verdicts", "Requirements that were changed", "Findings")
_SMALL = 0.05  # share by which memory may differ without a row: allocators round, and the host's figure is a sample


def markdown(comparison: Comparison) -> str:
    """The whole comparison as Markdown."""
    lines = [f"# {title(comparison)}", "", f"**{headline(comparison)}**", ""]
    for section in sections(comparison):
        lines += section_lines(section)
    return "\n".join(lines)


def terminal(comparison: Comparison, console: Console, file: str = "") -> None:
    """The comparison on a terminal, what decides last, where the eye rests. With a `file` that has all of it, only what
    decides.
    """
    for section in sections(comparison):
        if not file or section.title in _DECIDING:
            show_section(section, console)
    colour = "red" if comparison.regressions else "green"
    text = "\n".join(escape(one) for one in (headline(comparison), *_cut(comparison.regressions)))
    console.print(Panel(text, title=escape(title(comparison)), border_style=colour))
    if file:
        console.print(f"comparison  {escape(file)}", soft_wrap=True, highlight=False)


def title(comparison: Comparison) -> str:
    """What is compared, and how it counts."""
    before, after = comparison.before, comparison.after
    labels = after.label if before.label == after.label else f"{before.label} and {after.label}"
    name = after.workload if before.workload == after.workload else f"{before.workload} and {after.workload}"
    return f"Comparison of two records of {name} ({labels})"


def headline(comparison: Comparison) -> str:
    """Whether anything got lost, in a sentence."""
    count = len(comparison.regressions)
    still = sum(one.change == "still fails" and not one.case for one in comparison.verdicts)
    rest = (
        f"; {still} {'process' if still == 1 else 'processes'} failed before and still {'does' if still == 1 else 'do'}"
    )
    found = "No regression" if not count else f"{count} regression{'s' if count > 1 else ''}"
    return f"{found}{rest if still else ''}. Now: {comparison.after.disposition} – {comparison.after.sentence}"


def sections(comparison: Comparison) -> list[Section]:
    """All sections that hold anything, in the order they are read."""
    made = [
        Section("Regressions", _cut(comparison.regressions)),
        _records(comparison),
        Section("What limits it", comparison.cautions),
        _verdicts(comparison),
        _identity(comparison),
        Section("Requirements that were changed", _cut([f"`{text}`" for text in comparison.requirements])),
        _numbers(comparison),
        _paths(comparison),
        _findings(comparison),
        _steps(comparison),
        _starts(comparison),
        _memory(comparison),
    ]
    return [section for section in made if section]


def _cut(said: Sequence[str]) -> list[str]:
    more = len(said) - _ROWS
    return [*said[:_ROWS], *([f"and {more} more, in the JSON"] if more > 0 else [])]


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[Table]:
    """A table of the first rows, and one line that says how many there are besides."""
    more = len(rows) - _ROWS
    kept = list(rows[:_ROWS])
    if more > 0:
        kept.append((f"and {more} more, in the JSON", *[_NOTHING] * (len(header) - 1)))
    return [Table(header, kept)]


def _records(comparison: Comparison) -> Section:
    rows = [(name, *_record(side)) for name, side in (("before", comparison.before), ("after", comparison.after))]
    return Section("Records", [], [Table(("", "record", "made", "label", "disposition", "seal"), rows)])


def _record(side: Side) -> tuple[str, ...]:
    return (side.directory, side.created, side.label, side.disposition, side.seal[:12])


def _verdicts(comparison: Comparison) -> Section:
    rows = [
        (one.name, one.before or _NOTHING, one.after or _NOTHING, "worse" if one.regression else "", one.why)
        for one in comparison.results
    ]
    shown = [one for one in comparison.verdicts if not (one.case and _told(one, comparison.verdicts))]
    rows += [
        (
            f"{one.cell} {one.case}".strip(),
            one.before or _NOTHING,
            one.after or _NOTHING,
            one.change,
            one.why or _NOTHING,
        )
        for one in sorted(shown, key=lambda one: not one.regression)
    ]
    count = comparison.unchanged
    said = f"{count} {'process has the verdict it had, and passed' if count == 1 else 'processes have the verdict they had'}"
    return Section(
        "Verdicts",
        [f"{said}." if count else "No process has the verdict it had."],
        _table(("what", "before", "after", "change", "why"), rows),
    )


def _told(one: VerdictChange, all_of: list[VerdictChange]) -> bool:
    """Whether the row of its process says the same."""
    same = (one.cell, "", one.change, one.before, one.after)
    return any((other.cell, other.case, other.change, other.before, other.after) == same for other in all_of)


def _identity(comparison: Comparison) -> Section:
    meaning = {"host": "must be equal for times", "settings": "set by who ran it", "software": "versions"}
    rows = [
        (one.name, one.before or _NOTHING, one.after or _NOTHING, f"{one.group}: {meaning[one.group]}")
        for one in comparison.identity
    ]
    said = [] if rows else ["Host, software and settings are the same."]
    return Section("Who measured", said, _table(("fact", "before", "after", "kind"), rows))


def _numbers(comparison: Comparison) -> Section:
    said = ["Share of its allowance that the worst tensor used, and which one it was; at 100% it fails."]
    rows = [
        (
            side_of(one.mode, one.dtype),
            _NOTHING if one.before is None else share(one.before),
            one.before_tensor or _NOTHING,
            _NOTHING if one.after is None else share(one.after),
            one.after_tensor or _NOTHING,
        )
        for one in comparison.margins
    ]
    tables = _table(("mode", "before", "worst then", "after", "worst now"), rows)
    worse = [(f"{one.cell} {one.case}", one.tensor, share(one.before), share(one.after)) for one in comparison.tensors]
    return Section(
        "Numbers", said if rows else [], tables + _table(("where", "tensor that got worse", "before", "after"), worse)
    )


def _paths(comparison: Comparison) -> Section:
    fallbacks = [
        (one.change, one.name, one.phase or _NOTHING, one.cause, ", ".join(one.modes)) for one in comparison.fallbacks
    ]
    graphs = [(one.cell, one.what, str(one.before), str(one.after)) for one in comparison.graphs]
    return Section(
        "Paths and graphs",
        [],
        _table(("fallback", "operator", "phase", "cause", "modes"), fallbacks)
        + _table(("process", "of the compiler", "before", "after"), graphs),
    )


def _findings(comparison: Comparison) -> Section:
    rows = [
        (f"{one.change}{', fails' if one.fails else ''}", one.word, _places(one.where), one.text)
        for one in comparison.findings
    ]
    return Section("Findings", [], _table(("", "word", "where", "the first of them"), rows))


def _places(where: list[str]) -> str:
    return ", ".join(where[:2]) + (f" and {len(where) - 2} more" if len(where) > 2 else "")


def _steps(comparison: Comparison) -> Section:
    kinds = {kind for one in comparison.steps for kind in (one.kind_before, one.kind_after) if kind}
    said = [
        "Median of a step in the steady state, with its interval. The ratio is after over before: under 1 is faster."
    ]
    if "rehearsal" in kinds:
        said.append("Rehearsal times are those of the embedded device, and say nothing of Trainium.")
    reasons: dict[str, list[str]] = {}
    rows = []
    for one in comparison.steps:
        name = f"{side_of(one.mode, one.dtype)} {one.case}"
        if one.why:
            reasons.setdefault(one.why, []).append(name)
        if one.before is None and one.after is None:
            continue
        ratio = _NOTHING if one.ratio is None else f"{one.ratio:.2f}{_range(one.interval)}"
        claim = _NOTHING if one.ratio is None else "no claim" if one.claim == "none" else one.claim
        rows.append((name, _time(one, "before"), _time(one, "after"), ratio, claim))
    said += [f"{len(where)} of {len(comparison.steps)}: {why}" for why, where in list(reasons.items())[:6]]
    table = _table(("mode and case", "before", "after", "ratio", "claim"), rows)
    return Section("What a step costs", said if comparison.steps else [], table)


def _time(one: StepChange, which: str) -> str:
    value, interval = (one.before, one.before_interval) if which == "before" else (one.after, one.after_interval)
    if value is None:
        return _NOTHING
    return seconds(value) + (f" ({seconds(interval.low)}–{seconds(interval.high)})" if interval else "")


def _range(interval: Interval | None) -> str:
    return f" ({interval.low:.2f}–{interval.high:.2f})" if interval else ""


def _starts(comparison: Comparison) -> Section:
    rows = [
        (
            f"{side_of(one.mode, one.dtype)} {one.case}",
            one.cache,
            seconds(one.before),
            seconds(one.after),
            f"{one.before_processes}, {one.after_processes}",
        )
        for one in comparison.starts
    ]
    said = ["From starting a process to the end of its first step; medians of a few processes, so no ratio is made."]
    return Section(
        "What starting costs",
        said if rows else [],
        _table(("mode and case", "cache", "before", "after", "processes"), rows),
    )


def _memory(comparison: Comparison) -> Section:
    rows, alike = [], 0
    for one in comparison.memory:
        if one.before and one.after is not None and abs(one.after / one.before - 1) < _SMALL:
            alike += 1
            continue
        name = f"{side_of(one.mode, one.dtype)} {one.case}"
        rows.append((name, one.what, size(one.before), size(one.after), one.why or _NOTHING))
    said = [f"{alike} figures differ by less than {_SMALL:.0%} and are left out."] if alike else []
    return Section("Memory of a step", said, _table(("mode and case", "where", "before", "after", "note"), rows))
