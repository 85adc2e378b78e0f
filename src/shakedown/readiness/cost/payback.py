"""Port cost, monthly saving, months to payback, and everything else that a migration costs.

Each result rises or falls with each input throughout, so its ends are found at the corners: the favourable end has every
cost at its low end and ``monthly_before`` at its high end, the unfavourable end the opposite, and the likely value has all
likely values. Month 0 is the switch: what is paid once lies behind it, and savings begin.
"""

from __future__ import annotations

import datetime
from decimal import ROUND_CEILING, Decimal
from typing import Literal

from pydantic import Field

from ..errors import BadInput
from ..evidence import Frozen
from . import ranges
from .inputs import Costs, Quantity, Section
from .ranges import ZERO, Range

Verdict = Literal["no savings", "pays back", "depends on the inputs", "not within the horizon"]
WEEKS_PER_MONTH = Decimal(52) / 12
RULES = (
    "Low, likely and high of a cost: all its inputs at their low, likely, high values.",
    "A month's saving is low where monthly_before is low and monthly_after and all monthly costs are high.",
    "Months to payback are low where everything paid once is low and the saving is high, and high the other way round; "
    "where the saving is not above zero there is no payback.",
    ranges.MIDDLE_RULE,
    "Month 0 is the switch; what is paid once is paid by then. A month is 52/12 weeks. Interest, taxes and discounts are "
    "not in it.",
)
NEEDED = (
    "port.weeks",
    "port.engineers",
    "port.hours_per_week",
    "port.rate",
    "compute.monthly_before",
    "compute.monthly_after",
)


class Used(Frozen):
    """One input of a line: its value as typed, and where it comes from."""

    name: str
    value: str
    source: Literal["given", "measured", "documented"]
    said: str = ""
    date: datetime.date | None = None


class Line(Frozen):
    """One item of the price. ``amount`` is None where it was not given; ``formula`` and ``inputs`` say how it was made.

    ``when``: paid once, paid each month, or saved each month. Amounts are of the payback's currency, to the hundredth.
    """

    name: str
    when: Literal["once", "monthly", "saved monthly"]
    amount: Range | None
    formula: str
    inputs: list[Used] = Field(default=[])
    missing: list[str] = Field(default=[])

    @property
    def how(self) -> str:
        """The formula, and where each input comes from; or which were not given."""
        if self.amount is None:
            return f"missing: {', '.join(self.missing)}"
        said = []
        for used in self.inputs:
            detail = ", ".join(str(part) for part in (used.said, used.date) if part)
            said.append(f"{used.name} {used.value} ({used.source}{': ' + detail if detail else ''})")
        return f"{self.formula}: {'; '.join(said)}"


class Point(Frozen):
    """What has been saved less what has been paid, so many months after the switch. ``low`` is the unfavourable end."""

    month: int
    low: Decimal
    likely: Decimal
    high: Decimal


class Months(Frozen):
    """Months until what was paid is saved again; None where that never happens. ``low`` is the favourable end."""

    low: Decimal | None
    likely: Decimal | None
    high: Decimal | None


class Payback(Frozen):
    """The whole answer. ``saving`` is of the compute bill alone, ``net_saving`` less what is paid ``monthly`` in addition,
    of which None says that nothing was given.

    ``months`` count from the switch, ``from_start`` from the first week of the port: its weeks and the parallel run lie
    before the switch. ``not_given`` are the lines that nobody gave, which are in no sum. ``made`` is None in a record,
    which has a date of its own.
    """

    schema_version: str = "shakedown.payback/1"
    made: datetime.date | None
    currency: str
    horizon_months: int
    lines: list[Line]
    port_cost: Range
    once: Range
    saving: Range
    monthly: Range | None
    net_saving: Range
    months: Months
    from_start: Months
    verdict: Verdict
    sentence: str
    at_horizon: Point
    curve: list[Point]
    not_given: list[str]
    rules: list[str]


