"""Static SVG in the fewest pieces: elements whose text is escaped, markers, a legend, and the frame of a chart.

Colours are classes (``s0`` to ``s5``) that the page's style sheet fills from CSS variables, so that dark mode and print need
no second drawing. Whatever a colour tells, a marker's form, a dash or a word tells too.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

SERIES = 6  # colours, dashes and marker forms; more series than that are too many for one drawing
CHARACTER = 6.7  # pixels, of the 12 pixel type in which charts are labelled; wider than the average, so that labels fit
WIDTH = 760
_BODY = Markup("<{0}{1}>{2}</{0}>")


def element(name: str, *children: str | Markup, **attributes: object) -> Markup:
    """One element. Attribute names lose a trailing underscore, and others become dashes; None leaves one out."""
    pairs = [
        Markup(' {}="{}"').format(Markup(key.rstrip("_").replace("_", "-")), _plain(value))
        for key, value in attributes.items()
        if value is not None
    ]
    return _BODY.format(Markup(name), Markup("").join(pairs), Markup("").join(children))


def _plain(value: object) -> object:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


def text(x: float, y: float, words: str, anchor: str = "start", class_: str = "label") -> Markup:
    """One line of text."""
    return element("text", words, x=x, y=y, text_anchor=anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def marker(x: float, y: float, form: int, class_: str, radius: float = 4.0, said: str = "") -> Markup:
    """A mark whose form is one of circle, square, triangle, diamond, cross and plus; `said` shows when pointed at."""
    r = radius
    d = {
        1: f"M{x - r:.1f} {y - r:.1f}h{2 * r:.1f}v{2 * r:.1f}h{-2 * r:.1f}z",
        2: f"M{x:.1f} {y - 1.2 * r:.1f}l{1.2 * r:.1f} {2.1 * r:.1f}h{-2.4 * r:.1f}z",
        3: f"M{x:.1f} {y - 1.3 * r:.1f}l{1.3 * r:.1f} {1.3 * r:.1f}l{-1.3 * r:.1f} {1.3 * r:.1f}l{-1.3 * r:.1f} {-1.3 * r:.1f}z",
        4: f"M{x - r:.1f} {y - r:.1f}l{2 * r:.1f} {2 * r:.1f}M{x + r:.1f} {y - r:.1f}l{-2 * r:.1f} {2 * r:.1f}",
        5: f"M{x - 1.2 * r:.1f} {y:.1f}h{2.4 * r:.1f}M{x:.1f} {y - 1.2 * r:.1f}v{2.4 * r:.1f}",
    }.get(form % SERIES)
    title = [element("title", said)] if said else []
    if d is None:
        return element("circle", *title, cx=x, cy=y, r=r, class_=f"mark {class_}")
    return element("path", *title, d=d, class_=f"{'stroke' if form % SERIES > 3 else 'mark'} {class_}")


def shortened(words: str, most: int) -> str:
    """`words`, or their beginning with an ellipsis: the data table has them whole."""
    return words if len(words) <= most else words[: most - 1] + "…"


def legend(names: Sequence[tuple[str, Markup]], y: float, left: float = 0.0) -> tuple[Markup, float]:
    """Names beside their marks, in as many lines as they need; and where the drawing goes on."""
    made, x = [], left
    for name, mark in names:
        shown = shortened(name, 60)
        width = 34 + CHARACTER * len(shown) + 14
        if x > left and x + width > WIDTH:
            x, y = left, y + 20
        made.append(element("g", mark, text(30, 4, shown), transform=f"translate({x:.1f} {y:.1f})"))
        x += width
    return Markup("").join(made), y + 18


def drawing(identity: str, title: str, description: str, height: float, *children: str | Markup) -> Markup:
    """The whole, named and described for whoever does not see it."""
    identity = f"chart-{identity}"  # no heading of the page begins like this
    return element(
        "svg",
        element("title", title, id=f"{identity}-title"),
        element("desc", description, id=f"{identity}-desc"),
        *children,
        viewBox=f"0 0 {WIDTH} {height:.0f}",
        role="img",
        aria_labelledby=f"{identity}-title {identity}-desc",
        class_="chart",
    )
