"""The page: which part stands where. Everything is words, tables and drawings by now; the templates only place them."""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ...record import Record
from .. import details, observed, overview, words
from ..words import SEVERITY, Section, Table
from . import costs, figures, losses, matrix, planned
from .excerpts import Excerpt, excerpts
from .figures import Missing, Part
from .files import Files
from .vectors import Vectors

ROWS_SHOWN = 200  # of one table: what a person reads, and a browser draws at once
SENTENCES_SHOWN = 100
CHARACTERS_SHOWN = 4000  # of one cell of a table, or one sentence
LONG = 50  # characters, from which a cell of a table is not squeezed
WIDE = 5  # columns, from which a table may need to be scrolled on a phone
SYMBOLS = {
    "match": "✓", "mismatch": "✗", "crashed": "!", "timeout": "…", "killed": "‡", "untested": "–",
    "met": "✓", "not met": "✗", "open": "?", "yes": "✓", "no": "✗", "withheld": "–",
    "suitable for the tested path": "✓", "needs a named change": "→", "blocked": "✗", "inconclusive": "?",
}  # fmt: skip
_BADGES = {*SEVERITY, "withheld"}
_NUMERIC = re.compile(r"^[<>~]?[-+]?\d[\d.,]*(e[-+]?\d+)?( ?(s|ms|µs|ns|B|kB|MB|GB|TB|x))?%?$")


@dataclass(frozen=True)
class Topic:
    """A chapter: its heading, one sentence on its question, and the titles of the sections that belong to it."""

    id: str
    title: str
    question: str
    sections: tuple[str, ...] = ()


TOPICS = (
    Topic("numbers", "Numbers", "Does it compute the same?",
          ("Same numbers?", "Numbers by case", "Variations", "Compiled against eager, first step", "Decisions")),
    Topic("losses", "Loss over many steps", "Does training go the same way?", ("Loss parity",)),
    Topic("path", "What ran where", "Did anything leave the device?",
          ("What ran where", "Where one later step ran", "Operators that left the device",
           "Operators and the lines that ask for them")),
    Topic("graphs", "Graphs and the source", "What was captured, what broke a graph, and which line did?",
          ("Graphs and fusion", "Graphs", "The workload's source")),
    Topic("time", "Time", "What do starting and stepping cost?",
          ("What starting costs", "What a step costs", "Step times over all processes", "Start-up and first steps",
           "Cache states", "Later steps", "Profiles")),
    Topic("break-even", "Break-even", "When is a slow start paid for?",
          ("When a slower start is paid for", "Break-even of each start",
           "What a step costs once its share of the start is added")),
    Topic("shapes", "Shapes and buckets", "What do many lengths cost?", ("Shapes of the traffic",)),
    Topic("memory", "Memory", "Does it fit?", ("Memory of a step",)),
    Topic("probes", "Neighbours and number formats", "What happens next to what was tried?",
          ("Neighbours and number formats",)),
    Topic("projection", "Projection", "What could a published instance do at best?", ("Projection",)),
    Topic("payback", "Payback", "What does moving cost, and when has it paid back?", ("Payback", "What the migration costs")),
    Topic("findings", "Findings", "What should a reader know?", ("Findings", "All findings", "Findings of the checks")),
    Topic("identity", "Identity", "What was compared, where, and with which versions?"),
    Topic("method", "How it was measured", "How was each number taken?", ("How it was measured",)),
    Topic("more", "More", "What else does the record say?"),
)  # fmt: skip
_SAID_ABOVE = {"Untested", "What the verdict rests on", "Decision", "The decision"}  # in the head of the page


