"""``shakedown bisect``."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from .common import failures


def bisect(
    record: Annotated[Path, typer.Argument(help="The directory of a finished trial.")],
    cell: Annotated[str, typer.Argument(help="The cell to look into, as the report names it.")],
    case: Annotated[str, typer.Option(help="Case of the cell. Default: the first that failed.")] = "",
    step: Annotated[int | None, typer.Option(help="Training step. Default: the first found wrong, else 1.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds one process may take.")] = None,
    out: Annotated[Path | None, typer.Option(help="New directory. Default: shakedown-runs/bisect-CELL-TIME.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print bisect.json on standard output.")] = False,
) -> None:
    """Find the first module and operator of a failed cell whose inputs agree and whose output does not."""
    from shakedown.readiness.bisect import run

    folder = out or Path("shakedown-runs") / f"bisect-{cell}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    console = Console(stderr=True, soft_wrap=True)
    request = run.Request(record, cell, folder, case=case, step=step, timeout_seconds=timeout)
    with failures(as_json):
        found = run.run(request, lambda text: console.print(text, highlight=False, markup=False))
    if as_json:
        print(found.model_dump_json(indent=1))
    else:
        show(found, folder)
    raise typer.Exit(found.exit_code)


def show(found: object, folder: Path) -> None:
    """The answer in words."""
    from shakedown.readiness.bisect.result import Bisect

    assert isinstance(found, Bisect)
    console = Console(soft_wrap=True)
    label = " (rehearsal)" if found.label == "rehearsal" else ""
    console.print(
        f"[bold]{escape(found.verdict)}[/]{label}  {escape(found.cell)}, {escape(found.case)}, step {found.step}"
    )
    console.print(escape(found.text), highlight=False)
    stage = found.stages[-1]
    for numbers in (stage.operator or stage.module).numbers[:4] if (stage.operator or stage.module) else []:  # type: ignore[union-attr]
        for text in numbers.findings:
            console.print(escape(f"  {numbers.tensor} {list(numbers.shape)} {numbers.dtype}: {text}"), highlight=False)
    for left in stage.not_judged:
        console.print(escape(f"  not judged: {left.operator} ({left.count}): {left.reason}"), highlight=False)
    if stage.case:
        console.print(f"run it alone: python {escape(str(folder / stage.case / 'case.py'))}", highlight=False)
    elif stage.case_note:
        console.print(escape(f"no case: {stage.case_note}"), highlight=False)
    console.print(f"bisect.json is in {escape(str(folder))}", highlight=False)
