"""Composite operators that users know by name, tracked under it; what they are made of runs as one program.

PyTorch decomposes them above the device, into ``_softmax``, ``native_layer_norm`` and the like, which have lowerings and
derivative formulas. Registering the composite itself only adds its name to the event stream.
"""

from __future__ import annotations

from .registry import composite, overload

for _name in (
    "softmax.int",
    "log_softmax.int",
    "layer_norm",
    "group_norm",
    "batch_norm",
    "dropout",
    "cross_entropy_loss",
):
    composite(_name)(overload(_name).decompose)
