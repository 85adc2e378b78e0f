"""The command line: parse, call, print.

Exit codes: 0 all is well (every tested cell passed, the record verifies, every check is right); 1 a tested cell or check
failed, or nothing could be concluded; 2 bad input, nothing measured; 130 interrupted.
"""

from __future__ import annotations

from typing import Annotated

import typer

import shakedown

from . import (
    bisect,
    bundle,
    cache,
    compare,
    compile,
    env,
    exec,
    judge,
    ledger,
    ops,
    parity,
    payback,
    plan,
    preflight,
    price,
    project,
    report,
    scan,
    schema,
    selftest,
    shapes,
    trial,
)
from .common import PASSED

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"shakedown {shakedown.__version__}")
        raise typer.Exit(PASSED)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Rehearse and prove a PyTorch workload's move to AWS Trainium."""


app.command()(plan.init)
app.command()(plan.forecast)
app.command()(preflight.preflight)
app.command()(compile.compile)
app.command()(trial.run)
app.command()(trial.resume)
app.command()(judge.judge)
app.command()(trial.verify)
app.command()(report.report)
app.command()(compare.compare)
app.command()(compare.junit)
app.command()(schema.schema)
app.command("exec", context_settings=exec.CONTEXT)(exec.exec_)
app.command()(parity.parity)
app.command()(bisect.bisect)
app.command()(bundle.bundle)
app.command()(selftest.selftest)
app.command()(scan.scan)
app.command()(env.env)
app.command()(shapes.shapes)
app.command()(payback.payback)
app.command()(price.price)
app.command()(project.project)
app.add_typer(ledger.app, name="ledger")
app.add_typer(ops.app, name="ops")
app.add_typer(cache.app, name="cache")


def main() -> None:
    """Entry point of the ``shakedown`` command."""
    app(prog_name="shakedown")
