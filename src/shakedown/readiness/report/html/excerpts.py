"""Lines of the workload's own source, around the places that the evidence names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .files import Files, Source, Withheld

AROUND = 2  # lines before and after
MOST = 30  # excerpts of a report
_PLACE = re.compile(r"^(?P<file>[^\s:]+\.py):(?P<line>\d+)\b")


@dataclass(frozen=True)
class Row:
    number: int
    text: str
    here: bool


@dataclass(frozen=True)
class Excerpt:
    """A few lines around one place, and what was found there; or why there are none."""

    place: str
    what: list[str]
    rows: Sequence[Row] = ()
    source: Source | None = None
    missing: str = ""


def excerpts(files: Files, found: Sequence[tuple[str, str]]) -> list[Excerpt]:
    """An excerpt for each place that names a file and a line; `found` has places with what was found there."""
    places: dict[tuple[str, int], list[str]] = {}
    for place, what in found:
        match = _PLACE.match(place)
        if match:
            said = places.setdefault((match["file"], int(match["line"])), [])
            said += [] if what in said else [what]
    made = [_excerpt(files, file, line, said) for (file, line), said in list(places.items())[:MOST]]
    if len(places) > MOST:
        made.append(Excerpt("and more", [], missing=f"{len(places) - MOST} more places are in record.json"))
    return made


def _excerpt(files: Files, file: str, line: int, said: list[str]) -> Excerpt:
    place = f"{file}:{line}"
    own = files.record.trial.get("workload_file") or f"{files.record.trial['workload']}.py"
    if file.rpartition("/")[2] not in ("workload.py", str(own).rpartition("/")[2]):
        return Excerpt(place, said, missing=f"withheld: the record keeps the workload's own file, and not {file}")
    try:
        lines = files.text("workload.py").splitlines()
    except Withheld as error:
        return Excerpt(place, said, missing=f"withheld: {error}")
    if not 1 <= line <= len(lines):
        return Excerpt(place, said, missing=f"withheld: workload.py has {len(lines)} lines")
    numbers = range(max(line - AROUND, 1), min(line + AROUND, len(lines)) + 1)
    return Excerpt(place, said, [Row(n, lines[n - 1][:400], n == line) for n in numbers], files.source("workload.py"))
