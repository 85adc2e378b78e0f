"""``shakedown compile``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .common import FAILED, PASSED, failures, many

if TYPE_CHECKING:
    from shakedown.readiness.compiling import Case, Compiled


def compile(
    workload: Annotated[str, typer.Argument(help="decoder, cnn, or a Python file that defines a workload.")],
    case: Annotated[list[str] | None, typer.Option(help="BATCHxLENGTH, repeatable. Default: the workload's.")] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="float32, bfloat16, float16. Default: the workload's.")
    ] = None,
    mode: Annotated[list[str] | None, typer.Option(help="compiled, eager. Default: compiled.")] = None,
    profile: Annotated[str, typer.Option(help="Support profile to compile under. Default: the active one.")] = "",
    cache: Annotated[
        Path | None, typer.Option(help="Root of the caches to fill (as SHAKEDOWN_CACHE_DIR). Default: the user's.")
    ] = None,
    device_kind: Annotated[
        str, typer.Option(help="Refuse to compile for any other kind of device. Default: the kind that is here.")
    ] = "",
    timeout: Annotated[float, typer.Option(help="Seconds that one mode in one precision may take.")] = 3600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the document as JSON on standard output.")] = False,
) -> None:
    """Fill the cache with the programs of WORKLOAD's training step; nothing is run.

    Forward, backward and optimizer are followed with tensors that have sizes and no memory. Exit codes: 0 every graph is
    compiled; 1 a graph is not one program (operator and line are named) or a case failed; 2 bad input; 130 interrupted.
    """
    from shakedown.readiness import compiling
    from shakedown.readiness.errors import BadInput

    console = Console(stderr=True, soft_wrap=True)
    with failures(as_json):
        if timeout <= 0:
            raise BadInput(f"a timeout of {timeout:g} s leaves no time to compile; give seconds above zero")
        request = compiling.Request(
            workload=workload,
            cases=many(case),
            dtypes=many(dtype),
            modes=many(mode) or ("compiled",),
            profile=profile,
            cache=cache,
            device_kind=device_kind,
            timeout_seconds=timeout,
        )
        made = compiling.run(request, lambda what: console.print(escape(what), style="dim", highlight=False))
    if as_json:
        print(made.model_dump_json(indent=1))
    else:
        _show(made)
    raise typer.Exit(PASSED if made.complete else FAILED)


def _show(made: Compiled) -> None:
    console = Console(soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for name in ("case", "dtype", "mode", "graphs", "compiled", "found", "seconds", "stored", "breaks"):
        table.add_column(name, justify="left" if name in ("case", "dtype", "mode") else "right")
    for one in made.cases:
        stored = f"{one.stored_bytes / 1024:,.0f} KiB"
        numbers = (one.graphs, one.compiled, one.found, f"{one.seconds:.1f}", stored, len(one.breaks))
        table.add_row(one.case, one.dtype, one.mode, *map(str, numbers))
    console.print(table)
    for one in made.cases:
        for line in _remarks(one):
            console.print(f"{one.case} {one.dtype} {one.mode}: {line}", style=None, highlight=False, markup=False)
    console.print(f"cache: {made.cache}", highlight=False, markup=False)


def _remarks(one: Case) -> list[str]:
    lines = [f"failed: {one.error}"] if one.error else []
    lines += [f"not one program: {text}" for text in one.split]
    lines += [f"graph break at {text}" for text in one.breaks]
    lines += [f"on the CPU in {off.phase or 'the step'}: {off.operator} ({off.reason})" for off in one.fallbacks]
    if one.host_reads:
        lines.append(
            f"the host reads values {one.host_reads} times: they count as zero here, so a branch on them was followed one way"
        )
    return lines
