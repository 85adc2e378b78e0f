"""What ``torch.compile`` really captured: a "compiled" run that silently stayed eager must not be called compiled."""

from __future__ import annotations

import torch

from ..evidence import Graphs


def capture() -> Graphs:
    """Graphs, captured calls and graph breaks with their reasons, since the process began."""
    counters = torch._dynamo.utils.counters
    return Graphs(
        captured=int(counters["stats"].get("unique_graphs", 0)),
        calls=int(counters["stats"].get("calls_captured", 0)),
        breaks={str(reason).splitlines()[0]: int(count) for reason, count in counters["graph_break"].items()},
    )
