"""``torch.compile(backend="neuron")``: one program per AOTAutograd graph, through the lowerings that eager uses.

Dynamo captures, AOTAutograd separates forward from backward and makes both functional, :mod:`..graph` inlines the operators,
XLA compiles. A program is specialised on the sizes, strides and offsets of its inputs, so a new shape compiles again.
"""

from . import breaks, metrics
from .backend import neuron
from .compiled import graphs

__all__ = ["breaks", "graphs", "metrics", "neuron"]
