"""Lazy conjugates and negatives: views whose elements are the conjugate or negative of what the storage holds.

PyTorch materialises them before most kernels. A few operators receive them as they are (``clone``, ``copy_``, ``mm`` and the
rest of its family, whose CPU kernels hand the conjugation to BLAS); here they are materialised by operators of the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .operators import Operator

_aten = torch.ops.aten


def is_lazy(tensor: torch.Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()


def materialised(value: Any) -> Any:
    """`value` with every lazy tensor in it replaced by one whose storage holds its elements."""
    if isinstance(value, torch.Tensor):
        if value.is_conj():
            return materialised(_aten._conj_physical(torch._conj(value)))
        if value.is_neg():
            return _aten.neg(torch._neg_view(value))
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(materialised(v) for v in value)
    return value


def remarked(tensor: torch.Tensor, conjugate: bool, negative: bool) -> torch.Tensor:
    """A view of `tensor`, whose storage is left alone: the lazy conjugate or negative of it, where asked for."""
    tensor = torch._conj(tensor) if conjugate else tensor
    return torch._neg_view(tensor) if negative else tensor


def marked(tensor: torch.Tensor, conjugate: bool, negative: bool) -> torch.Tensor:
    """The elements of `tensor`, which is not lazy, in a tensor that has these marks."""
    if negative:
        tensor = _aten.neg(tensor)
    if conjugate:
        tensor = _aten._conj_physical(tensor)
    return remarked(tensor, conjugate, negative)


def write(target: torch.Tensor, source: torch.Tensor) -> None:
    """``target.copy_(source)`` for a lazy `target`: what its storage must hold is written to the plain view of it."""
    if target.is_conj():
        torch._conj(target).copy_(source.conj())
    else:
        torch._neg_view(target).copy_(-source)


def guarded(operator: Operator, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel` of an operator that PyTorch gives lazy tensors to."""
    names = [a.name for a in operator.op._schema.arguments]

    def call(*args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(v, torch.Tensor) and is_lazy(v) for v in (*args, *kwargs.values())):
            return kernel(*args, **kwargs)
        targets = {
            n: v
            for n, v in (*zip(names, args), *kwargs.items())
            if n in operator.written and isinstance(v, torch.Tensor) and is_lazy(v)
        }
        plain = {n: materialised(v) for n, v in targets.items()}
        result = kernel(
            *(plain.get(n) if n in plain else materialised(v) for n, v in zip(names, args)),
            **{n: plain.get(n) if n in plain else materialised(v) for n, v in kwargs.items()},
        )
        for name, target in targets.items():
            write(target, plain[name])
            if result is plain[name]:
                result = target
        return result

    return call
