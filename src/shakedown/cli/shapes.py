"""``shakedown shapes``: the traffic by shape, and the few lengths to pad it to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .common import BAD_INPUT, INTERRUPTED, PASSED, fail


def shapes(
    record: Annotated[
        Path | None,
        typer.Argument(help="The directory of a finished trial, for measured costs. Default: padding only."),
    ] = None,
    lengths: Annotated[
        Path | None,
        typer.Option(
            help="Lengths of real requests: one a line, CSV `length,count`, or JSON. Default: those of the trial."
        ),
    ] = None,
    max_programs: Annotated[
        int | None, typer.Option(min=1, max=256, help="Programs that a plan may have. Default: as required, else 8.")
    ] = None,
    maximum: Annotated[
        int | None, typer.Option(min=1, help="The longest length that is served; no bucket is longer.")
    ] = None,
    longer: Annotated[
        str | None, typer.Option(help="What becomes of longer ones: refuse, truncate or compile.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps that one cold start serves. Default: as required, else 10,000.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Batch size of the lengths. Default: the first case's.")
    ] = None,
    mode: Annotated[
        str, typer.Option(help="Mode whose costs count. Default: compiled, else adaptive, else eager.")
    ] = "",
    dtype: Annotated[str, typer.Option(help="Precision whose costs count. Default: the first that was timed.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the ledger as JSON on standard output.")] = False,
) -> None:
    """Which shapes the traffic has, what each costs, and which buckets to pad to.

    Exit code 0: there is an answer; 2: bad input; 130: interrupted.
    """
    from shakedown.readiness import errors, requirements
    from shakedown.readiness import record as records
    from shakedown.readiness.judge import shapes as judging
    from shakedown.readiness.judge.shape_rows import Tried
    from shakedown.readiness.plan import lengths as reading
    from shakedown.readiness.report import render
    from shakedown.readiness.report import shapes as words

    asked = {
        "max_programs": max_programs,
        "maximum": maximum,
        "longer": longer,
        "steps_per_start": steps,
        "batch": batch,
    }
    try:
        if record is None and lengths is None:
            raise errors.BadInput("give a trial's directory, or --lengths FILE, or both")
        if longer not in (None, "refuse", "truncate", "compile"):
            raise errors.BadInput(f"--longer {longer}: choose among refuse, truncate, compile")
        tried, demand = Tried(), requirements.Requirements()
        if record is not None:
            loaded = records.load(record)
            found = loaded.judgement
            tried = Tried(loaded.cells, found.cells, found.timings, found.graphs)
            demand = loaded.requirements
        traffic = demand.traffic.model_copy(update={key: value for key, value in asked.items() if value is not None})
        demand = demand.model_copy(update={"traffic": traffic})
        known = None
        if lengths is not None:
            known = judging.from_lengths(reading.read(lengths), traffic.batch or judging.first_size(tried.cells))
        elif record is not None:
            known = judging.distribution(record, tried.cells, demand)
        if known is None:
            raise errors.BadInput(
                f"the requirements of {record} name no lengths and no shares of the cases; give --lengths FILE"
            )
        made = judging.ledger(known, tried, demand, mode, dtype)
    except errors.TrialError as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    except KeyboardInterrupt:
        raise fail("interrupted", INTERRUPTED, as_json) from None
    if as_json:
        print(made.model_dump_json(indent=1))
    else:
        render.show_section(words.of(made), Console(soft_wrap=False))
    raise typer.Exit(PASSED)
