"""What compiling took, measured in a record of a trial on the device itself."""

from __future__ import annotations

import datetime
from collections import defaultdict
from decimal import Decimal

from ..errors import BadInput
from ..record import Record
from .inputs import Quantity
from .ranges import Range, exactly


def measured(record: Record) -> dict[str, Quantity]:
    """Programs of one start with an empty cache, and seconds to compile one, as inputs of a payback.

    Seconds are low and high by mode, precision and case, and likely over all programs together.

    Raises:
        BadInput: the record measures another machine's compiler, or no compilation was seen in it.
    """
    if record.label != "measurement":
        raise BadInput(
            f"compile times of a {record.label} are never priced as Trainium's: they are those of another compiler on "
            "another machine; take a record of the device itself, or give compilation.hours"
        )
    each: list[Decimal] = []
    seconds, programs = Decimal(0), 0
    by_start: dict[str, int] = defaultdict(int)
    for cell, result in zip(record.cells, record.judgement.cells):
        if cell.mode == "reference" or cell.cache != "cold":
            continue
        for case in result.cases:
            seen = case.paths
            if seen is None or not seen.compiled or seen.compile_seconds is None:
                continue
            took = Decimal(repr(seen.compile_seconds))
            each.append(took / seen.compiled)
            seconds, programs = seconds + took, programs + seen.compiled
            by_start[cell.id] += seen.compiled
    if not each:
        raise BadInput("the record does not tell how long anything compiled; give compilation.hours")
    said = f"record {record.seal[:12]}, {programs} programs in {len(by_start)} processes with an empty cache"
    when = datetime.datetime.fromisoformat(record.created).date()

    def cut(value: Decimal) -> Decimal:
        return Decimal(f"{value:.3e}")

    per_program = Range(low=cut(min(each)), likely=cut(seconds / programs), high=cut(max(each)))
    most = exactly(max(by_start.values()))
    return {
        "compilation.programs": Quantity(value=most, source="measured", said=said, date=when),
        "compilation.seconds_per_program": Quantity(value=per_program, source="measured", said=said, date=when),
    }