def payback(costs: Costs, today: datetime.date | None) -> Payback:
    """Work out a payback. Raises :class:`BadInput` where a needed input is missing."""
    if missing := needed(costs):
        raise BadInput(f"not given: {', '.join(missing)}; `shakedown payback --init` writes a file to fill in")
    lines = _lines(costs)
    once = _sum(lines, "once")
    monthly = _sum(lines, "monthly") if any(line.when == "monthly" and line.amount for line in lines) else None
    saving = _needed(costs, "compute.monthly_before") - _needed(costs, "compute.monthly_after")
    net = saving - monthly if monthly else saving
    months = _hundredths(
        Months(
            low=_months(once.low, net.high), likely=_months(once.likely, net.likely), high=_months(once.high, net.low)
        )
    )
    before_switch = _needed(costs, "port.weeks")
    parallel = costs.parallel_run.months.value if costs.parallel_run.months else ZERO
    from_start = Months(
        low=_later(months.low, before_switch.low, parallel.low),
        likely=_later(months.likely, before_switch.likely, parallel.likely),
        high=_later(months.high, before_switch.high, parallel.high),
    )
    curve = [_point(month, once, net) for month in range(costs.horizon_months + 1)]
    verdict, sentence = _verdict(months, net, costs.horizon_months)
    not_given = [line.name for line in lines if line.amount is None]
    if not_given:
        sentence += f"; not given, and not in it: {', '.join(not_given)}"
    return Payback(
        made=today,
        currency=costs.currency,
        horizon_months=costs.horizon_months,
        lines=lines,
        port_cost=next(line.amount for line in lines if line.name == "engineering" and line.amount),
        once=once,
        saving=_cents(saving),
        monthly=monthly,
        net_saving=_cents(net),
        months=months,
        from_start=_hundredths(from_start),
        verdict=verdict,
        sentence=sentence,
        at_horizon=curve[-1],
        curve=curve,
        not_given=not_given,
        rules=list(RULES),
    )


def given(costs: Costs) -> bool:
    """Whether any cost was given at all."""
    sections = [section for _, section in costs if isinstance(section, Section)]
    return any(value is not None for section in sections for _, value in section)


def needed(costs: Costs) -> list[str]:
    """Keys that are missing for a payback."""
    return [name for name in NEEDED if _get(costs, name) is None]


def judged(costs: Costs) -> Payback | None:
    """The payback that a record holds: a function of its requirements alone. None where they give no costs."""
    return None if needed(costs) else payback(costs, None)


def _lines(costs: Costs) -> list[Line]:
    """Every item, given or not, in the order in which it is read."""
    compile_hours: tuple[str, ...] = ("compilation.hours",)
    hours, divisor = "hours", 1
    if costs.compilation.hours is None and costs.compilation.programs is not None:
        compile_hours = ("compilation.programs", "compilation.seconds_per_program")
        hours, divisor = "programs x seconds_per_program / 3600", 3600
    second = "parallel_run.monthly" if costs.parallel_run.monthly else "compute.monthly_after"
    upkeep = "kernel_upkeep.rate" if costs.kernel_upkeep.rate else "port.rate"
    products: list[tuple[str, Literal["once", "monthly"], str, tuple[str, ...], int]] = [
        (
            "engineering",
            "once",
            "weeks x engineers x hours_per_week x rate",
            ("port.weeks", "port.engineers", "port.hours_per_week", "port.rate"),
            1,
        ),
        ("compilation", "once", f"{hours} x instance_hour", (*compile_hours, "compilation.instance_hour"), divisor),
        (
            "compilation again",
            "monthly",
            f"per_month x {hours} x instance_hour",
            ("compilation.per_month", *compile_hours, "compilation.instance_hour"),
            divisor,
        ),
        ("idle capacity", "once", f"months x {second}", ("parallel_run.months", second), 1),
        ("storage", "monthly", "gigabytes x gigabyte_month", ("storage.gigabytes", "storage.gigabyte_month"), 1),
        ("network (once)", "once", "gigabytes_once x gigabyte", ("network.gigabytes_once", "network.gigabyte"), 1),
        (
            "network (monthly)",
            "monthly",
            "gigabytes_monthly x gigabyte",
            ("network.gigabytes_monthly", "network.gigabyte"),
            1,
        ),
        ("observability (once)", "once", "as given", ("observability.once",), 1),
        ("observability (monthly)", "monthly", "as given", ("observability.monthly",), 1),
        ("kernel upkeep", "monthly", f"hours_per_month x {upkeep}", ("kernel_upkeep.hours_per_month", upkeep), 1),
    ]
    made = [_product(costs, *one) for one in products]
    saved = Line(
        name="compute bill",
        when="saved monthly",
        amount=_cents(_needed(costs, "compute.monthly_before") - _needed(costs, "compute.monthly_after")),
        formula="monthly_before - monthly_after",
        inputs=[_used(costs, name) for name in ("compute.monthly_before", "compute.monthly_after")],
    )
    return [*made, saved]


