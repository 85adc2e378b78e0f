"""Composite operators that users know by name, tracked under it; what they are made of runs as one program.

PyTorch decomposes them above the device, into ``_softmax``, ``native_layer_norm`` and the like, which have lowerings and
derivative formulas. Registering the composite itself only adds its name to the event stream.
"""

from __future__ import annotations

import functools

import torch

from .registry import composite, overload

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

for _name in (
    "softmax.int",
    "log_softmax.int",
    "layer_norm",
    "group_norm",
    "batch_norm",
    "dropout",
    "cross_entropy_loss",
):
    # The C++ kernel, not a decomposition in Python of the same name: that of dropout copies what it should return as it is.
    composite(_name)(functools.partial(overload(_name)._op_dk, _COMPOSITE))
