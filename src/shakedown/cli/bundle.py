"""``shakedown bundle``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from .common import failures

if TYPE_CHECKING:
    from shakedown.readiness.bundle import Bundle


def bundle(
    record: Annotated[Path, typer.Argument(help="The directory of a finished trial.")],
    cell: Annotated[str, typer.Argument(help="The cell that it is about, as the report names it.")],
    case: Annotated[str, typer.Option(help="Case of the cell. Default: the first that failed.")] = "",
    out: Annotated[Path | None, typer.Option(help="FILE.zip or FILE.tar.gz, new. Default: CELL.zip.")] = None,
    bisect: Annotated[
        Path | None,
        typer.Option(help="Directory of a localisation. Default: the one beside the record or in shakedown-runs."),
    ] = None,
    localise: Annotated[
        bool, typer.Option("--localise", help="Run `shakedown bisect` first, beside the record. Needs the target.")
    ] = False,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Bundle a record that does not verify; the bundle says so.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the bundle's manifest on standard output.")] = False,
) -> None:
    """Pack what somebody else needs to look into one cell: the minimal case, the finding, versions, logs; secrets masked.

    Exit code 1: the record does not verify; 2: bad input.
    """
    from shakedown.readiness.bundle import Request, make

    file = out or Path(f"{cell}.zip")
    with failures(as_json):
        if localise and bisect is None:
            bisect = _localise(record, cell, case)
        made = make(Request(record, cell, file, case=case, bisect=bisect, unverified=unverified))
    if as_json:
        print(made.model_dump_json(indent=1))
    else:
        show(made, file)


def _localise(record: Path, cell: str, case: str) -> Path:
    """Run localisation into a new folder beside the record, and return it."""
    from shakedown.readiness.bisect import run

    folder = record.absolute().parent / "-".join(part for part in ("bisect", cell, case) if part)
    console = Console(stderr=True, soft_wrap=True)
    run.run(
        run.Request(record, cell, folder, case=case), lambda text: console.print(text, highlight=False, markup=False)
    )
    return folder


def show(made: Bundle, file: Path) -> None:
    """What is in it, and its size."""
    console = Console(soft_wrap=True, highlight=False)
    for entry in made.files:
        masked = f", {entry.masked} masked" if entry.masked else ""
        console.print(f"{entry.nbytes:>12,}  {escape(entry.name)}  [dim]{escape(entry.what)}{masked}[/]")
    of = f", {made.case}" if made.case else ""
    label = "" if made.label == "measurement" else f" ({made.label})"
    console.print(f"[bold]{escape(made.verdict)}[/]{label}  {escape(made.cell)}{escape(of)}: {escape(made.localised)}")
    if not made.verified:
        console.print(
            f"[bold red]the record does not verify[/], and the bundle says so: {escape('; '.join(made.problems[:3]))}"
        )
    console.print(f"not in it: {escape('; '.join(made.left_out))}")
    console.print(f"{escape(str(file))}: {file.stat().st_size:,} bytes; read it before you send it")
