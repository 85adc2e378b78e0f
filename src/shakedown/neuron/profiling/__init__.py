"""``torch.neuron.profiling``: what the device adds to ``torch.profiler``; docs/profiler.md.

Imported by ``import torch``: everything in it waits until somebody asks for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lines import Line as Line
    from .lines import by_line as by_line
    from .lines import line_table as line_table
    from .neuron_config import NeuronConfig as NeuronConfig
    from .neuron_config import ProfileMode as ProfileMode
    from .neuron_profiler import NeuronProfiler as NeuronProfiler

_PLACES = {
    "Line": "lines",
    "NeuronConfig": "neuron_config",
    "NeuronProfiler": "neuron_profiler",
    "ProfileMode": "neuron_config",
    "by_line": "lines",
    "line_table": "lines",
}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{place}"), name)
    return found


def __dir__() -> list[str]:
    return __all__
