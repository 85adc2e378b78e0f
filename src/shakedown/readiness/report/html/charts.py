"""The kinds of chart that a report needs: bars with intervals, lines with a band, dots against a bound. Each is drawn once, as
static SVG, from values that somebody else computed, and each comes with the table of what it shows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from ..words import Table
from . import axes, svg
from .axes import Scale, said
from .svg import CHARACTER, SERIES, WIDTH, element, line, marker, shortened, text

_ROW, _TOP, _AXIS = 26, 8, 44
_BEYOND = 1000.0  # times the bound, the edge of a dot plot
_BIN = 6  # pixels in which dots of a row are one
_LONGEST = 44  # characters of a row's label


@dataclass(frozen=True)
class Bar:
    """One row: parts that add up, each of a series; the interval of the whole; or why there is no bar."""

    label: str
    parts: tuple[tuple[str, float], ...] = ()
    low: float | None = None
    high: float | None = None
    missing: str = ""

    @property
    def value(self) -> float | None:
        return sum(value for _, value in self.parts) if self.parts else None


@dataclass(frozen=True)
class Point:
    """A place of a line, with its interval where there is one."""

    x: float
    y: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """A named series of points. ``marked``: too few to be read from the line alone."""

    name: str
    points: Sequence[Point]
    marked: bool = True


@dataclass(frozen=True)
class Band:
    """An area from ``low`` to ``high`` of each point, drawn behind all lines."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Dots:
    """One row of a dot plot: its values. Those above the bound are drawn otherwise, and so are those that `failed` by something
    else than their value, by number.
    """

    label: str
    values: Sequence[float | None]
    failed: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Axis:
    """What an axis shows: ``quantity`` is seconds, bytes, share or something without a unit of its own."""

    label: str
    quantity: str = ""
    log: bool = False
    zero: bool = True

    def scale(self, values: Sequence[float | None], start: float, end: float) -> Scale:
        return axes.logarithmic(values, start, end) if self.log else axes.linear(values, start, end, self.zero)

    def words(self, ticks: Sequence[float]) -> tuple[list[str], str]:
        """The ticks in words, and the axis's label with their unit: one unit for all, or one each on a logarithmic axis."""
        if self.log or self.quantity == "share":
            return [said(tick, self.quantity) for tick in ticks], self.label
        factor, unit = axes.unit_of(self.quantity, max((abs(t) for t in ticks), default=None))
        return [axes.plain(float(f"{t / factor:.6g}")) for t in ticks], f"{self.label}, {unit}" if unit else self.label


@dataclass(frozen=True)
class Chart:
    """A drawing and the table of what it shows."""

    svg: Markup
    table: Table
    notes: list[str] = field(default_factory=list)


def bars(identity: str, title: str, rows: Sequence[Bar], axis: Axis) -> Chart:
    """Horizontal bars from zero, one a row; the value stands behind its bar."""
    names = list(dict.fromkeys(name for row in rows for name, _ in row.parts))
    left = _label_width([row.label for row in rows])
    marks = [(name, marker(14, 0, 1, f"s{i % SERIES} p{i % SERIES}", 6)) for i, name in enumerate(names)]
    head, y = svg.legend(marks, 10) if len(names) > 1 else (Markup(""), _TOP)
    scale = axes.linear([v for row in rows for v in (row.value, row.high)], left, WIDTH - 150)
    bottom = y + _ROW * len(rows)
    made = [head, _x_axis(scale, axis, y, bottom)]
    for row in rows:
        made.append(_bar(row, names, scale, axis, left, y))
        y += _ROW
    header = ("what", *(names if len(names) > 1 else ()), axis.label, "from", "to", "note")
    table = Table(
        header,
        [
            (
                row.label,
                *(said(dict(row.parts).get(name), axis.quantity) for name in (names if len(names) > 1 else ())),
                said(row.value, axis.quantity),
                said(row.low, axis.quantity),
                said(row.high, axis.quantity),
                row.missing or "–",
            )
            for row in rows
        ],
    )
    describe = f"{len(rows)} bars of {axis.label}. The table below the chart holds the same values."
    return Chart(svg.drawing(identity, title, describe, bottom + _AXIS, *made), table)


def _bar(row: Bar, names: list[str], scale: Scale, axis: Axis, left: float, y: float) -> Markup:
    middle = y + _ROW / 2
    made = [text(left - 8, middle + 4, shortened(row.label, _LONGEST), "end")]
    x = scale(0.0) or left
    total = 0.0
    for name, value in row.parts:
        total += value
        end = scale(total)
        if end is None:
            continue
        title = element("title", f"{row.label}, {name}: {said(value, axis.quantity)}")
        number = names.index(name) % SERIES
        made.append(
            element("rect", title, x=min(x, end), y=y + 5, width=max(abs(end - x), 1.0), height=_ROW - 10,
                    class_=f"bar s{number} p{number}")
        )  # fmt: skip
        x = end
    if row.missing:
        made.append(text(x + 8, middle + 4, shortened(row.missing, int((WIDTH - x - 8) / CHARACTER)), class_="absent"))
        return element("g", *made)
    shown = said(row.value, axis.quantity)
    low, high = scale(row.low), scale(row.high)
    if low is not None and high is not None:
        made += [line(low, middle, high, middle, "whisker")]
        made += [line(end, middle - 5, end, middle + 5, "whisker") for end in (low, high)]
        shown += f" ({said(row.low, axis.quantity)} to {said(row.high, axis.quantity)})"
        x = max(x, high)
    made.append(text(x + 8, middle + 4, shown))
    return element("g", *made)


