"""``shakedown payback``: what moving costs, what it saves, and when the one has made up for the other."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from .common import BAD_INPUT, FAILED, PASSED, fail

if TYPE_CHECKING:
    from shakedown.readiness.cost.payback import Payback

_OPTIONS = {"port.weeks": "port_weeks"}  # where the option is not called like the key
_RANGE = "6, 4..9 or 4..6..9."


def payback(
    port_weeks: Annotated[str | None, typer.Option(help=f"Weeks that the port takes: {_RANGE}")] = None,
    engineers: Annotated[str | None, typer.Option(help="People working on it at the same time.")] = None,
    hours_per_week: Annotated[str | None, typer.Option(help="Hours a week of each of them.")] = None,
    rate: Annotated[str | None, typer.Option(help="What an hour of theirs costs.")] = None,
    monthly_before: Annotated[str | None, typer.Option(help="A month of the fleet of today.")] = None,
    monthly_after: Annotated[
        str | None, typer.Option(help="A month of the fleet that does the same work afterwards.")
    ] = None,
    currency: Annotated[str | None, typer.Option(help="Three letters; nothing is converted. Default: USD.")] = None,
    horizon: Annotated[
        int | None, typer.Option(help="Months after the switch by which it should have paid back. Default: 24.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="TOML with these and all other costs; options go before it. See --init.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Trial on the device itself, for the measured seconds that compiling takes.")
    ] = None,
    init: Annotated[
        bool, typer.Option("--init", help="Write a commented template to --file (default payback.toml) and stop.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result, with the curve, as JSON on standard output.")
    ] = False,
) -> None:
    """Port cost, monthly saving, months to payback: each low, likely and high, with what was left out.

    Exit code 0: pays back within the horizon on the likely inputs; 1: it does not; 2: bad input.
    """
    from shakedown.readiness import errors
    from shakedown.readiness.cost import inputs
    from shakedown.readiness.cost.payback import needed
    from shakedown.readiness.cost.payback import payback as work_out

    try:
        if init:
            _write_template(file or Path("payback.toml"))
            raise typer.Exit(PASSED)
        options: dict[str, Any] = {
            "port.weeks": port_weeks,
            "port.engineers": engineers,
            "port.hours_per_week": hours_per_week,
            "port.rate": rate,
            "compute.monthly_before": monthly_before,
            "compute.monthly_after": monthly_after,
            "currency": currency,
            "horizon_months": horizon,
        }
        known = inputs.load(file, options)
        if record is not None:
            known = _with_record(known, record)
        if missing := needed(known):
            said = [f"--{_OPTIONS.get(name, name.partition('.')[2]).replace('_', '-')} ({name})" for name in missing]
            raise errors.BadInput(f"not given: {', '.join(said)}; `shakedown payback --init` writes a file to fill in")
        result = work_out(known, datetime.datetime.now(datetime.UTC).date())
    except errors.TrialError as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    if as_json:
        print(result.model_dump_json(indent=1))
    else:
        _print(result, Console(soft_wrap=True, highlight=False))
    months = result.months.likely
    raise typer.Exit(PASSED if months is not None and months <= result.horizon_months else FAILED)


def _write_template(path: Path) -> None:
    from shakedown.readiness import errors
    from shakedown.readiness.cost import inputs
    from shakedown.readiness.evidence import write_atomic

    if path.exists():
        raise errors.BadInput(f"{path} is already there and is left as it is; choose another --file")
    try:
        write_atomic(path, inputs.template("shakedown payback --init").encode())
    except OSError as error:
        raise errors.BadInput(f"cannot write {path}: {error.strerror}") from None
    Console(stderr=True, soft_wrap=True).print(
        f"wrote {escape(str(path))}; edit it, then: shakedown payback --file {path}"
    )


def _with_record(known: Any, folder: Path) -> Any:
    """The inputs with what a record measured of compiling; what the user gave goes before it."""
    from shakedown.readiness import errors
    from shakedown.readiness import record as records
    from shakedown.readiness.cost import compiled

    if known.compilation.hours is not None or known.compilation.seconds_per_program is not None:
        raise errors.BadInput(
            "--record: compilation.hours or seconds_per_program is given already; leave it out to take the measured one"
        )
    measured = {name.partition(".")[2]: value for name, value in compiled.measured(records.load(folder)).items()}
    if known.compilation.programs is not None:
        measured.pop("programs")
    return known.model_copy(update={"compilation": known.compilation.model_copy(update=measured)})


def _print(result: Payback, console: Console) -> None:
    """The lines with their formulas and sources, what is missing, the rules, and the sentence last."""
    from shakedown.readiness.cost.payback import in_months
    from shakedown.readiness.cost.ranges import figures, money

    console.print(f"[bold]{result.currency}, likely (low to high)[/]")
    for line in result.lines:
        if line.amount is not None:
            console.print(f"  {line.name:24} {line.when:14} {figures(line.amount)}")
            console.print(f"[dim]      {escape(line.how)}[/]")
    if result.not_given:
        console.print("[yellow]not given, and in no sum[/]")
    for line in result.lines:
        if line.amount is None:
            console.print(f"  {line.name:24} {line.when:14} [dim]{escape(', '.join(line.missing))}[/]")
    console.print("\n[dim]How the ends are found[/]")
    for rule in result.rules:
        console.print(f"[dim]  {escape(rule)}[/]")
    exact = result.once.exact and result.net_saving.exact

    def span(low: Any, likely: Any, high: Any) -> str:
        return in_months(likely, exact) if exact else f"{in_months(likely)} ({in_months(low)} to {in_months(high)})"

    console.print(f"\nport cost            {money(result.port_cost, result.currency)}")
    console.print(f"paid once, all       {money(result.once, result.currency)}")
    console.print(f"saved a month        {money(result.saving, result.currency)} of the compute bill")
    monthly = money(result.monthly, result.currency) if result.monthly else "nothing given"
    console.print(f"less paid a month    {monthly}")
    console.print(f"net saving a month   {money(result.net_saving, result.currency)}")
    months, start = result.months, result.from_start
    console.print(f"months to payback    {span(months.low, months.likely, months.high)} after the switch")
    console.print(
        f"  from the start     {span(start.low, start.likely, start.high)} with the port and the parallel run"
    )
    console.print(f"worked out on {result.made}, in {result.currency}; nothing is converted or discounted")
    colour = {"pays back": "green", "depends on the inputs": "yellow"}.get(result.verdict, "red")
    console.print(f"[bold {colour}]{escape(result.sentence)}[/]")