@dataclass(frozen=True)
class Cells:
    """A table as it is shown: each cell escaped, with its class: ``n`` for a number, ``long`` for a text that wants room."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[tuple[Markup, str]]]
    more: int
    wide: bool


@dataclass(frozen=True)
class Shown:
    """A section as it is shown."""

    title: str
    sentences: Sequence[Markup]
    more: int
    tables: Sequence[Cells]
    kind: str = "section"


@dataclass(frozen=True)
class Excerpts:
    """Lines of the source."""

    title: str
    excerpts: Sequence[Excerpt]
    kind: str = "excerpts"


@dataclass(frozen=True)
class Chapter:
    """A topic with its parts."""

    topic: Topic
    parts: Sequence[Any]


def rendered(record: Record, root: Path, at: Path) -> str:
    """The whole page. `at` is the folder that it will lie in, so that its links lead to the files of the record in `root`."""
    files = Files(root, record, at)
    vectors = Vectors(files)
    folder = Path(__file__).parent
    style, script = (Markup((folder / name).read_text()) for name in ("page.css", "page.js"))
    return _environment().get_template("page.html.j2").render(
        record=record,
        title=words.title(record),
        label=_label(record),
        decision=record.judgement.decision,
        style=style,
        script=script,
        hashes={"style": _hash(style), "script": _hash(script)},
        chapters=chapters(record, files, vectors),
        sides=matrix.sides(record),
        matrix=matrix.rows(record),
        processes=matrix.processes(record, files, vectors),
        verdicts=matrix.verdicts(record),
        seal=files.source("record.json"),
    )  # fmt: skip


def _label(record: Record) -> tuple[str, str]:
    """The label's word and the rest of its sentence, which begins with that word or is preceded by it."""
    size = len(record.label)
    if record.label_text.lower().startswith(f"{record.label}:"):
        return record.label_text[: size + 1], record.label_text[size + 1 :]
    return record.label, f" {record.label_text}"


def chapters(record: Record, files: Files, vectors: Vectors) -> list[Chapter]:
    """Every section of the report under its topic, after the drawings; what no topic names comes last, and nothing is lost."""
    sections = [*overview.sections(record), *observed.sections(record), *details.sections(record)]
    drawn: dict[str, list[Any]] = {
        "numbers": [*figures.numerics(record, files, vectors), *_worst(vectors)],
        "losses": losses.parity(record, files),
        "path": figures.paths(record, files),
        "graphs": [_source(record, files)],
        "time": figures.times(record, files),
        "break-even": figures.curves(record, files),
        "shapes": planned.shapes(record, files),
        "memory": figures.memory(record, files),
        "projection": planned.projection(record, files),
        "payback": costs.payback(record, files),
        "identity": [_shown(section) for section in _identity(record)],
    }
    placed: dict[str, list[tuple[int, Section]]] = {}
    for section in sections:
        if section.title not in _SAID_ABOVE:
            topic_id, place = _place(section.title)
            placed.setdefault(topic_id, []).append((place, section))
    made = []
    for topic in TOPICS:
        own = [section for _, section in sorted(placed.get(topic.id, ()), key=lambda one: one[0])]
        parts: list[Part | Any] = [*drawn.get(topic.id, ()), *(_shown(section) for section in own)]
        if not parts and topic.id != "more":
            parts = [Missing(topic.title, "not measured")]
        if parts:
            made.append(Chapter(topic, parts))
    return made


def _place(title: str) -> tuple[str, int]:
    """Topic and place of a section: by the longest title that it begins with, since some end in a name."""
    known = [
        (name, topic.id, place)
        for topic in TOPICS
        for place, name in enumerate(topic.sections)
        if title.startswith(name)
    ]
    if not known:
        return "more", 0
    _, topic_id, place = max(known, key=lambda one: len(one[0]))
    return topic_id, place


def _worst(vectors: Vectors) -> list[Shown]:
    table = vectors.worst(12)
    said = [
        "The tensors on the target that failed, or else used most of their allowed error. Relative L2 error is against float64 "
        "truth; worst row: the row that used most of its own allowance; scale off by: fitted scale minus one. All of them: "
        "vectors.json."
    ]
    return [_shown(Section("Worst offenders", said, [table]))] if table.rows else []


