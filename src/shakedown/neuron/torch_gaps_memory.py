"""Patches of torch for :mod:`.torch_gaps`: what ``torch.accelerator`` asks C++'s allocator of the device for.

There is none in C++: PyTorch's functions fail on an assertion, and ``empty_host_cache`` ends the process. They are left as they
are, and what they call is answered from :mod:`.memory`; for any other accelerator the original answers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import memory
from .autoload import DEVICE_NAME

_originals: dict[str, Any] = {}


def close() -> None:
    """Apply every patch, once per process."""
    if _originals:
        return
    answers: dict[str, Callable[..., Any]] = {
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_getDeviceStats": _stats,
        "_accelerator_resetPeakStats": memory.reset_peak_memory_stats,
        "_accelerator_resetAccumulatedStats": memory.reset_accumulated_memory_stats,
        "_accelerator_getMemoryInfo": memory.mem_get_info,
        "_accelerator_emptyCache": memory.empty_cache,
        "_accelerator_emptyHostCache": lambda: None,  # pinned memory is ordinary memory here, and kept by nobody
    }
    for name, ours in answers.items():
        if hasattr(torch._C, name):  # not in every version
            _answer(name, ours)


def _answer(name: str, ours: Callable[..., Any]) -> None:
    original = _originals[name] = getattr(torch._C, name)

    @functools.wraps(original)
    def function(*args: Any) -> Any:
        current = torch.accelerator.current_accelerator()
        return (ours if current is not None and current.type == DEVICE_NAME else original)(*args)

    setattr(torch._C, name, function)


def _stats(index: int) -> dict[str, Any]:
    """:func:`.memory.memory_stats` under the names that ``torch.accelerator`` has. There are no pools of large and small ones."""
    stats = memory.memory_stats(index)
    families = {name: {"all": stats[name]} for name in ("allocated_bytes", "reserved_bytes", "active_bytes")}
    return families | {
        "num_alloc_retries": stats["num_alloc_retries"],
        "num_ooms": stats["num_ooms"],
        "num_device_alloc": stats["allocation_requests"],
        "num_device_free": stats["num_tensor_frees"],
    }