def lines(
    identity: str,
    title: str,
    series: Sequence[Line],
    x_axis: Axis,
    y_axis: Axis,
    bands: Sequence[Band] = (),
    marks: Sequence[tuple[float, str]] = (),
    levels: Sequence[tuple[float, str]] = (),
) -> Chart:
    """Lines, each with its interval as a band where it has one; `marks` are named upright lines, `levels` level ones."""
    legend = [(one.name, _sample(i, one.marked)) for i, one in enumerate(series)]
    legend += [(one.name, element("rect", x=2, y=-6, width=24, height=12, class_="band envelope")) for one in bands]
    head, top = svg.legend(legend, 10)
    points = [p for one in [*(s.points for s in series), *(b.points for b in bands)] for p in one]
    left, right, bottom = 74.0, WIDTH - 34.0, top + 260.0
    x = x_axis.scale([p.x for p in points] + [place for place, _ in marks], left, right)
    heights = [v for p in points for v in (p.y, p.low, p.high)] + [height for height, _ in levels]
    y = y_axis.scale(heights, bottom, top + 8)
    made = [head, _x_axis(x, x_axis, top, bottom), _y_axis(y, y_axis, left, right)]
    made += [_band(one.points, x, y, "band envelope") for one in bands]
    made += [_band(one.points, x, y, f"band s{i % SERIES}") for i, one in enumerate(series)]
    for place, name in marks:
        at = x(place)
        if at is not None:
            anchor = "end" if at > WIDTH / 2 else "start"
            made += [
                line(at, top, at, bottom, "guide"),
                text(at + (-5 if anchor == "end" else 5), top + 12, name, anchor),
            ]
    for value, name in levels:
        height = y(value)
        if height is not None:
            made += [line(left, height, right, height, "bound"), text(right, height - 5, name, "end", "strong")]
    for i, one in enumerate(series):
        made += _line(one, i, x, y, x_axis, y_axis)
    describe = (
        f"{len(series)} lines of {y_axis.label} over {x_axis.label}. The table below the chart holds the same values."
    )
    table = _points_table(series, bands, x_axis, y_axis)
    hidden = sum(1 for one in series for p in one.points if y(p.y) is None)
    values = "1 value has" if hidden == 1 else f"{hidden} values have"
    notes = [f"{values} no place on this axis, and a line in the table."] if hidden else []
    return Chart(svg.drawing(identity, title, describe, bottom + _AXIS, *made), table, notes)


def _points_table(series: Sequence[Line], bands: Sequence[Band], x_axis: Axis, y_axis: Axis) -> Table:
    named = [(s.name, s.points, "not finite") for s in series] + [(b.name, b.points, "–") for b in bands]
    rows = [
        (
            name,
            said(p.x, x_axis.quantity),
            absent if p.y is None else said(p.y, y_axis.quantity),
            said(p.low, y_axis.quantity),
            said(p.high, y_axis.quantity),
        )
        for name, points, absent in named
        for p in points
    ]
    return Table(("series", x_axis.label, y_axis.label, "from", "to"), rows)


def _line(one: Line, number: int, x: Scale, y: Scale, x_axis: Axis, y_axis: Axis) -> list[Markup]:
    """The stretches between places that are missing, and the marks."""
    stretches: list[list[tuple[float, float]]] = [[]]
    made: list[Markup] = []
    for p in one.points:
        at, height = x(p.x), y(p.y)
        if at is None or height is None:
            stretches.append([])
            continue
        stretches[-1].append((at, height))
        if one.marked:
            label = f"{one.name}: {said(p.y, y_axis.quantity)} at {said(p.x, x_axis.quantity)}"
            made.append(marker(at, height, number, f"s{number % SERIES}", said=label))
    class_ = f"line s{number % SERIES} d{number % SERIES}"
    paths = [element("path", d=_path(part), class_=class_) for part in stretches if len(part) > 1]
    return paths + made


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def _band(points: Sequence[Point], x: Scale, y: Scale, class_: str) -> Markup:
    over, under = [], []
    for p in points:
        at, low, high = x(p.x), y(p.low), y(p.high)
        if at is not None and high is not None:
            over.append((at, high))
            under.append((at, low if low is not None else y.start))  # zero on a logarithmic axis lies at its foot
    if len(over) < 2:
        return Markup("").join(
            line(at, low, at, high, class_.replace("band", "whisker")) for (at, high), (_, low) in zip(over, under, strict=True)
        )  # fmt: skip
    outline = [*over, *reversed(under)]
    return element("path", d=_path(outline) + "z", class_=class_)


