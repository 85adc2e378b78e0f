"""Work per currency unit: measured throughput over the price of an instance for an hour.

Throughput and price must be of the same machine. What the embedded device did is never priced as Trainium, the CPU's own
steps only as a host, and steps on an accelerator only as an instance that has one.
"""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Literal

from pydantic import Field

from ..errors import BadInput
from ..evidence import Frozen
from ..judge.measured import PooledTiming
from ..record import Record
from .prices import Price
from .ranges import Range

HOST = "host"  # name of a price that the user gives for the machine of the trial
REHEARSAL = (
    "a rehearsal on the embedded device is never priced as Trainium: its throughput is that of a CPU, and says nothing of the "
    "device's"
)


class Worth(Frozen):
    """What one mode, precision and case gets for one currency unit, and what a million samples cost.

    Ends come from the throughput's interval; they are equal where it has none (``interval`` is False then). ``positions``
    are batch x length: tokens of a text; of images they mean nothing.
    """

    mode: str
    dtype: str
    case: str
    items_per_second: float
    items_per_unit: Range
    positions_per_unit: Range
    million_items_cost: Range
    interval: bool


class LeftOut(Frozen):
    """A mode, precision and case that has no price here, and why."""

    mode: str
    dtype: str
    case: str
    why: str


class WorkPrice(Frozen):
    """The whole answer. ``copies`` processes are assumed to run side by side on one instance without slowing each other;
    that is an assumption of the user's, and measured by nobody.
    """

    schema_version: str = "shakedown.work-price/1"
    made: datetime.date
    label: Literal["rehearsal", "measurement", "self-check"]
    seal: str
    workload: str
    price: Price
    source: Literal["given", "documented"]
    price_said: str
    price_days: int
    price_old: bool
    copies: int
    rows: list[Worth]
    left_out: list[LeftOut] = Field(default=[])


def host_price(amount: Decimal, currency: str, today: datetime.date) -> Price:
    """What the user says an hour of the trial's own machine costs."""
    return Price(
        name=HOST,
        region="own",
        term="given",
        price=amount,
        currency=currency,
        date=today,
        source="given by the user",
        accelerators=0,
    )


def work_price(
    record: Record,
    price: Price,
    given: bool,
    copies: int,
    today: datetime.date,
    old_after: int,
) -> WorkPrice:
    """Price the throughput of `record`.

    Raises:
        BadInput: none of its throughput may be priced so; the message has the reason.
    """
    rows, left_out = [], []
    for timing in record.judgement.timings:
        why = _why_not(record, timing, price)
        if why:
            left_out.append(LeftOut(mode=timing.mode, dtype=timing.dtype, case=timing.case, why=why))
        else:
            rows.append(_worth(timing, price, copies))
    if not rows:
        reasons = list(dict.fromkeys(one.why for one in left_out)) or ["the record has no timings"]
        raise BadInput("nothing here can be priced: " + "; ".join(reasons))
    return WorkPrice(
        made=today,
        label=record.label,
        seal=record.seal,
        workload=str(record.trial["workload"]),
        price=price,
        source="given" if given else "documented",
        price_said=f"{price.price} {price.currency} an hour of the trial's own machine, {price.date}"
        if given
        else price.said(today, old_after),
        price_days=price.age(today),
        price_old=price.age(today) > old_after,
        copies=copies,
        rows=rows,
        left_out=left_out,
    )


def _why_not(record: Record, timing: PooledTiming, price: Price) -> str:
    """Why the throughput of `timing` must not be divided by `price`; empty where it may."""
    on_cpu = timing.mode == "reference" or record.trial["target"] == "cpu"
    if timing.kind == "rehearsal" or (record.label == "rehearsal" and not on_cpu):
        return REHEARSAL
    if on_cpu and price.accelerators != 0:
        return f"the CPU's steps are not those of {price.name}; give the price of the host with --host-hour"
    if not on_cpu and (price.name == HOST or price.accelerators == 0):
        return f"steps on {record.trial['target']} are not those of a machine without accelerators; name the --instance"
    if not on_cpu and record.trial["target"] == "neuron" and not price.name.startswith("trn"):
        return f"steps on neuron are not those of {price.name}"
    if timing.withheld:
        return f"no time: {timing.withheld}"
    return "" if timing.throughput else "its case has no batch size in its name"


def _worth(timing: PooledTiming, price: Price, copies: int) -> Worth:
    found = timing.throughput
    assert found is not None
    known = found.items_low is not None and found.items_high is not None
    rates = (found.items_low, found.items, found.items_high) if known else (found.items,) * 3
    per_unit = [Decimal(repr(rate)) * 3600 * copies / price.price for rate in rates if rate is not None]
    positions = Decimal(repr(found.positions / found.items))
    low, likely, high = per_unit
    return Worth(
        mode=timing.mode,
        dtype=timing.dtype,
        case=timing.case,
        items_per_second=found.items,
        items_per_unit=_significant(low, likely, high),
        positions_per_unit=_significant(low * positions, likely * positions, high * positions),
        million_items_cost=_significant(*(Decimal(1_000_000) / value for value in (high, likely, low))),
        interval=known,
    )


def _significant(low: Decimal, likely: Decimal, high: Decimal) -> Range:
    """Four digits: a measured step time has no more."""

    def cut(value: Decimal) -> Decimal:
        return Decimal(f"{value:.3e}")

    return Range(low=cut(low), likely=cut(likely), high=cut(high))