def _product(
    costs: Costs, name: str, when: Literal["once", "monthly"], formula: str, factors: tuple[str, ...], divisor: int
) -> Line:
    """A line that is the product of its inputs; without an amount where one of them was not given."""
    missing = [factor for factor in factors if _get(costs, factor) is None]
    if missing:
        return Line(name=name, when=when, amount=None, formula=formula, missing=missing)
    amount = _needed(costs, factors[0])
    for factor in factors[1:]:
        amount = amount * _needed(costs, factor)
    used = [_used(costs, factor) for factor in factors]
    return Line(name=name, when=when, amount=_cents(amount.over(divisor)), formula=formula, inputs=used)


def _get(costs: Costs, name: str) -> Quantity | None:
    section, _, key = name.partition(".")
    found = getattr(getattr(costs, section), key)
    assert found is None or isinstance(found, Quantity)
    return found


def _needed(costs: Costs, name: str) -> Range:
    found = _get(costs, name)
    assert found is not None, name
    return found.value


def _used(costs: Costs, name: str) -> Used:
    found = _get(costs, name)
    assert found is not None, name
    return Used(name=name, value=found.value.said(), source=found.source, said=found.said, date=found.date)


def _sum(lines: list[Line], when: str) -> Range:
    total = ZERO
    for line in lines:
        if line.when == when and line.amount is not None:
            total = total + line.amount
    return total


def _cents(amount: Range) -> Range:
    low, likely, high = (value.quantize(Decimal("0.01")) for value in (amount.low, amount.likely, amount.high))
    return Range(low=low, likely=likely, high=high)


def _months(once: Decimal, saving: Decimal) -> Decimal | None:
    """Months of `saving` that make up for `once`; None where there is nothing saved."""
    return once / saving if saving > 0 else None


def _later(months: Decimal | None, weeks: Decimal, parallel: Decimal) -> Decimal | None:
    return None if months is None else months + weeks / WEEKS_PER_MONTH + parallel


def _hundredths(months: Months) -> Months:
    """Rounded up: a promise is not rounded down."""

    def cut(value: Decimal | None) -> Decimal | None:
        return None if value is None else value.quantize(Decimal("0.01"), rounding=ROUND_CEILING)

    return Months(low=cut(months.low), likely=cut(months.likely), high=cut(months.high))


def _point(month: int, once: Range, net: Range) -> Point:
    def at(paid: Decimal, saved: Decimal) -> Decimal:
        return (month * saved - paid).quantize(Decimal("0.01"))

    return Point(
        month=month, low=at(once.high, net.low), likely=at(once.likely, net.likely), high=at(once.low, net.high)
    )


def _verdict(months: Months, net: Range, horizon: int) -> tuple[Verdict, str]:
    """One word and one sentence."""

    def within(value: Decimal | None) -> bool:
        return value is not None and value <= horizon

    if net.high <= 0:
        return "no savings", "no savings on these inputs: a month costs as much afterwards as before, or more"
    limit = f"the horizon of {horizon} months"
    if within(months.high):
        rest = "" if months.low == months.high else f" ({in_months(months.low)} to {in_months(months.high)})"
        likely = in_months(months.likely, exact=not rest)
        return "pays back", f"pays back in {likely} months{rest} after the switch, within {limit}"
    worst = (
        "never on the unfavourable inputs"
        if months.high is None
        else f"in {in_months(months.high)} on the unfavourable inputs"
    )
    if within(months.likely):
        return (
            "depends on the inputs",
            f"pays back in {in_months(months.likely)} months after the switch on the likely costs, and {worst}: not "
            f"within {limit} on all of them",
        )
    if within(months.low):
        likely = "never" if months.likely is None else f"not within {limit} but in {in_months(months.likely)}"
        return (
            "depends on the inputs",
            f"pays back in {in_months(months.low)} months after the switch on the favourable inputs only, and {likely} on "
            "the likely ones",
        )
    best = f"{in_months(months.low)} months even on the favourable inputs"
    return "not within the horizon", f"does not pay back within {limit}: it takes {best}"


def in_months(value: Decimal | None, exact: bool = False) -> str:
    """Months for the eye: as they are where every input is exact, else rounded up to a tenth, since a promise is not
    rounded down.
    """
    if value is None:
        return "never"
    if exact:
        return ranges.plain(value.quantize(Decimal("0.01"), rounding=ROUND_CEILING))
    return f"{value.quantize(Decimal('0.1'), rounding=ROUND_CEILING):f}"
