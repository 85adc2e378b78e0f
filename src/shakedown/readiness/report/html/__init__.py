"""The report as one self-contained HTML file: no network, no fonts or scripts from elsewhere, light, dark and printed.

:mod:`.page` says what stands where and the templates place it; :mod:`.charts` draws on :mod:`.axes` and :mod:`.svg`;
:mod:`.figures`, :mod:`.losses` and :mod:`.planned` say what is drawn; :mod:`.matrix`, :mod:`.vectors` and :mod:`.excerpts` show
processes, tensors and source. A record is not trusted: all text is escaped, nothing in it becomes a link out or a script.
"""

from __future__ import annotations

from pathlib import Path

from ...record import Record
from .page import rendered

__all__ = ["html"]


def html(record: Record, root: Path, at: Path | None = None) -> str:
    """The page for the record in the directory `root`, to lie in the folder `at` (`root` itself if None)."""
    return rendered(record, root, at or root)
