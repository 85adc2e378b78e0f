"""Scales, ticks and the words on an axis: from numbers of any size to places in a drawing.

Nothing here refuses a value: what is not finite, or not positive on a logarithmic scale, has no place (None), and a chart
says so where it stands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 5.0, 10.0)
_UNITS = {
    "seconds": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "bytes": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
}


@dataclass(frozen=True)
class Scale:
    """A domain of values laid over a stretch of pixels; `end` may lie before `start`, as on an axis that goes up."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float | None) -> float | None:
        """Where `value` lies; None where it has no place. Values outside the domain are put on its edge."""
        if value is None or not math.isfinite(value) or (self.log and value <= 0):
            return None
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round values inside the domain, about as many as `wanted`."""
        return _log_ticks(self.low, self.high, wanted) if self.log else _linear_ticks(self.low, self.high, wanted)


def linear(values: Iterable[float | None], start: float, end: float, zero: bool = True) -> Scale:
    """A scale that holds all finite values, from zero where `zero`; one point, or none, makes a scale too."""
    found = [v for v in values if v is not None and math.isfinite(v)]
    low, high = (min(found), max(found)) if found else (0.0, 1.0)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        room = abs(high) / 2 or 1.0
        low, high = (low, high + room) if zero else (low - room, high + room)
    step = _step(high - low, 5)
    low = math.floor(low / step + 1e-9) * step
    high = math.ceil(high / step - 1e-9) * step
    return Scale(low, high, start, end)


def logarithmic(values: Iterable[float | None], start: float, end: float) -> Scale:
    """A scale over the positive finite values, widened to steps of 1, 2, 5, and to whole decades where there are many."""
    found = [v for v in values if v is not None and math.isfinite(v) and v > 0]
    low, high = (min(found), max(found)) if found else (0.1, 10.0)
    low, high = max(low, 1e-300), min(high, 1e300)
    if high / low > 1e3:
        return Scale(_power(math.floor(math.log10(low))), _power(math.ceil(math.log10(high))), start, end, log=True)
    low, high = _round_down(low), _round_up(high)
    if high <= low:
        low, high = low / 2, high * 2
    return Scale(low, high, start, end, log=True)


def unit_of(quantity: str, largest: float | None) -> tuple[float, str]:
    """Factor and name of the unit in which `largest` reads well; other quantities than seconds and bytes stay as they are."""
    units = _UNITS.get(quantity)
    if units is None:
        return 1.0, ""
    size = abs(largest) if largest is not None and math.isfinite(largest) else 0.0
    return next(((factor, name) for factor, name in units if size >= factor), units[-1] if size else units[0])


def plain(value: float) -> str:
    """A number of at most four digits, without a trail of zeros; powers of ten for the very large and small."""
    if not math.isfinite(value):
        return "not finite"
    if value and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    if abs(value) >= 1e3 and value == round(value):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def said(value: float | None, quantity: str) -> str:
    """A value with its unit: ``2.5 ms``, ``1.2 GB``, ``40%``."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "not finite"
    if quantity == "share":
        return (
            f"{value:,.3g}x".replace("e+0", "e")
            if abs(value) >= 1e6
            else f"{value:,.0f}x"
            if abs(value) >= 10
            else f"{value * 100:.3g}%"
        )
    factor, name = unit_of(quantity, value)
    return f"{value / factor:.3g} {name}".strip() if name and abs(value / factor) < 1e4 else plain(value / factor)


def _power(exponent: int) -> float:
    return float(f"1e{exponent}")


def _step(width: float, wanted: int) -> float:
    rough = width / wanted
    base = _power(math.floor(math.log10(rough)))
    return next(s for s in _STEPS if s * base >= rough * (1 - 1e-9)) * base if rough / base <= 10 else 10 * base


def _linear_ticks(low: float, high: float, wanted: int) -> list[float]:
    step = _step(high - low, wanted)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


def _log_ticks(low: float, high: float, wanted: int) -> list[float]:
    bottom, top = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    decades = [_power(e) for e in range(bottom, top + 1)]
    if len(decades) > wanted + 1:
        stride = math.ceil(len(decades) / (wanted + 1))
        return [d for d in decades[::stride] if low * (1 - 1e-9) <= d <= high * (1 + 1e-9)]
    many = [s * d for d in decades for s in ((1, 2, 5) if len(decades) <= 3 else (1,))]
    return [t for t in many if low * (1 - 1e-9) <= t <= high * (1 + 1e-9)]


def _round_down(value: float) -> float:
    base = _power(math.floor(math.log10(value)))
    return max(s * base for s in (1.0, 2.0, 5.0) if s * base <= value * (1 + 1e-9))


def _round_up(value: float) -> float:
    base = _power(math.floor(math.log10(value)))
    return next(s * base for s in _STEPS if s * base >= value * (1 - 1e-9))
