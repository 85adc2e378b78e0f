"""``shakedown project``: the least that the steps of a trial can take on an instance with published figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .common import BAD_INPUT, FAILED, PASSED, fail, many


def project(
    directory: Annotated[
        Path, typer.Argument(metavar="RECORD", help="The directory of a finished trial, or its record.json.")
    ],
    instance: Annotated[
        str | None, typer.Option(help="Instance type, such as trn2.48xlarge. Default: as the requirements name it.")
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="Only these precisions of the trial; repeat it, or use commas.")
    ] = None,
    instances: Annotated[
        Path | None, typer.Option(help="TOML with figures of your own, laid over those shipped, key by key.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the projection as JSON on standard output.")] = False,
) -> None:
    """A lower bound on the time of each step, what fits in memory, and every assumption: a projection, never a measurement.

    Exit code 0: every case fits in one logical core as far as it is known; 1: one does not; 2: bad input.
    """
    from shakedown.readiness import errors
    from shakedown.readiness import projection as figures
    from shakedown.readiness import record as records
    from shakedown.readiness.judge import projection as judging
    from shakedown.readiness.report import projection as words
    from shakedown.readiness.report import render

    root = directory.parent if directory.name == "record.json" else directory
    try:
        loaded = records.load(root)
        name = instance or loaded.requirements.projection.instance
        known = figures.load(instances)
        if not name:
            raise errors.BadInput(
                f"the requirements of {root} name no instance: give --instance, such as trn2.48xlarge"
            )
        asked = many(dtype)
        there = sorted({cell.dtype for cell in loaded.cells})
        if absent := [one for one in asked if one not in there]:
            raise errors.BadInput(f"--dtype {', '.join(absent)}: the trial in {root} has {', '.join(there)}")
        made = judging.project(root, loaded.cells, known, name, asked)
        if made is None:
            raise errors.BadInput(
                f"no programs were counted in {root}: its target cannot be asked, or it is older than this evidence; run the "
                "trial again on the embedded device"
            )
    except errors.TrialError as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    if as_json:
        print(made.model_dump_json(indent=1))
    else:
        render.show_section(words.of(made), Console())
    small = [bound for case in made.cases for bound in case.bounds if bound.unit == "logical core"]
    raise typer.Exit(FAILED if any(bound.fits is False for bound in small) else PASSED)
