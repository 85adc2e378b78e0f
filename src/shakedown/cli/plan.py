"""``shakedown init`` and ``shakedown forecast``: what is done before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from .common import BAD_INPUT, FAILED, INTERRUPTED, PASSED, fail

BLOCKED = 3


def init(
    workload: Annotated[str, typer.Argument(help="decoder, cnn, or a Python file that defines a workload.")],
    out: Annotated[Path | None, typer.Option(help="File to write. Default: NAME.requirements.toml.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Say what was written as JSON on standard output.")] = False,
) -> None:
    """Write a requirements file for WORKLOAD: every key with its default, its reason, and the workload's own cases."""
    from shakedown.readiness import errors, requirements
    from shakedown.readiness import workload as workloads
    from shakedown.readiness.evidence import write_atomic
    from shakedown.readiness.plan.forecast import load
    from shakedown.readiness.requirements.template import template

    try:
        source = workloads.resolve(workload)
        file = out or Path(f"{source.name}.requirements.toml")
        _refuse(file, source.path, force)
        loaded = load(source)
        text = template(loaded, f"shakedown init {workload}")
        requirements.parse(text, str(file))  # what is written can be read
        write_atomic(file, text.encode())
    except errors.BadInput as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    except OSError as error:
        raise fail(f"cannot write {error.filename or out}: {error.strerror}", BAD_INPUT, as_json) from None
    except KeyboardInterrupt:
        raise fail("interrupted; nothing was written", INTERRUPTED, as_json) from None
    twin = Path(f"{workload}.py")
    note = ""
    if source.path.parent == workloads.BUILT_IN and twin.exists() and twin.resolve() != source.path:
        note = f"{workload} is the built-in workload; for the file here say {twin}"
    if as_json:
        print(json.dumps({"file": str(file), "workload": source.name, "workload_file": str(source.path), "note": note}))
    else:
        Console().print(
            f"{escape(str(file))}: requirements of {escape(source.name)}, to be edited before the first run",
            highlight=False,
            soft_wrap=True,
        )
        if note:
            Console(stderr=True).print(escape(note), highlight=False, soft_wrap=True)


def _refuse(file: Path, source: Path, force: bool) -> None:
    """Raise where `file` must not be written."""
    from shakedown.readiness.errors import BadInput

    if file.is_dir():
        raise BadInput(f"{file} is a directory; name a file with --out")
    if file.exists() and file.resolve() == source:
        raise BadInput(f"{file} is the workload itself; name another file with --out")
    if not file.parent.is_dir():
        raise BadInput(f"there is no directory {file.parent} to write {file.name} in")
    if file.exists() and not force:
        first = file.read_text(errors="replace").partition("\n")[0].lstrip("# ")
        raise BadInput(
            f"{file} exists and is left as it is (it begins with: {first:.90}); name another file with --out, or overwrite it "
            "with --force"
        )


def forecast(
    workload: Annotated[str, typer.Argument(help="decoder, cnn, or a Python file that defines a workload.")],
    requirements: Annotated[Path | None, typer.Option(help="TOML file; shakedown init writes one.")] = None,
    profile: Annotated[
        str | None, typer.Option(help="Support profile: native, neuron-2.33 or a TOML file. Default: the active one.")
    ] = None,
    target: Annotated[str, typer.Option(help="neuron, cuda, xpu, mps or cpu: which modes it has.")] = "neuron",
    as_json: Annotated[bool, typer.Option("--json", help="Print the forecast as JSON on standard output.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the forecast as Markdown on standard output.")
    ] = False,
) -> None:
    """Say before the trial whether WORKLOAD can go as its requirements demand. Runs nothing on any device.

    Exit codes: 0 compatible as specified, 1 needs a revised test plan, 3 blocked, 2 bad input.
    """
    from shakedown.readiness import errors
    from shakedown.readiness.plan import forecast_page
    from shakedown.readiness.plan.forecast import forecast as make

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("loading the workload", total=1.0)

            def show(what: str, share: float) -> None:
                progress.update(task, description=what, completed=share)
                if not console.is_terminal:  # a log keeps lines, not bars
                    console.print(f"{share:4.0%} {escape(what)}", highlight=False)

            found = make(workload, requirements, profile, target, show)
    except errors.BadInput as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    except KeyboardInterrupt:
        raise fail("interrupted", INTERRUPTED, as_json) from None
    if as_json:
        print(found.model_dump_json(indent=1))
    elif as_markdown:
        print(forecast_page.markdown(found), end="")
    else:
        forecast_page.terminal(found, Console())
    codes = {"compatible as specified": PASSED, "needs a revised test plan": FAILED, "blocked": BLOCKED}
    raise typer.Exit(codes[found.outcome])
