"""Pinned host memory: ``DataLoader(pin_memory=True)`` and ``Tensor.pin_memory()``, which PyTorch asks the accelerator for.

Pinning is a promise that a copy to the device may be taken from this memory without a stop. Uploads here read any host
memory alike, so that a pinned tensor is a copy that says of itself that it is pinned. Loaded by ``import torch``, since a
DataLoader pins before anybody uses the device.
"""

from __future__ import annotations

from typing import Any

import torch


def _pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """A copy of a CPU tensor with the same strides, marked as pinned; PyTorch has asked :func:`_is_pinned` before."""
    with torch.no_grad():
        copy = torch.empty_like(tensor).copy_(tensor)
    copy.untyped_storage().pinned = True  # PyTorch keeps a storage's attributes as long as the storage
    return copy


def _is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
    return getattr(tensor.untyped_storage(), "pinned", False)


def register() -> torch.library.Library:
    """Answer ``aten::is_pinned`` and ``aten::_pin_memory`` of CPU tensors; whoever calls keeps the library.

    A device tensor is not pinned, and pinning one raises PyTorch's RuntimeError. ``torch.empty(..., pin_memory=True)`` asks a
    C++ allocator, which this device has not: see :mod:`.torch_gaps_memory`.
    """
    library = torch.library.Library("aten", "IMPL")
    library.impl("_pin_memory", _pin_memory, "CPU")
    library.impl("is_pinned", _is_pinned, "CPU")
    return library
