"""``shakedown preflight``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from .common import BAD_INPUT, fail, failures


def preflight(
    workload: Annotated[str, typer.Argument(help="decoder, cnn, or a Python file that defines a workload.")],
    target: Annotated[str, typer.Option(help="neuron, cuda, xpu, mps or cpu.")] = "neuron",
    requirements: Annotated[
        Path | None, typer.Option(help="TOML with the rollback command, the stop conditions, accepted fallbacks.")
    ] = None,
    family: Annotated[
        str, typer.Option(help="What must answer for neuron: native (TorchNeuron), legacy (PyTorch/XLA) or rehearsal.")
    ] = "",
    profile: Annotated[
        str | None, typer.Option(help="Support profile to look operators up in. Default: the active one.")
    ] = None,
    exit_on_missing: Annotated[
        bool, typer.Option("--exit-on-missing", help="Stop where an operator leaves the device and is not accepted.")
    ] = False,
    ec2: Annotated[bool, typer.Option("--ec2", help="Ask EC2's metadata service, for at most a second.")] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds that opening the device, or following a step, may take.")
    ] = 180.0,
    out: Annotated[Path | None, typer.Option(help="Write the page to this file. Default: standard output.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the document as JSON on standard output.")] = False,
) -> None:
    """May WORKLOAD be tried on this machine at all? A page for the review, and an exit code per reason.

    Exit codes: 0 ready; 10 the device is not visible; 11 another package family than the one asked for; 12 unsupported
    combination; 13 missing operators (with --exit-on-missing); 14 no rollback command; 15 a stop condition is unanswered or
    triggered; 2 bad input; 130 interrupted. Where several apply the lowest decides, and all are listed.
    """
    from shakedown.readiness.evidence import write_atomic
    from shakedown.readiness.plan import preflight as checks
    from shakedown.readiness.plan import preflight_page

    request = checks.Request(
        workload=workload,
        target=target,
        requirements=requirements,
        family=family,
        profile=profile,
        exit_on_missing=exit_on_missing,
        ec2=ec2,
        timeout_seconds=timeout,
    )
    console = Console(stderr=True, soft_wrap=True)
    with failures(as_json):
        found = checks.run(request, lambda what: console.print(escape(what), style="dim", highlight=False))
    page = preflight_page.markdown(found)
    if out is not None:
        try:
            write_atomic(out, page.encode())
        except OSError as error:
            raise fail(f"cannot write {out}: {error.strerror}", BAD_INPUT, as_json) from None
    if as_json:
        print(found.model_dump_json(indent=1))
    elif out is None:
        print(page, end="")
    for reason in found.reasons:
        console.print(f"[bold red]stop {reason.code}[/]  {escape(reason.name)}: {escape(reason.text)}", highlight=False)
    if found.ready:
        console.print("[bold green]ready[/]" + (" (rehearsal)" if found.rehearsal else ""), highlight=False)
    raise typer.Exit(found.exit_code)
