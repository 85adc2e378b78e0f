"""Patches of torch for :mod:`.torch_gaps`: what PyTorch asks C++'s allocators of the device for. There are none.

``torch.accelerator``'s functions of memory fail on an assertion, and ``empty_host_cache`` ends the process. They are left as they
are, and what they call is answered from :mod:`.memory`; for any other accelerator the original answers. Functions that make
tensors ask an allocator for pinned memory, before any kernel that Python could register: with ``pin_memory=True`` they raise
NotImplementedError. Only ``shakedown exec`` wraps them, for scripts that are to run as they are: it costs every call of them, and
elsewhere ``torch.empty`` is to be the function that everybody knows by its identity.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from . import memory, torch_gaps
from .autoload import DEVICE_NAME

_originals: dict[str, Any] = {}
_factories: dict[str, Any] = {}  # PyTorch's own, by name


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


# Those that take ``pin_memory``, but for windows, quantised tensors and files.
_FACTORIES = (
    *(
        "arange",
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "eye",
        "full",
        "full_like",
        "linspace",
        "logspace",
    ),
    *("normal", "ones", "ones_like", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm"),
    *("scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros", "zeros_like"),
)
_METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")


def close_factories() -> None:
    """Make ``torch.empty(..., pin_memory=True)`` and its like work, once per process."""
    if _factories:
        return
    from torch.jit import _builtins
    from torch.utils import _device

    _device._device_constructors()  # kept from now on: default devices know the originals, which the wrapped ones call
    for owner, place, names in ((torch, "torch", _FACTORIES), (torch.Tensor, "torch.Tensor", _METHODS)):
        for name in names:
            original = _factories[f"{place}.{name}"] = getattr(owner, name)
            made = _pinning(original)
            made.__module__, made.__qualname__ = "torch", f"{place}.{name}".removeprefix("torch.")
            if owner is torch:
                _builtins._register_builtin(made, f"aten::{name}")  # so that TorchScript knows it
            setattr(owner, name, made)
    torch_gaps.when_loaded("torch._dynamo.trace_rules", _show_to_dynamo)


def _show_to_dynamo(rules: Any) -> None:
    """Dynamo has functions by their identity, looked up once: what it has of them is looked up anew, and held under both.

    A function that the user imported by name before is PyTorch's own, and is to be captured like ours.
    """
    original = getattr(rules, "get_torch_obj_rule_map", None)
    if original is None:
        return

    @functools.cache
    def get_torch_obj_rule_map() -> dict[Any, Any]:
        found: dict[Any, Any] = original()
        for name, function in _factories.items():
            place, _, last = name.rpartition(".")
            if place == "torch":
                ours = getattr(torch, last)
                if (rule := found.get(ours) or found.get(function)) is not None:
                    found[ours] = found[function] = rule
        return found

    original.cache_clear()
    rules.get_torch_obj_rule_map = get_torch_obj_rule_map
    functions = sys.modules.get("torch._dynamo.variables.torch")
    handlers: Any = getattr(getattr(functions, "TorchInGraphFunctionVariable", None), "_get_handlers", None)
    if hasattr(handlers, "cache_clear"):
        handlers.cache_clear()


def _pinning(original: Callable[..., Any]) -> Callable[..., Any]:
    from .buffer import is_device_tensor

    @functools.wraps(original)
    def factory(*args: Any, **kwargs: Any) -> Any:
        if "pin_memory" in kwargs and kwargs["pin_memory"] and "out" not in kwargs and not torch.cuda.is_available():
            made = original(*args, **{**kwargs, "pin_memory": False})
            if made.device.type == "cpu" and made.layout is torch.strided:
                made.untyped_storage().pinned = True
                return made
            if is_device_tensor(made):
                raise RuntimeError("Only dense CPU tensors can be pinned")
        return original(*args, **kwargs)  # with what it says of all others

    return factory


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
