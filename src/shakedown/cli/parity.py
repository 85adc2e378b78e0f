"""``shakedown parity``."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .common import BAD_INPUT, FAILED, PASSED, fail, failures, many


def parity(
    script: Annotated[
        Path, typer.Argument(help="A training script that follows the contract (docs/evidence/parity.md).")
    ],
    arguments: Annotated[list[str] | None, typer.Argument(help="The script's own arguments, after --.")] = None,
    steps: Annotated[int, typer.Option(help="Losses to compare; the script must write so many.")] = 120,
    target: Annotated[str, typer.Option(help="neuron, cuda, xpu, mps or cpu.")] = "neuron",
    twins: Annotated[int, typer.Option(help="Runs on the CPU with nudged weights, five or more.")] = 5,
    dtype: Annotated[str, typer.Option(help="Precision that the script computes in on the target.")] = "float32",
    limit: Annotated[
        float,
        typer.Option(help="Relative gap that would matter: where the twins differ by more, losses decide nothing."),
    ] = 0.02,
    tolerance: Annotated[
        float | None, typer.Option(help="The plain rule: largest relative gap at the steps of --at.")
    ] = None,
    at: Annotated[list[str] | None, typer.Option(help="Steps of the plain rule; several with commas.")] = None,
    threads: Annotated[int, typer.Option(help="Threads of every run; 0 takes the cores there are.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds one run may take.")] = 3600.0,
    out: Annotated[
        Path | None, typer.Option(help="Directory; runs that are in it are not made again. Default: a new one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print parity.json on standard output.")] = False,
) -> None:
    """Run a training SCRIPT on the CPU, on the CPU with nudged weights, and on the target, and compare the losses.

    Exit code 0: identical, within the envelope or explained by the declared precision, and the plain rule passes where it was
    asked for; 1: not so, or nothing could be decided; 2: bad input; 130: interrupted, and the same command goes on.
    """
    from shakedown.readiness.evidence import write_atomic
    from shakedown.readiness.parity import run
    from shakedown.readiness.report import parity as words
    from shakedown.readiness.report import render

    # A polite end (a CI runner's time limit) is what Ctrl-C is: the child is ended, finished runs are kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = out or Path("shakedown-runs") / f"parity-{script.stem}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    console = Console(stderr=True, soft_wrap=True)
    try:
        numbers = tuple(int(part) for part in many(at))
    except ValueError:
        raise fail(
            f"--at {','.join(at or [])} are not steps; write for example --at 10,100", BAD_INPUT, as_json
        ) from None
    request = run.Request(
        script=script,
        out=folder,
        steps=steps,
        arguments=tuple(arguments or ()),
        target=target,
        twins=twins,
        dtype=dtype,
        limit=limit,
        tolerance=tolerance,
        at=numbers,
        threads=threads,
        timeout_seconds=timeout,
    )
    with failures(as_json):
        found = run.run(request, lambda text: console.print(text, highlight=False, markup=False))
        section = words.page(found)
        page = [f"# {section.title}", "", f"> **{found.label_text}**", "", *render.section_lines(section)[2:]]
        write_atomic(folder / "parity.md", "\n".join(page).encode())
    if as_json:
        print(found.model_dump_json(indent=1))
    else:
        screen = Console()
        screen.print(found.label_text, style="yellow", highlight=False, markup=False)
        render.show_section(section, screen)
        console.print(f"parity.json and parity.md are in {folder}", highlight=False, markup=False)
    raise typer.Exit(PASSED if found.result.passed else FAILED)