def _source(record: Record, files: Files) -> Any:
    """Excerpts around graph breaks, fallbacks and what the scan found."""
    found = [
        (problem.place, f"{problem.kind}, {problem.cause}: {problem.text}")
        for one in record.judgement.graphs.values()
        for problem in one.problems
    ]
    for result in record.judgement.cells:
        for case in result.cases:
            for left in (case.paths.fallbacks or []) if case.paths else []:
                found += [(line, f"{left.name} left the device: {left.reason}") for line in left.lines]
    if record.judgement.scan is not None:
        found += [(f"{hit.path}:{hit.line}", f"{hit.severity}: {hit.rule}") for hit in record.judgement.scan.hits]
    made = excerpts(files, found)
    title = "The lines themselves"
    if not made:
        return Missing(
            title, "nothing to show: no graph break, fallback or place found by the scan names a line of the source"
        )
    return Excerpts(title, made)


def _identity(record: Record) -> list[Section]:
    fixed = record.identity.get("fixed") or {}
    rows = [(str(name), _value(value)) for name, value in fixed.items() if not isinstance(value, dict)]
    rows += [
        (f"{name}: {k}", _value(v))
        for name, value in fixed.items()
        if isinstance(value, dict)
        for k, v in value.items()
    ]
    cells: dict[str, list[str]] = {}
    for cell, also in (record.identity.get("cells") or {}).items():
        cells.setdefault(_value(also), []).append(cell)
    differs = [
        (", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else ""), said)
        for said, names in cells.items()
    ]
    return [
        Section("Equal in all processes", [], [Table(("what", "value"), rows)]),
        Section("What differs, and is the point of the comparison", [], [Table(("processes", "identity"), differs)]),
    ]  # fmt: skip


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_value(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_value(v) for v in value)
    return "–" if value is None else str(value)


def _shown(section: Section) -> Shown:
    return Shown(
        title=section.title,
        sentences=[inline(text) for text in section.sentences[:SENTENCES_SHOWN]],
        more=max(len(section.sentences) - SENTENCES_SHOWN, 0),
        tables=[cells(table, section.title) for table in section.drawn()],
    )


def cells(table: Table, title: str) -> Cells:
    """A table with each cell escaped, and the rows that are too many counted."""
    rows = [[(inline(value), _class(value)) for value in row] for row in list(table.rows)[:ROWS_SHOWN]]
    return Cells(
        title, [visible(h) for h in table.header], rows, max(len(table.rows) - ROWS_SHOWN, 0), len(table.header) >= WIDE
    )


def _class(value: str) -> str:
    return "long" if len(value) > LONG else "n" if _NUMERIC.match(value) else ""


def inline(text: str) -> Markup:
    """Escaped text: a verdict as a badge, what stands between backticks as code."""
    if text in _BADGES:
        return badge(text)
    text = visible(text)
    if len(text) > CHARACTERS_SHOWN:
        text = f"{text[:CHARACTERS_SHOWN]} … and {len(text) - CHARACTERS_SHOWN:,} more characters in record.json"
    if "`" not in text:
        return escape(text)
    pieces = text.split("`")
    if len(pieces) % 2 == 0:  # a backtick without its partner is a backtick
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(p) if i % 2 else escape(p) for i, p in enumerate(pieces))


def badge(word: str) -> Markup:
    """A verdict with its sign, so that its colour is never the only one to tell."""
    kind = word.replace(" ", "-") if word in SYMBOLS else "other"
    sign = Markup('<span aria-hidden="true">{}</span> ').format(SYMBOLS.get(word, "•"))
    return Markup('<span class="badge v-{}">{}{}</span>').format(kind, sign, visible(word))


def visible(text: str) -> str:
    """`text` with characters that would hide, reorder or break it written out, so that what is read is what is there."""
    if text.isprintable():
        return text
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs") or c == "\u200d" else f"\\u{ord(c):04x}"
        for c in text
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    made.globals.update(badge=badge, cells=cells, inline=inline, symbols=SYMBOLS)
    return made
