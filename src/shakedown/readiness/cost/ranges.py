"""Numbers that are known within limits: low, likely, high.

The arithmetic is that of intervals: an end of a result comes from those ends of its parts that push it there. Where one
quantity enters twice that may be wider than the truth, never narrower; :mod:`.payback` has no such case, because each of
its results grows or falls with each of its inputs throughout.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal, InvalidOperation
from typing import Any

from pydantic import model_validator

from ..errors import BadInput
from ..evidence import Frozen

MIDDLE_RULE = "Where only low..high is given, the likely value is taken to be the middle between them."
_LARGEST = Decimal("1e15")  # beyond any budget; keeps a typing error from filling the screen


class Range(Frozen):
    """Decimal ends of a quantity and its likely value; all three are equal where it is known exactly."""

    low: Decimal
    likely: Decimal
    high: Decimal

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if not self.low <= self.likely <= self.high:
            raise ValueError(f"{self.low}..{self.likely}..{self.high} is not in rising order")
        return self

    @property
    def exact(self) -> bool:
        """Whether it is one number."""
        return self.low == self.high

    def __add__(self, other: Range) -> Range:
        return Range(low=self.low + other.low, likely=self.likely + other.likely, high=self.high + other.high)

    def __sub__(self, other: Range) -> Range:
        return Range(low=self.low - other.high, likely=self.likely - other.likely, high=self.high - other.low)

    def __mul__(self, other: Range) -> Range:
        """Of quantities that are not negative, as everything is that :func:`parse` lets through."""
        if self.low < 0 or other.low < 0:
            raise ValueError("only quantities that are not negative are multiplied")
        return Range(low=self.low * other.low, likely=self.likely * other.likely, high=self.high * other.high)

    def over(self, divisor: int) -> Range:
        """Divided by a positive whole number."""
        return Range(low=self.low / divisor, likely=self.likely / divisor, high=self.high / divisor)

    def said(self) -> str:
        """As it could be typed in again."""
        if self.exact:
            return plain(self.low)
        return "..".join(plain(value) for value in (self.low, self.likely, self.high))


ZERO = Range(low=Decimal(0), likely=Decimal(0), high=Decimal(0))


def exactly(value: Decimal | int) -> Range:
    """A quantity that is known exactly."""
    number = Decimal(value)
    return Range(low=number, likely=number, high=number)


def parse(value: Any, name: str) -> Range:
    """A number, ``low..high`` or ``low..likely..high``, none of them negative; `name` is what messages call it.

    Raises:
        BadInput: it is nothing of that kind, or not in rising order.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        raise BadInput(f"{name}: {value!r:.60} is not a number; write 6, 4..9 or 4..6..9")
    text = str(value).strip()
    parts = [_number(part, text, name) for part in text.split("..")]
    if len(parts) > 3:
        raise BadInput(f"{name}: {text!r:.60} has {len(parts)} parts; write 6, 4..9 or 4..6..9")
    low, high = parts[0], parts[-1]
    likely = parts[1] if len(parts) == 3 else (low + high) / 2
    if not low <= likely <= high:
        raise BadInput(f"{name}: {text!r:.60} is not in rising order; write the lowest value first")
    return Range(low=low, likely=likely, high=high)


def _number(part: str, text: str, name: str) -> Decimal:
    try:
        number = Decimal(part.strip())
    except InvalidOperation:
        hint = "; leave out the commas" if "," in part else ""
        raise BadInput(f"{name}: {text!r:.60} is not a number; write 6, 4..9 or 4..6..9{hint}") from None
    if not number.is_finite() or number > _LARGEST:
        raise BadInput(f"{name}: {text!r:.60} is not a finite number below {_LARGEST:.0e}")
    if number < 0:
        raise BadInput(f"{name}: {text!r:.60} is negative; costs and hours are written without a sign")
    return number


def currency(text: str, name: str) -> str:
    """`text`, if it has the form of a currency. Raises :class:`BadInput`."""
    if not re.fullmatch(r"[A-Z]{3}", text):
        raise BadInput(f"{name}: {text!r:.20} is not a currency; write three capital letters, such as USD")
    return text


def plain(value: Decimal) -> str:
    """Without an exponent and without trailing zeros."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def rounded(value: Decimal, exact: bool) -> Decimal:
    """Money for the eye: whole units where it is exact (hundredths below 100), three significant digits where it is not."""
    if value == 0:
        return Decimal(0)
    if exact:
        return value.quantize(Decimal("0.01") if abs(value) < 100 else Decimal(1))
    return Context(prec=3).plus(value)


def money(amount: Range, currency: str) -> str:
    """An amount in words, as ``57,600 USD``, or ``51,200 (38,400 to 69,100) USD`` with the likely value first."""
    return f"{figures(amount)} {currency}"


def figures(amount: Range) -> str:
    """:func:`money` without the currency."""
    if amount.exact:
        return _grouped(rounded(amount.low, True))
    low, likely, high = (_grouped(rounded(value, False)) for value in (amount.low, amount.likely, amount.high))
    return f"{likely} ({low} to {high})"


def _grouped(value: Decimal) -> str:
    whole, _, rest = f"{value:,f}".partition(".")
    return f"{whole}.{rest}" if rest.strip("0") else whole
