"""``torch.neuron.profiling``: what the device adds to ``torch.profiler``; docs/profiler.md.

Imported by ``import torch``: what takes part in a profile waits for the first one that asks for the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .neuron_config import NeuronConfig as NeuronConfig
from .neuron_config import ProfileMode as ProfileMode
from .neuron_profiler import NeuronProfiler as NeuronProfiler

if TYPE_CHECKING:
    from .lines import Line


def by_line(profiler: Any) -> list[Line]:
    """Device time against the Python line that caused it, the most first: :func:`shakedown.neuron.profiling.lines.by_line`."""
    from .lines import by_line

    return by_line(profiler)


def line_table(profiler: Any, row_limit: int = 20) -> str:
    """:func:`by_line` as a table to print."""
    from .lines import line_table

    return line_table(profiler, row_limit)
