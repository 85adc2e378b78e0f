"""A preflight as one Markdown page. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from ..scan import SEVERITIES, Scan
from .operators import Operators
from .preflight import MEANING, Code, Preflight


def markdown(found: Preflight) -> str:
    """The page, ready to be attached to a review."""
    verdict = "ready" if found.ready else f"stop, exit code {found.exit_code} ({MEANING[Code(found.exit_code)]})"
    lines = [f"# Preflight of {found.workload} on {found.target}", ""]
    if found.rehearsal:
        lines += [
            "> **Rehearsal.** The embedded device answers, on the host's processor. Nothing here is a statement about a "
            "Trainium instance; deviations say what will be different there.",
            "",
        ]
    lines += [f"**Verdict: {verdict}**", ""]
    lines += [f"- {reason.code} {reason.name}: {_text(reason.text)}" for reason in found.reasons]
    lines += [""] if found.reasons else []
    lines += [f"Made on {found.created}; workload SHA-256 `{found.workload_sha256}`.", ""]
    for title, body in (
        ("Device", _device(found)),
        ("Package family", _family(found)),
        ("Departures from the documented baseline", _deviations(found)),
        ("Way of installing", _route(found)),
        ("Operators of one training step", _operators(found.operators)),
        ("The workload's own source", _source(found.scan)),
        ("Rollback", _rollback(found)),
        ("Stop conditions", _stops(found)),
        ("Identity", _identity(found)),
    ):
        lines += [f"## {title}", "", *body, ""]
    return "\n".join(lines).rstrip() + "\n"


def _device(found: Preflight) -> list[str]:
    device = found.device
    if device.visible:
        return [
            f"Visible: `{device.operation}` was right, {device.seconds:.2f} s after it was asked for, start included."
        ]
    asked = f" (asked: `{device.operation}`)" if device.operation else ""
    return [f"**Not visible**: {_text(device.reason)}{asked}"]


def _family(found: Preflight) -> list[str]:
    if found.identity is None:
        return ["Not known: no process could say who it is."]
    family = found.identity.family
    asked = f" Asked for: {found.family_asked}." if found.family_asked else ""
    lines = [
        f"**{family.word}**. What is installed says: {_text(family.by_metadata)}. In the process answered: "
        f"{_text(family.by_behaviour)}.{asked}"
    ]
    if family.disagreement:
        lines += ["", f"The two disagree: {_text(family.disagreement)}."]
    if family.signs:
        lines += ["", *(f"- {_text(sign)}" for sign in family.signs)]
    return lines


def _deviations(found: Preflight) -> list[str]:
    if not found.baseline_applies:
        return [f"The documented baseline ({found.baseline}) is for the target neuron; {found.target} has none here."]
    if found.identity is None:
        return ["Not known: no process could say who it is."]
    lines = [f"Baseline: {found.baseline}.", ""]
    if not found.deviations:
        lines.append("None.")
    else:
        lines += _table(
            ("what", "here", "documented", "grade", "source"),
            ((d.what, d.here, d.documented, d.grade, d.source) for d in found.deviations),
        )
    lines += ["", "Public sources disagree about:", ""]
    lines += [f"- {e.topic}: {_text(e.text)} [{', '.join(e.sources)}]" for e in found.disagreements]
    lines += ["", "Sources:", ""]
    lines += [f"- [{source.id}] {source.title}, {source.date}, <{source.url}>" for source in found.sources]
    return lines


def _route(found: Preflight) -> list[str]:
    route = found.route
    if route is None:
        return ["Not compared."]
    word = {True: "documented here", False: "**not the documented way**", None: "not known whether documented"}
    wheel = {True: "yes", False: "no", None: "not known"}
    return [
        f"In use: {_text(route.in_use)}; {word[route.documented]}: {_text(route.reason)}.",
        "",
        f"Would a release wheel fit this machine? {wheel[route.wheel]}: {_text(route.wheel_reason)}. "
        "(By the documentation; no index was asked.)",
    ]


def _operators(operators: Operators) -> list[str]:
    if operators.unknown:
        return [f"Not known: {_text(operators.unknown)}."]
    lines = [
        f"Support profile {operators.profile}; case {operators.case} in {', '.join(operators.dtypes)}; followed without "
        "running. Distinct operators:",
        "",
        *_table(
            ("phase", "native", "on the CPU", "missing"),
            ((p.phase, str(p.native), str(p.fallback), str(p.missing)) for p in operators.phases),
        ),
        "",
    ]
    if operators.profile == "native":
        lines += ["The profile `native` imposes no limits of TorchNeuron; `--profile neuron-2.33` does.", ""]
    if operators.rows:
        lines += _table(
            ("operator", "phase", "calls", "where", "accepted", "line", "because", "source"),
            (
                (
                    row.operator,
                    row.phase,
                    str(row.calls),
                    "the CPU" if row.verdict == "fallback" else "nowhere",
                    "yes" if row.accepted else "no",
                    ", ".join(row.lines),
                    row.reason,
                    row.source,
                )
                for row in operators.rows
            ),
        )
    else:
        lines.append("None leaves the device.")
    if operators.own:
        lines += ["", f"Operators that are not PyTorch's: {', '.join(operators.own)}."]
    if operators.stops:
        lines += ["", "The list is incomplete:", "", *(f"- {_text(stop)}" for stop in operators.stops)]
    return lines


def _source(scan: Scan) -> list[str]:
    counts = ", ".join(f"{scan.count(severity)} {severity}" for severity in SEVERITIES if scan.count(severity))
    lines = [f"{len(scan.files)} files were read and not run: {counts or 'nothing was found'}."]
    told = [hit for hit in scan.hits if hit.severity != "note"]
    if told:
        rows = ((hit.where, hit.severity, hit.text, scan.rules[hit.rule].instead) for hit in told)
        lines += ["", *_table(("where", "", "source", "instead"), rows), "", "`shakedown scan` explains each."]
    if scan.skipped:
        lines += ["", "Not read:", "", *(f"- {_text(s.path)}: {_text(s.reason)}" for s in scan.skipped)]
    return lines


def _rollback(found: Preflight) -> list[str]:
    if not found.rollback.command:
        return ["**None.** Set `operation.rollback` in the requirements to the one command that puts the service back."]
    lines = ["```", *found.rollback.command.splitlines(), "```", "", "It was not run."]
    if found.rollback.note:
        lines[-1] += f" Note: {_text(found.rollback.note)}."
    return lines


def _stops(found: Preflight) -> list[str]:
    rows = ((c.question, c.answer or "–", c.state, c.text) for c in found.stop_conditions)
    return _table(("condition", "answer", "state", ""), rows)


def _identity(found: Preflight) -> list[str]:
    if found.identity is None:
        return ["Not known: no process could say who it is."]
    return _table(("", "", "", "source"), ((f.group, f.name, f.said, f.source) for f in found.identity.facts))


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [
        "| " + " | ".join(header) + " |",
        "|" + " --- |" * len(header),
        *("| " + " | ".join(_text(value) for value in row) + " |" for row in rows),
    ]


def _text(value: str) -> str:
    """Text that cannot break out of a table cell or a list item."""
    return value.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
