"""``shakedown ops``: the table of operators, and the sweep over PyTorch's databases that it is made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from .common import BAD_INPUT, FAILED, INTERRUPTED, PASSED, fail, many

if TYPE_CHECKING:
    from shakedown.conformance.results import Row

app = typer.Typer(help="Which ATen operators the device runs, and how that was measured.", no_args_is_help=False)


@app.command()
def conformance(
    op: Annotated[
        list[str] | None, typer.Option(help="Entry of op_db or module_db, several with commas. Default: all.")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="float32, int64, ... Default: nine dtypes.")] = None,
    mode: Annotated[str, typer.Option(help="eager or compile (torch.compile with fullgraph=True).")] = "eager",
    suite: Annotated[list[str] | None, typer.Option(help="op_db, module_db. Default: both.")] = None,
    gradients: Annotated[bool, typer.Option(help="Also compare first-order gradients.")] = True,
    errors: Annotated[bool, typer.Option(help="Also run the error inputs (eager).")] = True,
    samples: Annotated[int, typer.Option(help="Samples of each entry and dtype, evenly spread; 0: all.")] = 0,
    variants: Annotated[
        int, typer.Option(help="Of these, how many also run in place, with out= and in other layouts; -1: all.")
    ] = 3,
    tenth: Annotated[int | None, typer.Option(min=0, max=9, help="Every tenth entry, from this one on.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    timeout: Annotated[float, typer.Option(help="Seconds that one sample may take.")] = 300.0,
    out: Annotated[Path, typer.Option(help="Directory; a sweep that was cut short goes on there.")] = Path(
        "shakedown-conformance"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on standard output.")] = False,
) -> None:
    """Run PyTorch's operator and module databases on the device and compare with CPU PyTorch."""
    from shakedown.conformance import databases, summary, sweep

    suites = many(suite) or ("op_db", "module_db")
    unknown = [s for s in suites if s not in ("op_db", "module_db")]
    if unknown:
        raise fail(f"suite {unknown[0]!r} is neither op_db nor module_db", BAD_INPUT, as_json)
    request = sweep.Request(
        suites=suites,  # type: ignore[arg-type]
        ops=many(op),
        dtypes=many(dtype),
        mode=mode,
        gradients=gradients,
        samples=samples or None,
        variants=None if variants < 0 else variants,
        errors=errors,
        tenth=tenth,
        jobs=jobs,
        timeout_seconds=timeout,
    )
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("starting", total=None)

            def show(what: str, done: int, count: int) -> None:
                progress.update(task, description=what, completed=done, total=count)
                if not console.is_terminal:  # a log keeps lines, not bars
                    console.print(f"{done}/{count} {what}", highlight=False, markup=False)

            rows = sweep.Sweep(request, out, show).run()
    except (sweep.RequestError, databases.DatabaseUnavailable) as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    except KeyboardInterrupt:
        raise fail(f"interrupted; the same command goes on from {out}", INTERRUPTED, as_json) from None
    found = summary.summarise(rows) | {"gaps": summary.gaps(rows)}
    (out / "summary.json").write_text(json.dumps(found, indent=1) + "\n")
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        _show(found, rows, Console(), out)
    bad = sum(n for status, n in found["status"].items() if status in summary.BAD)
    raise typer.Exit(FAILED if bad else PASSED)


def _share(found: dict[str, int | float | None]) -> str:
    if not found["measured"]:
        return "not measured"
    return f"{found['share']:.2%} of {found['measured']}"


def _show(found: dict, rows: list[Row], console: Console, out: Path) -> None:
    """The summary in words; a small sweep also lists every check that is not right."""
    table = Table("", "correct", "on the device", "gradients correct", box=None, pad_edge=False)
    for dtype, shares in {**found["by_dtype"], "all": found}.items():
        table.add_row(dtype, *(_share(shares[k]) for k in ("correct", "on_device", "gradients")))
    console.print(table)
    console.print(f"error inputs {_share(found['errors'])}; modules {_share(found['modules'])}")
    console.print("statuses: " + ", ".join(f"{n} {status}" for status, n in found["status"].items()))
    for gap in found["gaps"]:
        console.print(
            escape(f"{gap['what']:14} {gap['name']:40} {gap['checks']:5} checks  {gap['example'][:150]}"),
            highlight=False,
        )
    if len(rows) <= 2000:
        for row in rows:
            if row.status in ("wrong", "wrong-gradient", "error-differs", "crashed", "timeout"):
                line = f"{row.status} {row.op} {row.dtype} {row.check} #{row.sample} {row.shapes} {row.message}"
                console.print(escape(line), highlight=False, soft_wrap=True)
    console.print(f"rehearsal on the host's processor; every check is in {escape(str(out / 'results.parquet'))}")
