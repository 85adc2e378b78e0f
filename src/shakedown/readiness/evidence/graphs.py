"""What was captured as graphs."""

from __future__ import annotations

from .files import Frozen


class Graphs(Frozen):
    """What ``torch.compile`` captured until the end of this case, cumulated over the process."""

    captured: int
    calls: int
    breaks: dict[str, int]
