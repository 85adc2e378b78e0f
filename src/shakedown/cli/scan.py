"""``shakedown scan``: read the source, and say what will not move as it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .common import BAD_INPUT, FAILED, INTERRUPTED, PASSED, fail

if TYPE_CHECKING:
    from shakedown.readiness.evidence.lines import Lines
    from shakedown.readiness.scan import Scan

_STYLE = {"blocks": "bold red", "changes needed": "red", "costs time": "yellow", "note": "dim"}


def scan(
    workload: Annotated[str, typer.Argument(help="decoder, cnn, a Python file, or a folder.")],
    record: Annotated[
        Path | None, typer.Option(help="Directory of a finished trial: say of each place whether it ran there.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scan as JSON on standard output.")] = False,
) -> None:
    """Read the source of WORKLOAD, without running it, for what will not move to the device as it is.

    Exit code 0: nothing has to be changed; 1: something has to; 2: bad input.
    """
    from shakedown.readiness import errors
    from shakedown.readiness import scan as scanning
    from shakedown.readiness.workload import built_in, resolve

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("reading", total=1.0)

            def show(what: str, share: float) -> None:
                progress.update(task, description=escape(what[-40:]), completed=share)

            if Path(workload).is_dir() and workload not in built_in():
                result = scanning.scan_folder(Path(workload), show)
            else:
                result = scanning.scan(resolve(workload), show)
        if record is not None:
            result = scanning.joined(result, _records(record))
    except errors.BadInput as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    except errors.EvidenceError as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    except KeyboardInterrupt:
        raise fail("interrupted", INTERRUPTED, as_json) from None
    if as_json:
        print(result.model_dump_json(indent=1))
    else:
        _print(result, Console(soft_wrap=True, highlight=False))
    raise typer.Exit(FAILED if result.count("blocks") or result.count("changes needed") else PASSED)


def _records(folder: Path) -> list[Lines]:
    """Every record of executed lines of a trial."""
    from shakedown.readiness import errors
    from shakedown.readiness.judge.scan import RECORD, recorded

    cells = [path.parent.name for path in sorted((folder / "evidence").glob(f"*/{RECORD}"))]
    if not cells:
        raise errors.BadInput(f"{folder} holds no record of executed lines (evidence/*/{RECORD}); run the trial first")
    return list(recorded(folder, cells).values())


def _print(result: Scan, console: Console) -> None:
    """Places by file, what to write instead by rule, and the sum."""
    from shakedown.readiness.scan import SEVERITIES, by_file

    for path, hits in by_file(result.hits).items():
        console.print(f"\n[bold]{escape(path)}[/]")
        for hit in hits:
            detail = f"  ({hit.detail})" if hit.detail else ""
            style = _STYLE[hit.severity]
            console.print(
                f"  {hit.line}:{hit.column}  [{style}]{hit.severity}[/]  {hit.rule}  {hit.phase}, {hit.ran}"
                f"{escape(detail)}\n      [dim]{escape(hit.text)}[/]"
            )
    if result.rules:
        console.print("\n[bold]What to do[/]")
    for name, rule in result.rules.items():
        console.print(f"  [bold]{name}[/] ({rule.effort}): {escape(rule.why)} [dim]Source: {escape(rule.source)}.[/]")
        console.print(f"      write: {escape(rule.instead)}")
    for skipped in result.skipped:
        console.print(f"[yellow]not read[/]  {escape(skipped.path)}: {escape(skipped.reason)}")
    for entry in result.ignored:
        console.print(f"[dim]ignored   {escape(entry.hit.where)} {entry.hit.rule}: {escape(entry.reason)}[/]")
    lines = sum(file.lines for file in result.files)
    counts = ", ".join(f"{result.count(severity)} {severity}" for severity in SEVERITIES)
    console.print(f"\n{escape(result.subject)}: {len(result.files)} files, {lines:,} lines: {counts}")
    needed, optional = result.effort.required, result.effort.optional
    console.print(
        f"effort, an estimate (docs/evidence/scan.md): {result.effort.grade}; required {needed.low:g} to {needed.high:g} "
        f"hours, to save time {optional.low:g} to {optional.high:g} hours"
    )
    if result.third_party:
        console.print(f"packages, not scanned: {escape(', '.join(result.third_party))}")
