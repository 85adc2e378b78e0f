"""Variations of a call's arguments. Layouts change no value; the others make the call that the workload will make next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .calls import Call, kept, stretch

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
UNCHANGED = "same"
ABOVE = 2**31 + 5  # a value that 32 bits cannot hold


def forms(call: Call) -> Iterator[tuple[str, list[Arguments]]]:
    """Every variation that applies to `call`, with its forms; the first form that the CPU accepts is the one to probe."""
    yield UNCHANGED, [(call.args, call.kwargs)]
    for name, make in _VARIATIONS.items():
        made = make(call)
        if made:
            yield name, made


def tensors_of(arguments: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]


def changed(arguments: Arguments, change: Callable[[Tensor], Tensor]) -> Arguments:
    """`arguments` with `change` applied to every tensor."""
    args, kwargs = tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, arguments)
    return args, kwargs


def _layout(call: Call, able: Callable[[Tensor], bool], change: Callable[[Tensor], Tensor]) -> list[Arguments]:
    arguments = call.args, call.kwargs
    if not any(able(value) for value in tensors_of(arguments)):
        return []
    return [changed(arguments, lambda value: change(value) if able(value) else value)]


def _transposed(call: Call) -> list[Arguments]:
    """The last two dimensions the other way round in memory; what is so already becomes contiguous."""

    def change(value: Tensor) -> Tensor:
        moved = value.transpose(-1, -2).contiguous().transpose(-1, -2)
        return value.contiguous() if moved.stride() == value.stride() else moved

    return _layout(call, lambda value: value.dim() > 1 and min(value.shape[-2:]) > 1, change)


def _offset(call: Call) -> list[Arguments]:
    def change(value: Tensor) -> Tensor:
        flat = stretch(value)
        buffer = flat.new_zeros(flat.numel() + 3)
        buffer[3:].copy_(flat)
        return buffer.as_strided(value.shape, value.stride(), 3)

    return _layout(call, lambda value: value.numel() > 0, change)


def _expanded(call: Call) -> list[Arguments]:
    """The first row, for all rows, without memory of its own. Vectors beside matrices stay: statistics are written to."""
    values = tensors_of((call.args, call.kwargs))
    least = 2 if any(value.dim() > 1 for value in values) else 1
    return _layout(
        call,
        lambda value: value.dim() >= least and value.shape[0] > 1,
        lambda value: kept(value[:1].contiguous()).expand(value.shape),
    )


def _groups(call: Call) -> list[list[int]]:
    """Which tensor arguments could lose their rows together, the likeliest first.

    From the largest tensor on: all of its length, all of its shape. Vectors beside matrices keep their elements: they are
    weights, and PyTorch's CPU kernels read past the end of those that are empty.
    """
    values = tensors_of((call.args, call.kwargs))
    shapes = [tuple(value.shape) for value in values]
    least = 2 if any(len(shape) > 1 for shape in shapes) else 1
    able = [position for position, shape in enumerate(shapes) if len(shape) >= least and shape[0]]
    able.sort(key=lambda position: -values[position].numel())
    length = [[i for i in able if shapes[i][0] == shapes[position][0]] for position in able]
    alike = [[i for i in able if shapes[i] == shapes[position]] for position in able]
    groups = [sorted(group) for pair in zip(length, alike, strict=True) for group in pair]
    return [group for index, group in enumerate(groups) if group not in groups[:index]]


def _zero_size(call: Call) -> list[Arguments]:
    """No rows: an empty last batch of a loop, an expert without tokens."""
    found: list[Arguments] = []
    for group in _groups(call):
        position = iter(range(10**6))

        def shrink(value: Tensor, group: list[int] = group, position: Iterator[int] = position) -> Tensor:
            return value[:0] if next(position) in group else value

        found.append(changed((call.args, call.kwargs), shrink))
    return found


def _other_dtype(call: Call) -> list[Arguments]:
    """bfloat16 for a call in a wider precision."""
    wider = (torch.float32, torch.float64, torch.float16)
    arguments = call.args, call.kwargs
    if not any(value.dtype in wider for value in tensors_of(arguments)):
        return []
    cast = changed(arguments, lambda value: kept(value).to(torch.bfloat16) if value.dtype in wider else value)
    return [_with_dtype(cast, wider, torch.bfloat16)]


def _int64(call: Call) -> list[Arguments]:
    """Values above 2^31 where all tensors are integers and the result is one."""
    values = tensors_of((call.args, call.kwargs))
    if not values or any(value.is_floating_point() or value.is_complex() for value in values):
        return []
    if all(value.dtype == torch.bool for value in values):
        return []
    return [changed((call.args, call.kwargs), lambda v: v if v.dtype == torch.bool else kept(v).long() + ABOVE)]


def _nan_row(call: Call) -> list[Arguments]:
    """One row of the first floating tensor is not a number, as one bad sample makes it."""
    values = tensors_of((call.args, call.kwargs))
    first = next((i for i, value in enumerate(values) if value.is_floating_point() and value.numel()), None)
    if first is None:
        return []
    position = iter(range(10**6))

    def change(value: Tensor) -> Tensor:
        if next(position) != first:
            return value
        copy = kept(value)
        if any(n > 1 and s == 0 for n, s in zip(copy.shape, copy.stride(), strict=True)):
            copy = copy.contiguous()
        (copy[0] if copy.dim() else copy).fill_(float("nan"))
        return copy

    return [changed((call.args, call.kwargs), change)]


def _with_dtype(arguments: Arguments, old: tuple[torch.dtype, ...], new: torch.dtype) -> Arguments:
    """Arguments that name a precision, such as ``dtype=``, follow the tensors."""
    args, kwargs = tree_map(lambda leaf: new if isinstance(leaf, torch.dtype) and leaf in old else leaf, arguments)
    return args, kwargs


def in_float64(arguments: Arguments) -> Arguments:
    """The same call in float64: what truth is computed from."""
    floats = (torch.float32, torch.bfloat16, torch.float16)
    cast = changed(arguments, lambda value: kept(value).double() if value.dtype in floats else kept(value))
    return _with_dtype(cast, floats, torch.float64)


_VARIATIONS: dict[str, Callable[[Call], list[Arguments]]] = {
    "transposed": _transposed,
    "offset": _offset,
    "zero-size": _zero_size,
    "expanded": _expanded,
    "bfloat16": _other_dtype,
    "int64 above 2^31": _int64,
    "nan row": _nan_row,
}

ORDER = (UNCHANGED, *_VARIATIONS)
LAYOUTS = ("transposed", "offset", "expanded")  # values as they are, or repeated, in another order in memory
