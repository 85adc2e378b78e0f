"""How long a trial still takes, from the processes that have ended so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from .judge.results import Cell

Progress = Callable[[str, float], None]  # (what runs now and how long the rest takes, share done so far)


def remaining(waiting: Sequence[Cell], ended: Sequence[Cell]) -> float | None:
    """Seconds that `waiting` will take, judged by the most similar of `ended`; None while there is nothing to judge by."""
    if not ended:
        return None
    total = 0.0
    for cell in waiting:
        likeness = [
            [e for e in ended if (e.kind, e.mode, e.cache) == (cell.kind, cell.mode, cell.cache)],
            [e for e in ended if (e.kind, e.mode) == (cell.kind, cell.mode)],
            [e for e in ended if e.mode == cell.mode],
            list(ended),
        ]
        alike = next(group for group in likeness if group)
        total += median(e.outcome.seconds / max(len(e.cases), 1) for e in alike) * max(len(cell.cases), 1)
    return total


def in_words(seconds: float | None) -> str:
    """`about 3 min left`."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f", about {max(round(seconds / 5) * 5, 5)} s left"
    return f", about {round(seconds / 60)} min left"
