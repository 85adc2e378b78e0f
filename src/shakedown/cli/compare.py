"""``shakedown compare`` and ``shakedown junit``, and what ``run`` and ``resume`` do besides for a pipeline."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from .common import BAD_INPUT, PASSED, fail

if TYPE_CHECKING:
    from shakedown.readiness.compare import Comparison, Opened, Planned
    from shakedown.readiness.record import Record

Different = Annotated[
    bool,
    typer.Option("--allow-different-workload", help="Compare verdicts although the workloads differ."),
]
BaselineOption = Annotated[
    Path | None,
    typer.Option(help="A finished trial, or its record.json: the exit code then says whether a verdict got worse."),
]
JunitOption = Annotated[Path | None, typer.Option(help="Also write the record as JUnit XML to this file.")]


def compare(
    before: Annotated[Path, typer.Argument(help="The baseline: directory of a finished trial, or its record.json.")],
    after: Annotated[Path, typer.Argument(help="The record that is judged against it.")],
    allow_different_workload: Different = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, for a pull request or a job summary.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON on standard output.")] = False,
) -> None:
    """Say what changed between two records; exit code 1 when a verdict is worse than it was."""
    from shakedown.readiness import compare as comparing
    from shakedown.readiness import errors
    from shakedown.readiness.report import comparison

    if markdown and as_json:
        raise fail("--markdown and --json exclude each other; give one of them", BAD_INPUT, as_json)
    try:
        found = comparing.compare(comparing.opened(before), comparing.opened(after), allow_different_workload)
    except errors.TrialError as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    if as_json:
        print(found.model_dump_json(indent=1))
    elif markdown:
        sys.stdout.write(comparison.markdown(found) + "\n")
    else:
        comparison.terminal(found, Console())
    raise typer.Exit(found.exit_code)


def junit(
    record: Annotated[Path, typer.Argument(help="The directory of a finished trial, or its record.json.")],
    file: Annotated[Path, typer.Argument(help="The XML file to write.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write a record as JUnit XML: one suite per process, one test per case. Exit code 0 once it is written."""
    from shakedown.readiness import compare as comparing
    from shakedown.readiness import errors

    try:
        written = write_junit(comparing.opened(record).record, writable(file))
    except errors.TrialError as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    print(json.dumps({"file": str(file), "bytes": written}) if as_json else f"{file}: {written} bytes")
    raise typer.Exit(PASSED)


def writable(file: Path) -> Path:
    """`file`, if something can be written there. Raises ``BadInput`` where it is a folder or lies in none."""
    from shakedown.readiness.errors import BadInput

    if file.is_dir() or not file.absolute().parent.is_dir():
        raise BadInput(f"cannot write {file}: {'it is a folder' if file.is_dir() else 'there is no such folder'}")
    return file


def write_junit(record: Record, file: Path) -> int:
    """Write the XML; return its bytes. Raises ``BadInput`` where the file cannot be written."""
    from shakedown.readiness.errors import BadInput
    from shakedown.readiness.evidence import write_atomic
    from shakedown.readiness.report import junit

    data = junit.junit(record)
    try:
        write_atomic(file, data)
    except OSError as error:
        raise BadInput(f"cannot write {file}: {error.strerror}") from None
    return len(data)


@dataclass
class Afterwards:
    """What a trial does besides: :meth:`ready` before anything runs, :meth:`done` with its record."""

    baseline: Path | None = None
    allow_different_workload: bool = False
    junit: Path | None = None
    opened: Opened | None = None

    def ready(self, planned: Planned) -> None:
        """Refuse what cannot work. Raises ``BadInput``."""
        from shakedown.readiness import compare as comparing
        from shakedown.readiness.errors import BadInput

        if self.junit is not None:
            writable(self.junit)
        if self.baseline is not None:
            self.opened = comparing.checked(self.baseline, planned, self.allow_different_workload)
        elif self.allow_different_workload:
            raise BadInput("--allow-different-workload is about --baseline; give both or none")

    def done(self, record: Record, folder: Path) -> Comparison | None:
        """Write the JUnit file and the comparison, which lie beside the record. Raises ``BadInput``."""
        from shakedown.readiness import compare as comparing
        from shakedown.readiness.evidence import write_atomic
        from shakedown.readiness.report import comparison

        if self.junit is not None:
            write_junit(record, self.junit)
        if self.opened is None:
            return None
        found = comparing.compare(self.opened, comparing.opened(folder), self.allow_different_workload)
        write_atomic(folder / "comparison.json", (found.model_dump_json(indent=1) + "\n").encode())
        write_atomic(folder / "comparison.md", comparison.markdown(found).encode())
        return found
