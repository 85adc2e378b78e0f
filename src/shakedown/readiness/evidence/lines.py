"""Which lines of the workload's own files ran."""

from __future__ import annotations

from typing import Literal

from .files import Frozen

LINES_SCHEMA = "shakedown.lines/1"


class FileLines(Frozen):
    """Executed lines of one file, sorted, counted from 1.

    ``sha256`` is the file's as it was when its first line ran. ``imported``: its module level ran while being recorded;
    where it is false, nothing is known about lines outside functions.
    """

    sha256: str
    imported: bool
    lines: list[int]


class Lines(Frozen):
    """Executed lines, by path relative to the recorded folder. A file that is not listed ran no line meanwhile."""

    schema_version: str = LINES_SCHEMA
    method: Literal["sys.monitoring", "sys.settrace"]
    files: dict[str, FileLines]

    def merged(self, other: Lines) -> Lines:
        """Both records in one: a line ran when it ran in either."""
        files = dict(self.files)
        for name, theirs in other.files.items():
            mine = files.get(name)
            if mine is not None:
                lines = sorted({*mine.lines, *theirs.lines})
                theirs = FileLines(sha256=mine.sha256, imported=mine.imported or theirs.imported, lines=lines)
            files[name] = theirs
        return Lines(method=self.method, files=files)
