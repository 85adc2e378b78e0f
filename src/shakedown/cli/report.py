"""``shakedown report``: a finished trial's record as a page, as Markdown, or on the terminal."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from .common import BAD_INPUT, PASSED, fail


class Format(StrEnum):
    """What is written, and where it goes unless told."""

    html = "html"
    markdown = "markdown"
    terminal = "terminal"


_NAMES = {Format.html: "report.html", Format.markdown: "report.md"}


def report(
    directory: Annotated[
        Path, typer.Argument(metavar="RECORD", help="The directory of a finished trial, or its record.json.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="File to write. Default: report.html or report.md beside the record.")
    ] = None,
    format: Annotated[
        Format, typer.Option(help="html: one self-contained file. markdown: for a pull request. terminal: the summary.")
    ] = Format.html,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write the report of a finished trial. Nothing is run or judged again; `shakedown verify` does that."""
    from shakedown.readiness import errors, record
    from shakedown.readiness import report as reports
    from shakedown.readiness.evidence import write_atomic

    root = directory.parent if directory.name == "record.json" else directory
    if format is Format.terminal and (out is not None or as_json):
        raise fail(
            "the terminal summary is printed; --out and --json go with --format html or markdown", BAD_INPUT, as_json
        )
    try:
        found = record.load(root)
    except errors.RecordError as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    if format is Format.terminal:
        reports.terminal(found, Console(), str(root))
        raise typer.Exit(PASSED)
    file = out or root / _NAMES[format]
    if file.is_dir():
        raise fail(f"{file} is a directory; give --out the name of a file in it", BAD_INPUT, as_json)
    try:
        made = reports.html(found, root, file.parent) if format is Format.html else reports.markdown(found)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        # Parts of a record that must fit together need not, where no trial has written them.
        said = f"{root / 'record.json'} lacks what a report needs ({type(error).__name__}: {error}); no trial wrote it like this"
        raise fail(said, BAD_INPUT, as_json) from None
    try:
        # A lone half of a surrogate pair is valid in a record's JSON and in no file.
        write_atomic(file, made.encode(errors="backslashreplace"))
    except OSError as error:
        raise fail(
            f"cannot write {file}: {error.strerror}; give --out a file that can be written", BAD_INPUT, as_json
        ) from None
    if as_json:
        print(json.dumps({"format": format.value, "file": str(file), "bytes": file.stat().st_size}))
    else:
        Console(soft_wrap=True).print(f"{format.value}  {escape(str(file))}", highlight=False)
