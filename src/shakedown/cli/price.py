"""``shakedown price``: what a record's measured throughput gets for one unit of money."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from .common import BAD_INPUT, PASSED, fail

if TYPE_CHECKING:
    from shakedown.readiness.cost.prices import Price
    from shakedown.readiness.cost.work import WorkPrice


def price(
    directory: Annotated[
        Path | None, typer.Argument(help="Directory of a finished trial; left out, list prices.")
    ] = None,
    instance: Annotated[str | None, typer.Option(help="Instance type, such as trn2.48xlarge.")] = None,
    region: Annotated[str | None, typer.Option(help="Region of the price, where there are several.")] = None,
    term: Annotated[str | None, typer.Option(help="on-demand, capacity block, ..., where there are several.")] = None,
    host_hour: Annotated[
        str | None, typer.Option(help="What an hour of the trial's own machine costs, to price the CPU's steps.")
    ] = None,
    currency: Annotated[str, typer.Option(help="Currency of --host-hour.")] = "USD",
    copies: Annotated[
        int, typer.Option(min=1, help="Processes side by side on one instance: an assumption, measured by nobody.")
    ] = 1,
    prices: Annotated[
        Path | None, typer.Option(help="TOML with prices of your own, which go before those shipped.")
    ] = None,
    old_after: Annotated[int, typer.Option(min=1, help="Days after which a price is said to be old.")] = 180,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")] = False,
) -> None:
    """Samples per unit of money, from a record's measured throughput and a dated price of an instance hour.

    A rehearsal is never priced as Trainium. Exit code 0: priced; 2: bad input, or nothing in it may be priced so.
    """
    from shakedown.readiness import errors
    from shakedown.readiness import record as records
    from shakedown.readiness.cost import prices as price_files
    from shakedown.readiness.cost import ranges, work

    today = datetime.datetime.now(datetime.UTC).date()
    try:
        known = price_files.load(prices)
        if directory is None:
            _list(known, today, old_after, as_json)
            raise typer.Exit(PASSED)
        if (instance is None) == (host_hour is None):
            raise errors.BadInput("give either --instance or --host-hour: one price, of the machine that did the steps")
        if host_hour is not None:
            amount = ranges.parse(host_hour, "--host-hour")
            if not amount.exact or not amount.low:
                raise errors.BadInput("--host-hour: write one price above zero")
            chosen = work.host_price(amount.low, ranges.currency(currency, "--currency"), today)
        else:
            chosen = price_files.find(known, str(instance), region, term, today)
        result = work.work_price(records.load(directory), chosen, host_hour is not None, copies, today, old_after)
    except errors.TrialError as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    if as_json:
        print(result.model_dump_json(indent=1))
    else:
        _print(result, Console(soft_wrap=True, highlight=False))
    raise typer.Exit(PASSED)


def _list(known: list[Price], today: datetime.date, old_after: int, as_json: bool) -> None:
    """Every price that is known, with its date and source."""
    if as_json:
        print("[" + ",\n".join(price.model_dump_json() for price in known) + "]")
        return
    console = Console(soft_wrap=True, highlight=False)
    for one in known:
        console.print(escape(one.said(today, old_after)))


def _print(result: WorkPrice, console: Console) -> None:
    unit = result.price.currency
    for row in result.rows:
        console.print(f"[bold]{row.mode} {row.dtype} {row.case}[/]")
        for name, span in (
            (f"samples per {unit}", row.items_per_unit),
            (f"positions per {unit}", row.positions_per_unit),
            (f"{unit} per million samples", row.million_items_cost),
        ):
            console.print(f"  {name:24} {_span(span)}")
    for why in dict.fromkeys(one.why for one in result.left_out):
        where = [f"{one.mode} {one.dtype} {one.case}" for one in result.left_out if one.why == why]
        console.print(f"[yellow]not priced[/]  {escape(', '.join(where))}: {escape(why)}")
    console.print(f"throughput  measured, of {escape(result.workload)}; {result.label}, record {result.seal[:12]}")
    console.print(f"price       {result.source}: {escape(result.price_said)}")
    if result.copies > 1:
        console.print(
            f"assumed     {result.copies} such processes side by side on one instance, none slowed by another"
        )
    elif (result.price.accelerators or 0) > 1:
        console.print(
            f"note        the whole instance is paid for, and one process used one of its devices; it has "
            f"{result.price.accelerators} accelerators (--copies)"
        )


def _span(amount: object) -> str:
    from shakedown.readiness.cost.ranges import Range, plain

    assert isinstance(amount, Range)
    if amount.exact:
        return f"{plain(amount.likely)} (no interval)"
    return f"{plain(amount.likely)} ({plain(amount.low)} to {plain(amount.high)})"
