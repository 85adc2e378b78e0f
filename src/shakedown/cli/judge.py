"""``shakedown judge``: the decision on evidence that is there already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .common import BAD_INPUT, FAILED, PASSED, fail


def judge(
    directory: Annotated[Path, typer.Argument(help="The directory of a trial, finished or interrupted.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the decision as JSON on standard output.")] = False,
) -> None:
    """Judge the evidence of a trial again by this version's rules. Needs neither torch nor the target; writes nothing."""
    from shakedown.readiness import errors, rejudge, report

    try:
        made = rejudge.judge(directory)
    except errors.TrialError as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    if as_json:
        print(made.model_dump_json(indent=1))
    else:
        console = Console()
        report.decision_panel(made.decision, made.label, console)
        if made.recorded is None:
            console.print("no record yet: judged from what has ended", highlight=False)
        else:
            word = "as the record has it" if made.same else f"the record has another decision ({made.recorded})"
            console.print(f"{word}: {directory}", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(PASSED if made.decision.suitable else FAILED)
