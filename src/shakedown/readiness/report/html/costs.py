"""The chart of a payback: what was saved less what was paid, by months after the switch."""

from __future__ import annotations

from ...record import Record
from . import charts
from .charts import Axis, Line, Point
from .figures import Figure, Missing, Part
from .files import Files


def payback(record: Record, files: Files) -> list[Part]:
    """The cumulative curve between its unfavourable and its favourable end."""
    found = record.judgement.payback
    if found is None:
        return [
            Missing(
                "Payback", "not given: the requirements have no costs ([costs]); `shakedown payback` takes them apart"
            )
        ]
    points = [Point(p.month, float(p.likely), float(p.low), float(p.high)) for p in found.curve]
    title = "Saved less paid"
    said = [
        f"{found.currency} since the switch, on the costs that the requirements give; nothing of it was measured. The area lies "
        "between the corners at which every input is unfavourable and favourable at once: limits, not an interval."
    ]
    chart = charts.lines(
        "payback",
        title,
        [Line("likely", points, marked=False)],
        Axis("months after the switch"),
        Axis(f"saved less paid, {found.currency}"),
        levels=[(0.0, "paid back")],
    )
    return [Figure(title, said, chart, [files.judged("judgement.payback")])]
