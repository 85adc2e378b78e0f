"""A kernel as a callable on tensors: each wrapped kernel is one operator of PyTorch's, ``nki::<name>``.

The operator takes the call's tensors as one list, and everything else as one text (:mod:`.arguments`), so that eager execution,
adaptive eager and graphs handle it as they handle any operator.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import torch

from ...nki import WrappedKernel
from .. import log, torch_gaps
from ..errors import KernelError
from ..lowering import registry
from .arguments import encode
from .lowered import KernelLowering

NAMESPACE = "nki"
_SCHEMA = "(Tensor[] tensors, str given) -> Tensor[]"
_lock = threading.RLock()
_wrapped: dict[
    int, WrappedKernel
] = {}  # by the kernel's identity; it holds the kernel, so that no identity comes twice
_names: dict[str, int] = {}
_called: dict[str, tuple[KernelLowering, Any]] = {}  # lowering and operator of each kernel


def run(name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call the kernel `name` with tensors and constants."""
    lowering, op = _called[name]
    tensors, given = encode(name, *lowering.bound(args, kwargs))
    try:
        returned = lowering.returns(tensors, given)
    except KernelError as error:
        if isinstance(
            tensors[0], torch._subclasses.FakeTensor
        ):  # Dynamo says "Unsupported output type" for any error here
            log.logger("compile").error("%s", error)
        raise
    return returned.rebuilt(op(tensors, given))


def wrap(kernel: Callable[..., Any]) -> WrappedKernel:
    if isinstance(kernel, WrappedKernel):
        return kernel
    if not callable(kernel):
        raise TypeError(f"wrap_nki takes a function on arrays, not a {type(kernel).__name__}")
    with _lock:
        found = _wrapped.get(id(kernel))
        if found is None:
            if not _wrapped:
                torch_gaps.when_loaded("torch._dynamo.decorators", _show_to_dynamo)
            found = _wrapped[id(kernel)] = _made(kernel)
            with contextlib.suppress(AttributeError, TypeError):
                kernel._nki = found  # type: ignore[attr-defined]  # where a captured function finds it
    return found


def _made(kernel: Callable[..., Any]) -> WrappedKernel:
    name = _name_of(kernel)
    lowering = KernelLowering(kernel, name)
    _called[name] = lowering, _operator(name, lowering)
    named = {
        "__name__": name,
        "__module__": getattr(kernel, "__module__", None) or __name__,
        "__globals__": getattr(inspect.unwrap(kernel), "__globals__", {}),
        "__annotations__": getattr(kernel, "__annotations__", {}),
        "takes_grid": "grid" in lowering.parameters,
    }
    return WrappedKernel(kernel, run, named)


def _name_of(kernel: Any) -> str:
    """The kernel's own name as that of an operator; a number tells kernels of one name apart."""
    inner = kernel.func if isinstance(kernel, functools.partial) else kernel
    plain = getattr(inner, "__name__", None) or type(kernel).__name__
    name = "".join(c if c.isalnum() and c.isascii() else "_" for c in plain).strip("_") or "kernel"
    count = _names[name] = _names.get(name, 0) + 1
    return name if count == 1 else f"{name}_{count}"


def _operator(name: str, lowering: KernelLowering) -> Any:
    made = torch.library.custom_op(
        f"{NAMESPACE}::{name}", lowering.on_host, mutates_args=(), device_types="cpu", schema=_SCHEMA
    )
    made.register_fake(lowering.fake)
    registry.lower_kernel(made._opoverload, lowering)
    return made._opoverload


def _show_to_dynamo(decorators: Any) -> None:
    """A captured call of a kernel is not captured itself: it is run on tensors without values, and what it calls recorded."""
    global run
    run = decorators.nonstrict_trace(run)
    for known in _wrapped.values():
        known.run = run
