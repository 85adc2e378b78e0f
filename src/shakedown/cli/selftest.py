"""``shakedown selftest``: faulty devices must be caught, healthy ones must pass."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from .common import BAD_INPUT, INTERRUPTED, fail, many


def selftest(
    faults: Annotated[
        list[str] | None, typer.Option(help="Names with commas, or `none`. Default: every fault there is.")
    ] = None,
    healthy: Annotated[int, typer.Option(min=0, help="Runs of a healthy device, which count false alarms.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Trials at a time.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Directory; one that exists goes on from there. Default: a temporary one.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep every trial, not only those with something wrong.")
    ] = False,
    write: Annotated[Path | None, typer.Option(help="Put the table into this page, such as docs/selftest.md.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")] = False,
) -> None:
    """Try the trial itself: devices that are wrong on purpose must be caught, and healthy ones must not raise an alarm.

    Exit code 1 when a fault was missed or named wrongly, or there was a false alarm.
    """
    from shakedown.readiness import errors
    from shakedown.readiness.evidence import write_atomic
    from shakedown.readiness.selftest import run, table

    # Whoever ends this politely gets what Ctrl-C gets: children ended, what is finished kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(stderr=True, soft_wrap=True)
    names = many(faults)
    try:
        planned = [] if names == ("none",) else run.faults(names)
        planned += run.healthy(healthy)
        if not planned:
            raise errors.BadInput("nothing to try; give --faults, or --healthy with a number above zero")
        with tempfile.TemporaryDirectory(prefix="shakedown-selftest-") as temporary:
            folder = out or Path(temporary)
            found = run.run(
                planned,
                folder.absolute(),
                jobs,
                keep,
                lambda what, share: console.print(f"{share:4.0%} {escape(what)}", highlight=False),
            )
    except errors.BadInput as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    except (errors.Interrupted, KeyboardInterrupt):
        said = f"; `--out {out}` goes on from there" if out else "; with --out DIR it can go on where it was"
        raise fail(f"interrupted{said}", INTERRUPTED, as_json) from None
    if write is not None:
        page = write.read_text() if write.exists() else "# The trial tries itself\n"
        write_atomic(write, table.put_into(page, table.markdown(found)).encode())
    if as_json:
        print(found.model_dump_json(indent=1))
    else:
        _say(found, Console(soft_wrap=True), out)
    raise typer.Exit(found.exit_code)


def _say(found: object, console: Console, out: Path | None) -> None:
    from shakedown.readiness.selftest import table
    from shakedown.readiness.selftest.results import SelfTest

    assert isinstance(found, SelfTest)
    for line in table.summary(found):
        console.print(escape(line.replace("**", "")), highlight=False)
    for one in table.wrong(found.tried):
        console.print(
            f"[red]{one.result}[/]  {escape(one.name)} ({one.dtype}): expected {', '.join(one.expected) or 'nothing'}; "
            f"{escape('; '.join(f'{d.word}: {d.text}' for d in one.by[:2]) or one.reason or 'nothing was found')}",
            highlight=False,
        )
    if out is not None:
        console.print(f"result  {escape(str(out / 'selftest.json'))}", highlight=False)
