"""The section about losses over many steps, and the page that `shakedown parity` writes."""

from __future__ import annotations

from ..judge.parity_results import ParityResult
from ..parity.document import ParityDocument
from ..record import Record
from .words import MODES, Section, Table, share

_WINDOWS = 12  # of a long run, the worst ones
_EVENTS = 6


def section(record: Record) -> Section:
    """One row for each process that trained for many steps, then what was seen beside it."""
    found = record.judgement.parity
    if not found:
        return Section("Loss parity")
    first = next((one for one in found if one.steps), None)
    sentences = []
    if first is not None:
        sentences.append(
            f"Losses of {first.steps} steps against the CPU and {first.twins} twins of it, whose weights were nudged by one unit "
            f"roundoff: r is how many times further away than the furthest twin the target is, {first.allowed_ratio:g} is "
            "allowed. Losses alone pass no training."
        )
    told = [f"{_name(one)}: {text}" for one in found for text in _beside(one)]
    return Section("Loss parity", sentences + list(dict.fromkeys(told)), [_table(found)])


def page(document: ParityDocument) -> Section:
    """What `shakedown parity` found, as sentences and tables."""
    one, asked = document.result, document.asked
    sentences = [
        f"{one.parity}: {one.text}.",
        f"{asked.script} in {asked.dtype} on {asked.target}: {one.steps} steps, {one.twins} twins.",
        *(f"{statement.kind}: {statement.text}." for statement in document.statements if statement.kind == "open"),
        *_beside(one),
    ]
    plain = [
        (
            str(check.step),
            _number(check.reference),
            _number(check.candidate),
            "–" if check.relative_gap is None else f"{check.relative_gap:.3%}",
            f"{check.tolerance:.3%}",
            "not reached" if check.passed is None else "passed" if check.passed else "failed",
        )
        for check in one.plain
    ]
    return Section(
        f"Loss parity of {one.device} ({document.label})",
        sentences,
        [_windows(one), Table(("step", "CPU", one.device, "gap", "tolerance", "plain rule"), plain)],
    )


def _table(found: list[ParityResult]) -> Table:
    rows = [
        (
            _name(one),
            one.case or "–",
            one.parity,
            "–" if one.ratio is None else f"{one.ratio:.3g}",
            "–" if one.low_ratio is None else f"{one.low_ratio:.3g}",
            "–" if one.first_difference is None else str(one.first_difference),
            "–" if one.first_outside is None else str(one.first_outside),
            one.trend or "–",
            _plain(one),
        )
        for one in found
    ]
    header = (
        "process",
        "case",
        "losses are",
        "r",
        "r in the precision",
        "differ from",
        "outside from",
        "gap is",
        "plain rule",
    )
    return Table(header, rows)


def _windows(one: ParityResult) -> Table:
    kept = sorted(sorted(one.windows, key=lambda w: -w.ratio)[:_WINDOWS], key=lambda w: w.first)
    rows = [
        (
            f"{w.first} to {w.last}",
            f"{w.reference:.6g}",
            f"{w.gap:.3g}",
            f"{max(w.twins):.3g}",
            f"{w.floor:.2g}",
            f"{w.ratio:.3g}",
            "–" if w.low_ratio is None else f"{w.low_ratio:.3g}",
            "yes" if w.power else "no",
        )
        for w in kept
    ]
    return Table(("steps", "loss", "gap", "largest twin", "floor", "r", "r in the precision", "decides"), rows)


def _beside(one: ParityResult) -> list[str]:
    said = [f"step {event.step}: {event.kind}: {event.text}" for event in one.events[:_EVENTS]]
    if len(one.events) > _EVENTS:
        said.append(f"{len(one.events) - _EVENTS} more events")
    if one.growth is not None and one.twin_growth:
        low, high = min(one.twin_growth), max(one.twin_growth)
        said.append(
            f"over the run the gap grows {one.growth:.3g}-fold and those of the twins {low:.3g} to {high:.3g}-fold; "
            f"{share(one.one_sided or 0.0)} of it lies on one side"
        )
    return said + [note for note in one.notes if "by itself" not in note]


def _plain(one: ParityResult) -> str:
    if not one.plain:
        return "–"
    failed = [str(check.step) for check in one.plain if check.passed is not True]
    return f"not at {', '.join(failed)}" if failed else "passed"


def _name(one: ParityResult) -> str:
    return f"{MODES.get(one.mode, one.mode)} {one.dtype}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"
