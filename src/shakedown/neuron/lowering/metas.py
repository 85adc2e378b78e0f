"""Meta kernels that PyTorch lacks: planning a call needs the sizes and dtypes of its outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .registry import overload

_library = torch.library.Library("aten", "IMPL")


def meta(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the meta kernel of `names`, unless this PyTorch has its own."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            op = overload(name)
            if not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "Meta"):
                _library.impl(op, fn, "Meta")
        return fn

    return register
