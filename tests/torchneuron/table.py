"""The table of docs/torchneuron.md: a row for each entry, between two marks of the page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch

from .contract import SECTIONS, Row

PAGE = Path(__file__).parents[2] / "docs" / "torchneuron.md"
BEGIN, END = "<!-- begin: python -m tests.torchneuron --write -->", "<!-- end -->"


def text_of(rows: list[Row]) -> str:
    """Markdown: the counts, then a table for each section."""
    counts = Counter(row.verdict for row in rows)
    shown = ", ".join(
        f"{counts[word]} {word}" for word in ("faithful", "different", "absent", "not right") if counts[word]
    )
    family = ".".join(torch.__version__.split(".")[:2])
    lines = [f"{len(rows)} names and variables: {shown}. Checked with PyTorch {family}.", ""]
    for section, title in SECTIONS.items():
        chosen = [row for row in rows if row.entry.section == section]
        if not chosen:
            continue
        lines += [f"### {title}", "", "| name | verdict | what is checked | source |", "| --- | --- | --- | --- |"]
        for row in chosen:
            one = row.entry
            verdict = row.verdict
            reason = row.problem or one.differs or one.absent
            if reason:
                verdict += f": {reason}"
            name = one.name if "`" in one.name or " " in one.name else f"`{one.name}`"
            lines.append(f"| {name} | {_cell(verdict)} | {_cell(one.checked)} | {_cell(one.source)} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def between(page: str) -> str:
    """What stands between the marks of a page."""
    return page.partition(BEGIN)[2].partition(END)[0].strip() + "\n"


def with_table(page: str, table: str) -> str:
    """`page` with `table` between its marks.

    Raises:
        ValueError: a mark is missing.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{table}\n{END}{after}"
