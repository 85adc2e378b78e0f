"""Sections about what the migration costs and when that is saved again, on the figures of the requirements."""

from __future__ import annotations

from ..cost.payback import Months, Payback, in_months
from ..cost.ranges import figures, money
from ..record import Record
from .words import Section, Table


def brief(record: Record) -> Section:
    """One row, and what is not in it."""
    found = record.judgement.payback
    if found is None:
        return Section("Payback")
    header = ("port cost", "paid once, all", "net saving a month", "months to payback", "from the start")
    row = (
        money(found.port_cost, found.currency),
        money(found.once, found.currency),
        money(found.net_saving, found.currency),
        _span(found.months),
        _span(found.from_start),
    )
    said = [
        f"{found.sentence[0].upper()}{found.sentence[1:]}. From the costs in the requirements, which were given before the "
        "trial; nothing here was measured by it. Likely values first, low to high in brackets."
    ]
    return Section("Payback", said, [Table(header, [row])])


def section(record: Record) -> Section:
    """Every line with its formula and sources, what was not given, and the curve."""
    found = record.judgement.payback
    if found is None:
        return Section("What the migration costs")
    rows = [
        (line.name, line.when, figures(line.amount) if line.amount else "not given", line.how) for line in found.lines
    ]
    points = [
        (str(p.month), *(f"{value:,.0f}" for value in (p.low, p.likely, p.high)))
        for p in found.curve
        if p.month in (0, found.horizon_months) or not p.month % _every(found)
    ]
    header = ("month", "unfavourable", "likely", "favourable")
    return Section(
        "What the migration costs",
        [
            f"In {found.currency}, likely (low to high). The second table is saved less paid, by months after the switch.",
            *found.rules,
        ],
        [Table(("item", "paid", "amount", "how"), rows), Table(header, points)],
    )


def _every(found: Payback) -> int:
    """Months between the points that are shown."""
    return max(1, -(-found.horizon_months // 12))


def _span(months: Months) -> str:
    if months.low == months.high:
        return in_months(months.likely, exact=True)
    return f"{in_months(months.likely)} ({in_months(months.low)} to {in_months(months.high)})"
