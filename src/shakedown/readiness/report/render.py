"""The same sections as a Markdown file and on a terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table as RichTable

from ..judge.disposition import INCONCLUSIVE, SUITABLE, Decision
from ..judge.results import FAILED
from ..record import Record
from . import decision, details, observed, overview, words
from .words import Section, Table

_GOOD, _DOUBT = ("match", SUITABLE, "met"), ("untested", INCONCLUSIVE, "withheld", "open")


def markdown(record: Record) -> str:
    """The whole report as a Markdown file."""
    lines = [f"# {words.title(record)}", "", f"> **{record.label_text}**", ""]
    verdict = record.judgement.decision
    lines += [f"**{verdict.disposition[0].upper()}{verdict.disposition[1:]}** – {_one_line(verdict.sentence)}.", ""]
    for section in (one for part in (decision, overview, observed, details) for one in part.sections(record)):
        lines += section_lines(section)
    return "\n".join(lines)


def section_lines(section: Section) -> list[str]:
    """One section as lines of Markdown."""
    lines = [f"## {section.title}", ""]
    if len(section.sentences) > 1:
        lines += [f"- {_one_line(text)}" for text in section.sentences] + [""]
    else:
        lines += [line for text in section.sentences for line in (_one_line(text), "")]
    for table in section.drawn():
        lines.append("| " + " | ".join(table.header) + " |")
        lines.append("|" + " --- |" * len(table.header))
        lines += ["| " + " | ".join(_one_line(value) for value in row) + " |" for row in table.rows]
        lines.append("")
    return lines


def _one_line(text: str) -> str:
    """Text that cannot break out of a table cell or a list item."""
    return text.replace("|", "\\|").replace("\n", " ")


def terminal(record: Record, console: Console, out: str) -> None:
    """The overview on a terminal, the decision last, where the eye rests."""
    console.print(Panel(escape(record.label_text), title=escape(words.title(record)), border_style="yellow"))
    for section in overview.sections(record):
        show_section(section, console)
    decision_panel(record.judgement.decision, record.label, console)
    for name, value in (("record", f"{out}/record.json"), ("report", f"{out}/report.html")):
        console.print(f"{name}  {escape(value)}", soft_wrap=True, highlight=False)
    console.print(f"check   shakedown verify {escape(out)}", soft_wrap=True, highlight=False)
    wrong = next((cell.cell for cell in record.judgement.cells if cell.verdict == "mismatch" and cell.cases), None)
    if wrong is not None:
        console.print(f"locate  shakedown bisect {escape(out)} {escape(wrong)}", soft_wrap=True, highlight=False)


def show_section(section: Section, console: Console) -> None:
    """One section on a terminal."""
    console.print(f"\n[bold]{escape(section.title)}[/]")
    for text in section.sentences:
        console.print(f"[dim]{escape(text)}[/]", highlight=False)
    for table in section.drawn():
        console.print(_drawn(table), highlight=False)


def decision_panel(made: Decision, label: str, console: Console) -> None:
    """The decision on a terminal: disposition, results, what to change, what to run next."""
    colour = _colour(made.disposition)
    lines = [f"[bold {colour}]{escape(made.disposition)}[/]: {escape(made.sentence)}"]
    lines += [f"[dim]{escape(result.name)}[/]: {result.standing}, {escape(result.sentence)}" for result in made.results]
    lines += [f"[bold]change[/] {escape(f'{one.kind} {one.name}: {one.advice}')}" for one in made.changes]
    lines += [f"[bold]next[/] {escape(text)}" for text in made.next]
    console.print(Panel("\n".join(lines), title=f"Decision ({label})", border_style=colour))


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
