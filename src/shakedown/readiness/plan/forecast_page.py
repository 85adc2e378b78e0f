"""A forecast in words: Markdown, and the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape

from .forecast import Forecast
from .known import Reason

_HEADS = {"blocks": "What blocks it", "revise": "What the test plan has to change", "note": "Good to know"}
_COLOURS = {"blocked": "bold red", "needs a revised test plan": "bold yellow", "compatible as specified": "bold green"}


def markdown(found: Forecast) -> str:
    """The page for a review."""
    return "\n".join(_markdown(found)) + "\n"


def _markdown(found: Forecast) -> Iterator[str]:
    yield f"# Forecast of {found.workload}: {found.outcome}"
    yield ""
    yield f"*{found.kind[0].upper()}{found.kind[1:]}.*"
    yield ""
    yield (
        f"Target {found.target}, profile {found.profile}, PyTorch {found.torch}; modes {', '.join(found.modes)}; "
        f"{', '.join(found.dtypes)}; cases {', '.join(found.cases)}."
    )
    for level, head in _HEADS.items():
        chosen = [reason for reason in found.reasons if reason.level == level]
        if not chosen:
            continue
        yield ""
        yield f"## {head}"
        for reason in chosen:
            yield ""
            yield f"### `{reason.word}`{f' in {reason.phase}' if reason.phase else ''}"
            yield ""
            for name, text in _parts(reason):
                yield f"- {name}: {_cell(text)}"
    yield ""
    yield "## Operators of a step"
    yield ""
    yield "| mode | phase | native | on the CPU | nowhere |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for row in found.phases:
        yield f"| {row.mode} | {row.phase} | {row.native} | {row.fallback} | {row.missing} |"
    yield ""
    for traced in found.traces:
        end = "" if traced.complete else "; it ended early, see above"
        yield f"- {traced.case} in {traced.dtype}: {traced.operators} operators, model built {_cell(traced.built)}{end}"
    yield ""
    yield "## What a forecast cannot tell"
    yield ""
    yield from (f"- {limit}" for limit in found.limits)


def terminal(found: Forecast, console: Console) -> None:
    """The same, shorter."""

    def say(text: str = "") -> None:
        console.print(text, highlight=False)

    say(f"[{_COLOURS[found.outcome]}]{escape(found.sentence)}[/]")
    for level, head in _HEADS.items():
        chosen = [reason for reason in found.reasons if reason.level == level]
        if chosen:
            say(f"\n[bold]{head}[/]")
        for reason in chosen:
            say(f"  [bold]{escape(reason.word)}[/]{escape(f' in {reason.phase}' if reason.phase else '')}")
            for name, text in _parts(reason):
                say(f"    [dim]{name}[/] {escape(text)}")
    say()
    for row in found.phases:
        say(
            f"{row.mode} {row.phase}: {row.native} operators native, {row.fallback} on the CPU, {row.missing} nowhere",
        )
    say(f"[dim]{escape(found.kind)}[/]")


def _parts(reason: Reason) -> Iterator[tuple[str, str]]:
    yield "required", reason.required
    yield "found", reason.found
    yield "source", reason.source
    yield "change", reason.change
    if reason.places:
        shown = ", ".join(reason.places[:8])
        yield "places", shown + (f" and {len(reason.places) - 8} more" if len(reason.places) > 8 else "")


def _cell(text: str) -> str:
    """Text that Markdown leaves as it is."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
