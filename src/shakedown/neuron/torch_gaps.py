"""The only file that patches torch: gaps of a device without C++, each with its reason.

Nothing registers a C++ allocator for the device, so whatever allocates a storage natively would dereference a null allocator
and crash the interpreter. Those entry points are replaced for storages of this device; for all others the original runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .autoload import DEVICE_NAME

_originals: dict[str, Any] = {}


def _ours(storage: Any) -> bool:
    return isinstance(storage, torch.UntypedStorage) and storage.device.type == DEVICE_NAME


def _flat(storage: torch.UntypedStorage) -> torch.Tensor:
    """The bytes of a device storage as a uint8 tensor on it."""
    from .transfer import empty, set_storage

    return set_storage(empty((0,), (1,), torch.uint8), storage, 0, (storage.nbytes(),), (1,))


def _patch(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    _originals[f"{owner.__name__}.{name}"] = original

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return replacement(self, *args, **kwargs) if _ours(self) else original(self, *args, **kwargs)

    setattr(owner, name, method)


def close() -> None:
    """Apply every patch, once per process."""
    if _originals:
        return
    storage = torch.UntypedStorage
    _patch(storage, "clone", lambda s: _flat(s).clone().untyped_storage())
    _patch(storage, "cpu", lambda s: _flat(s).cpu().untyped_storage())
    _patch(storage, "resize_", _resize_storage)

    # `Module.to` makes new Parameters on this device, since its tensors count as incompatible with CPU ones for a shallow
    # copy. That unties tied weights and strands an optimizer built before the move. Swapping keeps identity.
    torch.__future__.set_swap_module_params_on_conversion(True)


def _resize_storage(self: torch.UntypedStorage, nbytes: int) -> torch.UntypedStorage:
    raise NotImplementedError("filled in below")
