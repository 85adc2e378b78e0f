"""``shakedown run``, ``shakedown resume`` and ``shakedown verify``."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from .common import BAD_INPUT, FAILED, PASSED, fail, failures, many
from .compare import Afterwards, BaselineOption, Different, JunitOption

if TYPE_CHECKING:
    from shakedown.readiness.clock import Progress as Show
    from shakedown.readiness.record import Record


def run(
    workload: Annotated[str, typer.Argument(help="decoder, cnn, or a Python file that defines a workload.")],
    target: Annotated[str, typer.Option(help="neuron, cuda, xpu, mps or cpu.")] = "neuron",
    modes: Annotated[
        list[str] | None, typer.Option(help="eager, adaptive, compiled; several with commas. Default: all.")
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="float32, bfloat16, float16. Default: the workload's.")
    ] = None,
    case: Annotated[list[str] | None, typer.Option(help="BATCHxLENGTH, repeatable. Default: the workload's.")] = None,
    requirements: Annotated[
        Path | None, typer.Option(help="TOML with demands, tolerances, budgets; `shakedown init` writes one.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Plain cases, each mode once with a cold cache; no speed is claimed.")
    ] = False,
    trace: Annotated[
        bool,
        typer.Option("--trace", help="Also record a profile of each mode, cold and warm, in processes of its own."),
    ] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds one process may take.")] = None,
    out: Annotated[Path | None, typer.Option(help="New directory. Default: shakedown-runs/WORKLOAD-TIME.")] = None,
    baseline: BaselineOption = None,
    allow_different_workload: Different = False,
    junit: JunitOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON on standard output.")] = False,
) -> None:
    """Train WORKLOAD on the CPU and on the target in every mode, and compare everything."""
    from shakedown.readiness import compare, trial

    name = Path(workload).stem
    folder = out or Path("shakedown-runs") / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    request = trial.Request(
        workload=workload,
        out=folder,
        target=target,
        modes=many(modes),
        dtypes=many(dtype),
        cases=many(case),
        requirements=requirements,
        timeout_seconds=timeout,
        quick=quick,
        trace=trace,
    )
    besides = Afterwards(baseline, allow_different_workload, junit)

    def work(show: Show) -> Record:
        checked = trial.check(request)
        source = checked.source
        besides.ready(
            compare.Planned(
                workload=source.name,
                workload_sha256=source.sha256,
                target=checked.target.name,
                quick=quick,
                modes=checked.modes,
                dtypes=checked.dtypes,
                cases=checked.cases,
            )
        )
        return trial.run(request, show)

    _show(folder, as_json, work, besides)


def resume(
    directory: Annotated[Path, typer.Argument(help="The directory of a trial that was interrupted.")],
    requirements: Annotated[
        Path | None, typer.Option(help="Refused unless it is what the trial was started with.")
    ] = None,
    baseline: BaselineOption = None,
    allow_different_workload: Different = False,
    junit: JunitOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON on standard output.")] = False,
) -> None:
    """Go on with an interrupted trial: processes that have ended are not run again."""
    from shakedown.readiness import compare, state, trial

    besides = Afterwards(baseline, allow_different_workload, junit)

    def work(show: Show) -> Record:
        known = state.load(directory)
        besides.ready(
            compare.Planned(
                workload=known.workload["name"],
                workload_sha256=known.workload["sha256"],
                target=known.target,
                quick=known.quick,
                modes=known.modes,
                dtypes=known.dtypes,
                cases=known.plain,
            )
        )
        return trial.resume(directory, requirements, show)

    _show(directory, as_json, work, besides)


def _show(folder: Path, as_json: bool, work: Callable[[Show], Record], besides: Afterwards) -> None:
    """Run `work` behind a progress bar, then print its record, and what came of `besides`; every way to fail has its exit
    code.
    """
    from shakedown.readiness import errors, report
    from shakedown.readiness.report import comparison

    # Whoever ends the trial politely (a CI runner's time limit) gets what Ctrl-C gets: children ended, evidence kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with failures(as_json):
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("checking the request", total=1.0)

            def show(what: str, share: float) -> None:
                progress.update(task, description=what, completed=share)
                if not console.is_terminal:  # a log keeps lines, not bars
                    console.print(f"{share:4.0%} {what}", highlight=False)

            record = work(show)
    try:
        compared = besides.done(record, folder)
        problem = ""
    except errors.BadInput as error:
        compared, problem = None, str(error)
    if as_json:
        print(record.model_dump_json(indent=1))
    else:
        report.terminal(record, Console(), str(folder))
    if problem:  # the record is good all the same, and has been shown
        console.print(f"[bold red]shakedown:[/] {escape(problem)}", soft_wrap=True)
        raise typer.Exit(BAD_INPUT)
    if compared is None:
        raise typer.Exit(record.exit_code)
    if as_json:
        console.print(
            f"{escape(comparison.headline(compared))}  {escape(str(folder / 'comparison.md'))}", soft_wrap=True
        )
    else:
        comparison.terminal(compared, Console(), str(folder / "comparison.md"))
    raise typer.Exit(compared.exit_code)


def verify(
    directory: Annotated[Path, typer.Argument(help="The directory of a finished trial.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")] = False,
) -> None:
    """Check every hash of a record and judge its evidence again. Needs neither torch nor the target."""
    from shakedown.readiness import errors, record

    try:
        result = record.verify(directory)
    except errors.RecordError as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    if as_json:
        print(result.model_dump_json(indent=1))
    else:
        console = Console(soft_wrap=True)
        for problem in result.problems:
            console.print(f"[red]problem[/]  {escape(problem)}", highlight=False)
        for note in result.notes:
            console.print(f"[yellow]note[/]  {escape(note)}", highlight=False)
        word = "[green]verified[/]" if result.verified else "[red]not verified[/]"
        console.print(
            f"{word}  {escape(result.directory)}: {result.files_checked} files checked; decision in the record: "
            f"{result.decision_in_record}; judged again: {result.decision_judged_again}"
        )
    raise typer.Exit(PASSED if result.verified else FAILED)
