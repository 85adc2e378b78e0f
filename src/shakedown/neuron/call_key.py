"""A call's key and inputs: what of its arguments decides which plan serves it, and what the plan's program takes.

The hot path (:func:`.dispatch.kernel_of`) does what is here for a plain tensor in line.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeAlias

import torch
from torch.nn import Parameter

from . import runtime
from .buffer import DEVICE
from .errors import LoweringError
from .operators import Operator, Role

Tensor: TypeAlias = torch.Tensor
TENSOR_TYPES = {Tensor, Parameter}  # exact types; a subclass joins on first sight
# As functions, for ``map``: lists of tensors are the optimizers' daily bread.
_storage_of, _stride_of, _offset_of = Tensor.untyped_storage, Tensor.stride, Tensor.storage_offset
_dtype_of, _shape_of = attrgetter("dtype"), Tensor.size  # each is the fastest of its kind


class HostTensor(Exception):
    """A CPU tensor with dimensions was mixed with device tensors."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def input_of(value: Any, key: list[Any], inputs: list[Any]) -> None:
    """Key and input of what stands in a tensor's place: a number, a CPU scalar, a tensor of any class."""
    kind = type(value)
    if kind is float or kind is int or kind is bool or kind is complex:
        key.append(kind)
        inputs.append(runtime.number(value))
    elif isinstance(value, torch.Tensor):
        if value.device.type != DEVICE.type:
            if value.dim() or value.device.type != "cpu":
                raise HostTensor(value)
            key += ("cpu", value.dtype)
            inputs.append(runtime.host_scalar(value))
            return
        TENSOR_TYPES.add(kind)
        inputs.append(value.untyped_storage().buffer)
        key += (value.dtype, value.shape, value.stride(), value.storage_offset())
    elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise LoweringError("symbolic numbers")
    else:
        raise LoweringError(f"an argument of type {kind.__name__}")


def key_of(value: Any, role: Role, specialise: Callable[[Any], bool] | None, key: list[Any], inputs: list[Any]) -> None:
    """Key and inputs of an argument that is not a single tensor."""
    if value is None:
        key.append(None)
    elif role is Role.NUMBER:
        if specialise is not None and specialise(value):
            key.append((type(value), value))
        else:
            key.append(type(value))
            inputs.append(runtime.number(value))
    elif role is Role.TENSORS:
        key.append(len(value))
        if TENSOR_TYPES.issuperset(map(type, value)):
            inputs += [s.buffer for s in map(_storage_of, value)]
            for part in (_dtype_of, _shape_of, _stride_of, _offset_of):
                key += map(part, value)
            return
        for v in value:
            if v is None:
                key.append(None)
            else:
                input_of(v, key, inputs)
    elif role is Role.NUMBERS and not (specialise is not None and specialise(value)):
        key.append(len(value))
        for v in value:
            key.append(type(v))
            inputs.append(runtime.number(v))
    elif role is Role.GENERATOR:
        key.append("generator")
    elif type(value) is list:
        if role is Role.NUMBERS:
            key.append(tuple(map(type, value)))
        key.append(tuple(value))
    else:
        key.append((type(value), value))  # 1, 1.0 and True are equal as keys


def storage_pattern(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Which tensor arguments share a storage: True when none do. Only operators that write need it in their key."""
    storages: list[int] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            storages.append(id(value.untyped_storage()))
        elif isinstance(value, list):
            try:
                storages += list(map(id, map(_storage_of, value)))
            except TypeError:  # numbers, or None in the place of a tensor
                storages += map(id, map(_storage_of, [v for v in value if isinstance(v, torch.Tensor)]))
    if len(set(storages)) == len(storages):
        return True
    first: dict[int, int] = {}
    return tuple(first.setdefault(s, i) for i, s in enumerate(storages))
