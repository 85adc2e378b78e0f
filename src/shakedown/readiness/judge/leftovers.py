"""What a workload left running when its process had finished."""

from __future__ import annotations

from pathlib import Path

from .. import evidence as ev
from ..evidence.failure import Leftovers
from ..requirements import Requirements
from .results import Cell, Finding


def findings(root: Path, cells: list[Cell], requirements: Requirements) -> list[Finding]:
    """One finding for each process that had to be ended because of a thread of the workload's."""
    found = []
    for cell in cells:
        path = root / "evidence" / cell.id / "leftovers.json"
        if path.exists():
            threads = ev.read(Leftovers, path).threads
            text = f"{len(threads)} threads of the workload were still running at the end: {', '.join(threads)}"
            found.append(Finding(word="thread-left-behind", cell=cell.id, text=text, fails=False))
    return found
