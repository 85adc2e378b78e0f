"""``shakedown ledger``: what was changed for the device, the hours that it took, and what it brought."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from .common import BAD_INPUT, FAILED, PASSED, fail

if TYPE_CHECKING:
    from shakedown.readiness.cost.effect import Measured, Row
    from shakedown.readiness.cost.ledger import Entry

app = typer.Typer(no_args_is_help=True, help="A ledger of the changes of a migration: hours, and measured effects.")
_FILE = Path("shakedown-ledger.jsonl")
_File = Annotated[Path, typer.Option("--file", help="The ledger, an append-only file of JSON lines.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]


@app.command()
def add(
    kind: Annotated[
        str, typer.Option(help="device, padding, layout, unsupported-api, graph-break, custom-kernel or other.")
    ],
    what: Annotated[str, typer.Option(help="What was changed, in a sentence.")],
    hours: Annotated[str, typer.Option(help="Hours that it took.")],
    before: Annotated[Path | None, typer.Option(help="Record of a trial before the change.")] = None,
    after: Annotated[Path | None, typer.Option(help="Record of a trial after it, of the same workload.")] = None,
    mode: Annotated[str, typer.Option(help="Take the effect in this mode only.")] = "",
    dtype: Annotated[str, typer.Option(help="Take the effect at this precision only.")] = "",
    case: Annotated[str, typer.Option(help="Take the effect in this case only.")] = "",
    file: _File = _FILE,
    as_json: _Json = False,
) -> None:
    """Append one change. With --before and --after its measured effect is taken from two records."""
    from shakedown.readiness import errors
    from shakedown.readiness.cost import effect, ledger, ranges

    try:
        took = ranges.parse(hours, "--hours")
        if not took.exact:
            raise errors.BadInput("--hours: write the hours that it took, one number")
        if (before is None) != (after is None):
            raise errors.BadInput("an effect needs two records: give both --before and --after, or neither")
        if before is None and (mode or dtype or case):
            raise errors.BadInput("--mode, --dtype and --case choose an effect: give --before and --after with them")
        found = effect.measured(before, after, mode, dtype, case) if before and after else None
        entry = ledger.add(file, kind, what, took.low, found)
    except errors.TrialError as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    if as_json:
        print(entry.model_dump_json(indent=1))
    else:
        _print(entry, Console(soft_wrap=True, highlight=False))
    raise typer.Exit(PASSED)


@app.command("list")
def list_entries(file: _File = _FILE, as_json: _Json = False) -> None:
    """Every entry, and whether the file was edited. Exit code 1: it was."""
    from shakedown.readiness import errors
    from shakedown.readiness.cost import ledger

    try:
        found = ledger.read(_there(file))
    except errors.TrialError as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    if as_json:
        print(found.model_dump_json(indent=1))
    else:
        console = Console(soft_wrap=True, highlight=False)
        for entry in found.entries:
            _print(entry, console)
        _state(found.problems, found.torn, found.head, console)
    raise typer.Exit(FAILED if found.problems else PASSED)


@app.command("sum")
def sum_up(
    rate: Annotated[str | None, typer.Option(help="What an hour costs: 120, 100..150 or 100..120..150.")] = None,
    currency: Annotated[str, typer.Option(help="Currency of --rate.")] = "USD",
    file: _File = _FILE,
    as_json: _Json = False,
) -> None:
    """Hours by kind, their cost, and all measured effects. Exit code 1: the file was edited."""
    from shakedown.readiness import errors
    from shakedown.readiness.cost import ledger, ranges

    try:
        each = ranges.parse(rate, "--rate") if rate is not None else None
        total = ledger.total(ledger.read(_there(file)), each, ranges.currency(currency, "--currency"))
    except errors.TrialError as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    if as_json:
        print(total.model_dump_json(indent=1))
        raise typer.Exit(FAILED if total.problems else PASSED)
    console = Console(soft_wrap=True, highlight=False)
    for one in total.kinds:
        cost = f"  {ranges.money(one.cost, currency)}" if one.cost else ""
        console.print(f"{one.kind:16} {one.entries:3} entries  {ranges.plain(one.hours):>8} hours{cost}")
    cost = ranges.money(total.cost, currency) if total.cost else "cost not given (--rate)"
    console.print(
        f"{'all':16} {sum(k.entries for k in total.kinds):3} entries  {ranges.plain(total.hours):>8} hours  {cost}"
    )
    if each is not None:
        console.print(f"hours as given in the ledger; rate given: {each.said()} {currency} an hour")
    if total.effects:
        console.print("\n[bold]Measured effects[/]")
    for entry in total.effects:
        _print(entry, console)
    _state(total.problems, total.torn, total.head, console)
    raise typer.Exit(FAILED if total.problems else PASSED)


def _there(file: Path) -> Path:
    from shakedown.readiness import errors

    if not file.exists():
        raise errors.BadInput(f"there is no ledger {file}; `shakedown ledger add` makes one")
    return file


def _state(problems: list[str], torn: list[str], head: str, console: Console) -> None:
    """What is wrong with the file, and the hash that shows whether lines were cut off its end."""
    for text in torn:
        console.print(f"[yellow]unfinished[/]  {escape(text)}")
    for text in problems:
        console.print(f"[red]problem[/]  {escape(text)}")
    console.print(f"last hash  {head}")


def _print(entry: Entry, console: Console) -> None:
    from shakedown.readiness.cost.ranges import plain

    console.print(
        f"{entry.number:4}  {entry.when:%Y-%m-%d}  [bold]{entry.kind}[/]  {plain(entry.hours)} h given  {escape(entry.what)}"
    )
    if entry.effect is not None:
        _effect(entry.effect, console)


def _effect(found: Measured, console: Console) -> None:
    label = found.after.label
    kind = "rehearsal on the embedded device, not Trainium" if label == "rehearsal" else label
    edited = ", whose source was edited" if found.source_changed else ""
    console.print(
        f"      {escape(found.after.workload)}{edited}; {kind}; records {found.before.seal[:12]} and {found.after.seal[:12]}"
    )
    for row in found.rows:
        console.print(f"      {row.mode} {row.dtype} {row.case}: {escape(_row(row))}")
    if found.graph_breaks_before is not None or found.graph_breaks_after is not None:
        console.print(f"      graph breaks {_number(found.graph_breaks_before)} > {_number(found.graph_breaks_after)}")


def _row(row: Row) -> str:
    parts = [f"verdict {row.verdict_before} > {row.verdict_after}"]
    if row.ratio is not None:
        interval = f" ({row.low:.3g} to {row.high:.3g})" if row.low is not None and row.high is not None else ""
        said = row.claim if row.claim != "none" else row.why
        parts.append(f"step time x {row.ratio:.3g}{interval}, {said}")
    elif row.why:
        parts.append(f"step time: {row.why}")
    parts.append(f"fallbacks {_number(row.fallbacks_before)} > {_number(row.fallbacks_after)}")
    parts.append(f"programs compiled {_number(row.compiled_before)} > {_number(row.compiled_after)}")
    return "; ".join(parts)


def _number(value: int | None) -> str:
    return "not seen" if value is None else str(value)