def _sample(number: int, marked: bool) -> Markup:
    made = [line(0, 0, 26, 0, f"line s{number % SERIES} d{number % SERIES}")]
    if marked:
        made.append(marker(13, 0, number, f"s{number % SERIES}"))
    return Markup("").join(made)


def dots(identity: str, title: str, rows: Sequence[Dots], axis: Axis, bound: float, bound_name: str) -> Chart:
    """Values against a bound on a logarithmic axis, one row for each group. Values that would lie on each other are one dot,
    the larger the more there are; zero has a place of its own at the left, and what is not finite at the right.
    """
    left = _label_width([row.label for row in rows])
    right = WIDTH - 70.0
    # Far beyond the bound, a hundredfold or a millionfold says the same; the dots below it are to be told apart.
    most, least = bound * _BEYOND, bound / _BEYOND
    near = [min(max(v, least), most) for row in rows for v in row.values if v is not None and v > 0]
    scale = axes.logarithmic([*near, bound / 10, bound * 2], left + 46, right)
    bottom = _TOP + 22 + _ROW * len(rows)
    top = _TOP + 22
    at = scale(bound) or right
    made = [
        element("rect", x=at, y=top, width=max(WIDTH - at, 1.0), height=bottom - top, class_="beyond"),
        _x_axis(scale, axis, top, bottom),
        text(left + 20, bottom + 16, "0", "middle"),
        line(at, top - 4, at, bottom, "bound"),
        text(at, top - 8, bound_name, "end" if at > WIDTH / 2 else "start", "strong"),
    ]
    table = []
    for number, row in enumerate(rows):
        y = top + _ROW * number + _ROW / 2
        made.append(line(left, y, WIDTH, y, "grid"))
        made.append(text(left - 8, y + 4, shortened(row.label, _LONGEST), "end"))
        made += _dots(row, scale, y, left + 20, WIDTH - 20.0, bound)
        finite = sorted(v for v in row.values if v is not None and math.isfinite(v))
        table.append(
            (
                row.label,
                str(len(row.values)),
                str(sum(v > bound for v in finite) + len(row.values) - len(finite)),
                str(len(row.failed)),
                said(finite[len(finite) // 2], axis.quantity) if finite else "–",
                said(finite[-1], axis.quantity) if finite else "–",
                str(sum(v == 0 for v in finite)),
                str(len(row.values) - len(finite)),
            )
        )
    header = ("group", "n", "beyond the bound", "failed", "middle one", "largest", "exactly zero", "not finite")
    describe = f"{sum(len(row.values) for row in rows)} values in {len(rows)} groups against the bound {bound:g}; {bound_name}."
    return Chart(svg.drawing(identity, title, describe, bottom + _AXIS, *made), Table(header, table))


def _dots(row: Dots, scale: Scale, y: float, zero: float, beyond: float, bound: float) -> list[Markup]:
    seen: Counter[tuple[int, bool]] = Counter()
    for number, value in enumerate(row.values):
        if value is None or not math.isfinite(value):
            seen[round(beyond), True] += 1
        else:
            place, over = scale(value), value > bound
            at = (beyond if over else zero) if place is None else place
            # Towards its own side of the bound, so that no dot seems to lie on the other.
            seen[(math.ceil if over else math.floor)(at / _BIN) * _BIN, over or number in row.failed] += 1
    made = []
    for (x, failed), count in sorted(seen.items()):
        label = f"{row.label}: {count}{', failed' if failed else ''}"
        radius = min(3.0 + math.log2(count), 9.0)
        made.append(
            marker(float(x), y, 4 if failed else 0, "failed" if failed else "s0 dot", 5.0 if failed else radius, label)
        )
    return made


def _label_width(labels: Sequence[str]) -> float:
    return 16 + CHARACTER * max((min(len(label), _LONGEST) for label in labels), default=0)


def _x_axis(scale: Scale, axis: Axis, top: float, bottom: float) -> Markup:
    ticks = scale.ticks()
    words, label = axis.words(ticks)
    made = [line(scale.start, bottom, scale.end, bottom, "axis")]
    for tick, word in zip(ticks, words, strict=True):
        x = scale(tick)
        if x is not None:
            made += [line(x, top, x, bottom, "grid"), text(x, bottom + 16, word, "middle")]
    made.append(text((scale.start + scale.end) / 2, bottom + 34, label, "middle", "strong"))
    return Markup("").join(made)


def _y_axis(scale: Scale, axis: Axis, left: float, right: float) -> Markup:
    ticks = scale.ticks()
    words, label = axis.words(ticks)
    made = [line(left, scale.start, left, scale.end, "axis")]
    for tick, word in zip(ticks, words, strict=True):
        y = scale(tick)
        if y is not None:
            made += [line(left, y, right, y, "grid"), text(left - 6, y + 4, word, "end")]
    made.append(
        element("text", label, transform=f"translate(13 {(scale.start + scale.end) / 2:.0f}) rotate(-90)",
                text_anchor="middle", class_="strong")
    )  # fmt: skip
    return Markup("").join(made)
