"""The numbers of every tensor, as ``vectors.json`` has them: the worst ones as a table, all of them as values to be drawn."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...record import Record
from ..words import Table, name_of
from .axes import said
from .files import Files, Withheld

FILE = "vectors.json"


@dataclass(frozen=True)
class Entry:
    """One tensor of one case of one process, as far as a report needs it. ``margin`` is error over allowed error."""

    cell: str
    case: str
    name: str
    role: str
    margin: float | None
    fields: dict[str, Any]

    @property
    def failed(self) -> bool:
        """Beyond its bound, or found wrong in another way: a row, a scale, a bias, an update that was not made."""
        return self.margin is None or self.margin > 1 or bool(self.fields.get("findings"))

    @property
    def rank(self) -> tuple[bool, float]:
        """For sorting: what failed is worse than what did not, and what is not a finite number is worse than everything."""
        return self.failed, math.inf if self.margin is None else self.margin


class Vectors:
    """The tensors of a record; ``missing`` says why there are none."""

    def __init__(self, files: Files) -> None:
        self.missing = ""
        self.record: Record = files.record
        self._of: dict[tuple[str, str], list[Entry]] = {}
        try:
            found = files.json(FILE)
        except Withheld as error:
            self.missing = f"withheld: {error}"
            return
        for cell, cases in _items(found):
            for case, tensors in _items(cases):
                made = (
                    [_entry(cell, case, one) for one in tensors if isinstance(one, dict)]
                    if isinstance(tensors, list)
                    else []
                )
                self._of[cell, case] = made

    def __iter__(self) -> Iterator[Entry]:
        return (one for own in self._of.values() for one in own)

    def worst_of(self, cell: str, case: str, most: int) -> Table | None:
        """The tensors of one case that used most of their allowance."""
        own = self._of.get((cell, case), [])
        return Table(HEADER, [_row(one) for one in heapq.nlargest(most, own, key=lambda e: e.rank)]) if own else None

    def worst(self, most: int) -> Table:
        """The tensors of all processes on the target that used most of their allowance."""
        names = {cell.id: name_of(cell) for cell in self.record.cells if cell.mode != "reference"}
        found = heapq.nlargest(most, (one for one in self if one.cell in names), key=lambda e: e.rank)
        return Table(("process", "case", *HEADER), [(names[one.cell], one.case, *_row(one)) for one in found])


HEADER = (
    "tensor", "relative L2 error", "allowed", "of allowed", "over the CPU's own error", "worst row, of allowed",
    "largest difference", "outside elementwise criterion", "one-sided, in standard errors", "scale off by", "found",
)  # fmt: skip


def _row(one: Entry) -> tuple[str, ...]:
    get = one.fields.get
    found = get("findings")
    return (
        f"`{one.name}`",
        _number(get("relative_l2"), "{:.2e}"),
        _number(get("allowed_relative_l2"), "{:.2e}"),
        said(one.margin, "share") if one.margin is not None else "not finite",
        _number(get("ratio_to_cpu"), "{:.2f}"),
        said(_float(get("row_margin")), "share"),
        _number(get("max_abs"), "{:.2e}"),
        said(_float(get("outside_criterion")), "share"),
        _number(get("bias_sigmas"), "{:.1f}"),
        _number(get("scale_minus_one"), "{:.1e}"),
        "; ".join(str(text) for text in found) if isinstance(found, list) and found else "–",
    )


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _entry(cell: str, case: str, fields: dict[str, Any]) -> Entry:
    return Entry(cell, case, str(fields.get("name")), str(fields.get("role")), _float(fields.get("margin")), fields)


def _float(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None


def _number(value: Any, form: str) -> str:
    known = _float(value)
    return "–" if known is None else form.format(known)
