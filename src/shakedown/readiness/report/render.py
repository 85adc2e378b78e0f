"""The same sections as a Markdown file and on a terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table as RichTable

from ..judge.results import FAILED
from ..record import Record
from . import details, observed, overview, words
from .words import Table

_GOOD, _DOUBT = ("match", "passed"), ("untested", "inconclusive", "withheld")


def markdown(record: Record) -> str:
    """The whole report as a Markdown file."""
    lines = [f"# {words.title(record)}", "", f"> **{record.label_text}**", ""]
    lines += [f"**Verdict: {record.judgement.verdict}** – {record.judgement.sentence}.", ""]
    for section in [*overview.sections(record), *observed.sections(record), *details.sections(record)]:
        lines += [f"## {section.title}", ""]
        if len(section.sentences) > 1:
            lines += [f"- {_one_line(text)}" for text in section.sentences] + [""]
        else:
            lines += [line for text in section.sentences for line in (_one_line(text), "")]
        for table in section.drawn():
            lines.append("| " + " | ".join(table.header) + " |")
            lines.append("|" + " --- |" * len(table.header))
            lines += ["| " + " | ".join(_one_line(value) for value in row) + " |" for row in table.rows]
            lines.append("")
    return "\n".join(lines)


def _one_line(text: str) -> str:
    """Text that cannot break out of a table cell or a list item."""
    return text.replace("|", "\\|").replace("\n", " ")


def terminal(record: Record, console: Console, out: str) -> None:
    """The overview on a terminal, the verdict last, where the eye rests."""
    console.print(Panel(escape(record.label_text), title=escape(words.title(record)), border_style="yellow"))
    for section in overview.sections(record):
        console.print(f"\n[bold]{escape(section.title)}[/]")
        for text in section.sentences:
            console.print(f"[dim]{escape(text)}[/]", highlight=False)
        for table in section.drawn():
            console.print(_drawn(table), highlight=False)
    colour = _colour(record.judgement.verdict)
    verdict = f"[bold {colour}]{record.judgement.verdict}[/]: {escape(record.judgement.sentence)}"
    console.print(Panel(verdict, title=f"Verdict ({record.label})", border_style=colour))
    for name, value in (("record", f"{out}/record.json"), ("report", f"{out}/report.md")):
        console.print(f"{name}  {escape(value)}", soft_wrap=True, highlight=False)
    console.print(f"check   shakedown verify {escape(out)}", soft_wrap=True, highlight=False)
    wrong = next((cell.cell for cell in record.judgement.cells if cell.verdict == "mismatch" and cell.cases), None)
    if wrong is not None:
        console.print(f"locate  shakedown bisect {escape(out)} {escape(wrong)}", soft_wrap=True, highlight=False)


def _drawn(table: Table) -> RichTable:
    drawn = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for index, heading in enumerate(table.header):
        drawn.add_column(heading, overflow="fold", no_wrap=index == 0)
    for row in table.rows:
        drawn.add_row(*(_coloured(value) for value in row))
    return drawn


def _colour(verdict: str) -> str:
    return "green" if verdict in _GOOD else "yellow" if verdict in _DOUBT else "red"


def _coloured(value: str) -> str:
    known = value in _GOOD or value in _DOUBT or value in FAILED
    return f"[{_colour(value)}]{value}[/]" if known else escape(value)
