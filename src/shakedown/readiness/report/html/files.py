"""The files of a record as a report may use them: by a link that cannot leave the record, read only when they are what was
sealed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from ...record import Record

MOST_BYTES = 128 * 2**20  # of a file that a report reads whole: a trial of 200 processes writes about 40 MB of vectors


class Withheld(Exception):
    """Why a part of the report is not there."""


@dataclass(frozen=True)
class Source:
    """Where data lies: a path in the record, the beginning of its SHA-256, and a link where it can be followed."""

    name: str
    sha256: str = ""
    href: str = ""


class Files:
    """Files of the record in `root`, seen from a report that lies in the folder `at`."""

    def __init__(self, root: Path, record: Record, at: Path) -> None:
        self.root, self.record = root, record
        self.base = "" if at.resolve() == root.resolve() else os.path.relpath(root.resolve(), at.resolve())

    def source(self, name: str) -> Source:
        """Any file by its name in the record; a name that could lead elsewhere is shown and not linked."""
        if name == "record.json":
            return Source(name, f"sealed as {self.record.seal[:12]}", self._link(name))
        entry = self.record.files.get(name)
        if entry is None or not _inside(name):
            return Source(name)
        return Source(name, entry.sha256[:12], self._link(name))

    def sources(self, names: Iterable[str], most: int = 6) -> list[Source]:
        """Those of `names` that the record holds, the first `most` of them, then how many more."""
        known = [name for name in dict.fromkeys(names) if name in self.record.files]
        made = [self.source(name) for name in known[:most]]
        return made + ([Source(f"{len(known) - most} more, listed in record.json")] if len(known) > most else [])

    def judged(self, part: str) -> Source:
        """A part of the record itself."""
        found = self.source("record.json")
        return Source(f"record.json: {part}", found.sha256, found.href)

    def text(self, name: str) -> str:
        """A text file, if it is the one that was sealed and not too large. Raises :class:`Withheld` with the reason."""
        entry = self.record.files.get(name)
        if entry is None or not _inside(name):
            raise Withheld(f"{name} is not in the record")
        if entry.nbytes > MOST_BYTES:
            raise Withheld(f"{name} has {entry.nbytes:,} bytes, more than a report reads ({MOST_BYTES:,})")
        try:
            with (self.root / name).open("rb") as file:
                data = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise Withheld(f"{name} cannot be read: {error.strerror}") from None
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise Withheld(f"{name} is not the file that was sealed")
        return data.decode(errors="replace")

    def json(self, name: str) -> Any:
        """A JSON file, as :meth:`text` reads it."""
        try:
            return json.loads(self.text(name))
        except (ValueError, RecursionError):
            raise Withheld(f"{name} is not JSON") from None

    def _link(self, name: str) -> str:
        return quote(f"{self.base}/{name}" if self.base else f"./{name}", safe="/")


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and "\\" not in name and "\0" not in name
