"""``shakedown ops``: the table of operators, and the sweep over PyTorch's databases that it is made from."""

from __future__ import annotations

import json
from dataclasses import asdict
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

app = typer.Typer(invoke_without_command=True)


@app.callback()
def show(
    context: typer.Context,
    name: Annotated[
        list[str] | None, typer.Option(help="Operators by name (aten::add.Tensor, or add: all its overloads).")
    ] = None,
    way: Annotated[list[str] | None, typer.Option(help="native, composite, decomposed, fallback.")] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Only what is not native or not right throughout.")
    ] = False,
    used_by: Annotated[
        str | None,
        typer.Option(help="Only operators of one training step of a workload, which is run: decoder, cnn, a file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Which ATen operators the device runs, and how that was measured."""
    if context.invoked_subcommand is not None:
        return
    from shakedown.conformance import operators, table
    from shakedown.readiness import errors
    from shakedown.readiness.operators_used import operators_used

    lines = table.lines(overloads=True)
    names, ways = many(name), many(way)
    known = {n for line in lines for n in (line.name, operators.base_of(line.name))}
    unknown = [n for n in names if n not in known] + [w for w in ways if w not in table.WAYS]
    if unknown:
        raise fail(f"{unknown[0]!r} is neither an ATen operator of this PyTorch nor a way", BAD_INPUT, as_json)
    phases: dict[str, list[str]] = {}
    fallen: set[str] = set()
    if used_by is not None:
        try:
            rows = operators_used(used_by)
        except errors.BadInput as error:
            raise fail(str(error), BAD_INPUT, as_json) from None
        for row in rows:
            phases.setdefault(row.name, []).append(row.phase)
            if row.kind == "fallback":
                fallen.add(row.name)
        lines = [line for line in lines if line.name in phases]
    chosen = [
        line
        for line in lines
        if (not names or line.name in names or operators.base_of(line.name) in names)
        and (not ways or line.way in ways)
        and (not missing or line.missing or line.name in fallen)
    ]
    if as_json:
        print(json.dumps([asdict(line) | {"phases": phases.get(line.name, [])} for line in chosen], indent=1))
        return
    console = Console()
    shown = Table(
        "operator",
        "way",
        *table.SHORT.values(),
        "compiled",
        *(("phases",) if used_by else ()),
        "because",
        box=None,
        pad_edge=False,
    )
    for line in chosen:
        extra = (" ".join(phases[line.name]),) if used_by else ()
        shown.add_row(line.name, line.way, *line.cells(), *extra, line.reason)
    console.print(shown)
    console.print(
        f"{len(chosen)} of {len(lines)} operators; letters: N native, D decomposed, C on the CPU, ! not right, · not measured"
    )


@app.command("table")
def publish(
    results: Annotated[
        list[Path] | None, typer.Option(help="Directory of a finished sweep to publish, repeatable.")
    ] = None,
    write: Annotated[Path | None, typer.Option(help="Where to write the page. Default: standard output.")] = None,
) -> None:
    """Make docs/compatibility.md from the published sweep, or from the sweeps in RESULTS, which are published first."""
    from shakedown.conformance import table

    try:
        if results:
            table.publish(results)
        text = table.page()
    except FileNotFoundError as error:
        raise fail(f"no finished sweep: {error.filename} is missing", BAD_INPUT, False) from None
    if write is None:
        print(text, end="")
    else:
        write.write_text(text)


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
    from shakedown.readiness.evidence import write_atomic

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

            def tell(what: str, done: int, count: int) -> None:
                progress.update(task, description=what, completed=done, total=count)
                if not console.is_terminal:  # a log keeps lines, not bars
                    console.print(f"{done}/{count} {what}", highlight=False, markup=False)

            rows = sweep.Sweep(request, out, tell).run()
    except (sweep.RequestError, databases.DatabaseUnavailable) as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    except sweep.SweepError as error:
        raise fail(str(error), FAILED, as_json) from None
    except KeyboardInterrupt:
        raise fail(f"interrupted; the same command goes on from {out}", INTERRUPTED, as_json) from None
    found = summary.summarise(rows) | {"gaps": summary.gaps(rows)}
    write_atomic(out / "summary.json", (json.dumps(found, indent=1) + "\n").encode())
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
    from shakedown.conformance import summary

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
            if row.status in summary.BAD:
                line = f"{row.status} {row.op} {row.dtype} {row.check} #{row.sample} {row.shapes} {row.message}"
                console.print(escape(line), highlight=False, soft_wrap=True)
    console.print(f"rehearsal on the host's processor; every check is in {escape(str(out / 'results.parquet'))}")
