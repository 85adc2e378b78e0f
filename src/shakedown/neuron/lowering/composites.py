"""Composite operators that users know by name, tracked under it; what they are made of runs as one program.

PyTorch decomposes them above the device, into ``_softmax``, ``native_layer_norm`` and the like, which have lowerings and
derivative formulas. Registering the composite itself only adds its name to the event stream.
"""

from __future__ import annotations

import functools
from typing import Any

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


def _with_probabilities(name: str) -> None:
    """Register the composite `name` with the check of its probabilities that PyTorch makes on CPU tensors alone."""
    composed = functools.partial(overload(name)._op_dk, _COMPOSITE)

    @composite(name)
    def quantile(self: torch.Tensor, q: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        looked_at = type(q) is torch.Tensor and not (q.dtype.is_complex or torch._C._functorch.is_batchedtensor(q))
        if looked_at and not bool(((q >= 0) & (q <= 1)).all()):
            raise RuntimeError("quantile() q values must be in the range [0, 1]")
        return composed(self, q, *args, **kwargs)


_with_probabilities("quantile")
_with_probabilities("nanquantile")
