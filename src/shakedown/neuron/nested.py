"""Nested tensors of the strided layout, which PyTorch's attention on jagged tensors goes through.

Their kernels in PyTorch are made of other operators on one buffer, or on each member, and keep sizes on the CPU, so they serve
any device. The jagged layout needs nothing here: it is Python around ordinary tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .lowering import registry

_KEY, _CPU_KEY = "NestedTensorPrivateUse1", torch._C.DispatchKey.NestedTensorCPU
_library: torch.library.Library | None = None


def call(op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run `op` on strided nested tensors.

    Raises:
        NotImplementedError: it has no such kernel.
    """
    return kernel_of(op)(*args, **kwargs)


@functools.cache
def kernel_of(op: torch._ops.OpOverload) -> Callable[..., Any]:
    install()
    # Redispatching to a key without a kernel crashes the interpreter instead of raising, so ask first.
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _CPU_KEY.name):
        return functools.partial(op._op_dk, _CPU_KEY)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"{op} is not implemented for nested tensors of the strided layout: use layout=torch.jagged, or .unbind()"
        )

    return refuse


@functools.cache
def install() -> None:
    """Register the kernels one by one: PyTorch prefers a default kernel to the boxed door, where there is one."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    for name in torch._C._dispatch_get_all_op_names():
        has = functools.partial(torch._C._dispatch_has_kernel_for_dispatch_key, name)
        if name.startswith("aten::") and has(_CPU_KEY.name) and not has(_KEY):
            op = registry.overload(name.removeprefix("aten::"))
            _library.impl(op, functools.partial(_through_the_door, op), _KEY)


def _through_the_door(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    return call(op, args, kwargs)  # looked up each time: a support profile may have put a refusal there
