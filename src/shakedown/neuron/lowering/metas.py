"""Meta kernels that PyTorch lacks: planning a call needs the sizes and dtypes of its outputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from .registry import functional_of, overload

_library = torch.library.Library("aten", "IMPL")


def meta(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the meta kernel of `names`, unless this PyTorch has its own."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            op = overload(name)
            if not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "Meta"):
                _library.impl(op, fn, "Meta")
            for out in _out_forms(op):
                _library.impl(out, _writing(out, fn), "Meta")
        return fn

    return register


def _out_forms(op: torch._ops.OpOverload) -> list[torch._ops.OpOverload]:
    """The ``out=`` overloads of `op` that no kernel of PyTorch's serves on meta tensors."""
    packet = getattr(torch.ops.aten, op._schema.name.split("::")[1])
    found = []
    for name in packet.overloads():
        out = getattr(packet, name)
        written = [a for a in out._schema.arguments if a.is_out]
        served = any(
            torch._C._dispatch_has_kernel_for_dispatch_key(out.name(), key)
            for key in ("Meta", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
        )
        if written and not served and all(str(a.type) == "Tensor" for a in written) and functional_of(out) is op:
            found.append(out)
    return found


def _writing(out: torch._ops.OpOverload, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The meta kernel of an ``out=`` overload, from that of its functional form."""
    names = [a.name for a in out._schema.arguments if a.is_out]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = [kwargs.pop(name) for name in names]
        results = fn(*args, **kwargs)
        for tensor, result in zip(given, [results] if isinstance(results, torch.Tensor) else results):
            if tensor.dtype != result.dtype:
                raise RuntimeError(f"Expected out tensor to have dtype {result.dtype}, but got {tensor.dtype} instead")
            if tensor.shape != result.shape:
                tensor.resize_(result.shape)
        return given[0] if len(given) == 1 else tuple(given)

    return kernel


def _linear_backward(
    self: torch.Tensor, grad_output: torch.Tensor, weight: torch.Tensor, output_mask: list[bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    grad_input = self.new_empty(self.shape) if output_mask[0] else None
    grad_weight = weight.new_empty(weight.shape) if output_mask[1] else None
    return grad_input, grad_weight, weight.new_empty(weight.shape[:-1]) if output_mask[2] else None


# PyTorch's own knows no weight of one dimension, and gives both gradients of the parameters where one is asked for.
_LINEAR_BACKWARD = torch.ops.aten.linear_backward.default
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message=".*[Oo]verriding a previously registered kernel.*")
    _library.impl(_LINEAR_BACKWARD, _linear_backward, "Meta")
_LINEAR_BACKWARD.py_kernels[torch._C.DispatchKey.Meta] = _linear_backward
