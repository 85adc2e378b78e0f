"""``shakedown compare``, and what ``run`` and ``resume`` do with a baseline."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from .common import BAD_INPUT, fail

if TYPE_CHECKING:
    from shakedown.readiness.compare import Comparison


def compare(
    before: Annotated[Path, typer.Argument(help="The baseline: directory of a finished trial, or its record.json.")],
    after: Annotated[Path, typer.Argument(help="The record that is judged against it.")],
    allow_different_workload: Annotated[
        bool,
        typer.Option("--allow-different-workload", help="Put verdicts side by side although the workloads differ."),
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, for a pull request or a job summary.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON on standard output.")] = False,
) -> None:
    """Say what changed between two records; exit code 1 when a verdict is worse than it was."""
    from shakedown.readiness import compare as comparing
    from shakedown.readiness import errors

    if markdown and as_json:
        raise fail("--markdown and --json exclude each other; give one of them", BAD_INPUT, as_json)
    try:
        found = comparing.compare(comparing.opened(before), comparing.opened(after), allow_different_workload)
    except errors.TrialError as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    show(found, markdown, as_json)
    raise typer.Exit(found.exit_code)


def show(found: Comparison, markdown: bool = False, as_json: bool = False) -> None:
    """The comparison in the form that was asked for."""
    from shakedown.readiness.report import comparison

    if as_json:
        print(found.model_dump_json(indent=1))
    elif markdown:
        sys.stdout.write(comparison.markdown(found) + "\n")
    else:
        comparison.terminal(found, Console())
