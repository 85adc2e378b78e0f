"""Random tensors: values, dtypes and layouts; and copies of a call's arguments that keep every alias."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DTYPES = (*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128)
_WEIGHTS = (30, 6, 8, 6, 16, 6, 3, 4, 6, 8, 5, 2)
_SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e30, -65504.0, 1e-40)
_EXTREMES = (-(2**63), 2**63 - 1, 2**31, -(2**31) - 1, 300, -129)


def some_dtype(rng: Random) -> torch.dtype:
    return rng.choices(DTYPES, _WEIGHTS)[0]


def some_size(rng: Random, ndim: int | None = None) -> list[int]:
    ndim = rng.choices(range(6), (10, 25, 35, 15, 12, 3))[0] if ndim is None else ndim
    return [rng.choices(range(7), (6, 15, 25, 25, 15, 10, 4))[0] for _ in range(ndim)]


def filled(rng: Random, size: list[int], dtype: torch.dtype, high: int | None = None) -> torch.Tensor:
    """A contiguous tensor. With `high`: mostly integers in ``[0, high)``, now and then one outside."""
    count = 1
    for n in size:
        count *= n
    if high is not None:
        wild = rng.random() < 0.2
        values: list[Any] = [rng.randrange(max(high, 1)) for _ in range(count)]
        if wild and count:
            values[rng.randrange(count)] = rng.choice((-1, high, high + 3, -high - 1, 2**40))
    elif dtype.is_floating_point or dtype.is_complex:
        values = [rng.randrange(-16, 17) / 4 for _ in range(count)]
        if rng.random() < 0.15:
            values = [rng.choice(_SPECIAL) if rng.random() < 0.2 else v for v in values]
    else:
        values = [rng.randrange(-4, 6) for _ in range(count)]
        if rng.random() < 0.1:
            values = [rng.choice(_EXTREMES) if rng.random() < 0.2 else v for v in values]
    if dtype.is_complex:
        values = [complex(v, rng.randrange(-8, 9) / 4) for v in values]
    exact = torch.tensor(values, dtype=torch.complex128 if dtype.is_complex else None)
    return exact.to(dtype).reshape(size) if count else torch.empty(size, dtype=dtype)


def laid_out(rng: Random, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, or one like it, over memory of another layout."""
    kind = rng.choices(
        ("as it is", "transposed", "offset", "stepped", "expanded", "channels_last", "lazy", "huge"),
        (45, 14, 10, 10, 8, 5, 4, 0.4),
    )[0]
    if kind == "transposed" and tensor.dim() > 1:
        a, b = rng.sample(range(tensor.dim()), 2)
        return tensor.transpose(a, b).contiguous().transpose(a, b)
    if kind == "offset":
        return torch.cat([tensor.new_zeros(3), tensor.reshape(-1)])[3:].view(tensor.shape)
    if kind == "stepped" and tensor.dim():
        wide = tensor.new_ones(*tensor.shape[:-1], 2 * tensor.shape[-1])
        wide[..., ::2] = tensor
        return wide[..., ::2]
    if kind == "expanded" and tensor.dim():
        dim = rng.randrange(tensor.dim())
        if tensor.shape[dim]:
            return tensor.narrow(dim, 0, 1).expand(tensor.shape)
    if kind == "channels_last" and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if kind == "lazy" and tensor.dtype != torch.bool:
        return tensor.conj() if tensor.is_complex() else torch._neg_view(tensor)
    if kind == "huge":
        if rng.random() < 0.5:
            return tensor.new_ones(1).expand(2**40)
        return tensor.new_empty(0).expand(2**40, 0) if rng.random() < 0.5 else tensor.new_empty(0, 2**40)
    return tensor


def overlapping(rng: Random, tensor: torch.Tensor) -> torch.Tensor:
    """Another view of the memory of `tensor`."""
    if tensor.is_conj() or tensor.is_neg():
        return tensor
    kind = rng.randrange(4)
    if kind == 0 and tensor.dim() > 1 and tensor.shape[0] == tensor.shape[1]:
        return tensor.transpose(0, 1)
    if kind == 1 and tensor.dim() and tensor.shape[0] > 1:
        return tensor[1:]
    if kind == 2 and tensor.dim() and tensor.shape[0]:
        return tensor[:1].expand(tensor.shape)
    return tensor.view(tensor.shape) if kind == 3 else tensor


def walk(value: Any, fn: Callable[[torch.Tensor], Any]) -> Any:
    """`value` (lists, tuples, dicts) with every tensor replaced by ``fn(tensor)``; other objects stay."""
    if isinstance(value, torch.Tensor):
        return fn(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple(walk(v, fn) for v in value)
    if isinstance(value, (list, tuple)):
        return type(value)(walk(v, fn) for v in value)
    if isinstance(value, dict):
        return {k: walk(v, fn) for k, v in value.items()}
    return value


def tensors_in(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    walk(value, found.append)
    return found


class Twins:
    """Copies of tensors on `device` whose storages are shared as those of the originals are.

    `storages` holds, for each storage seen, a tensor over all of the copy's memory. 0-d tensors numbered in `stay`
    (by order of appearance) are CPU scalars beside device tensors and stay on the CPU.
    """

    def __init__(self, device: str, stay: frozenset[int] = frozenset()) -> None:
        self.device, self.stay, self.seen = device, stay, 0
        self.storages: dict[int, torch.Tensor] = {}
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        number, self.seen = self.seen, self.seen + 1
        if number in self.stay and tensor.dim() == 0:
            return tensor.clone()
        if id(tensor) in self._made:
            return self._made[id(tensor)][1]
        if tensor.layout is not torch.strided:
            made = tensor.to(self.device)
        else:
            physical = tensor.conj() if tensor.is_conj() else tensor
            physical = torch._neg_view(physical) if physical.is_neg() else physical
            made = self._whole(physical).as_strided(physical.shape, physical.stride(), physical.storage_offset())
            made = torch._neg_view(made) if tensor.is_neg() else made
            made = made.conj() if tensor.is_conj() else made
        self._made[id(tensor)] = tensor, made
        return made

    def resized(self) -> set[int]:
        """Keys of the storages of which a tensor changed its sizes since it was made."""
        return {
            before.untyped_storage()._cdata
            for before, made in self._made.values()
            if before.layout is torch.strided and before.shape != made.shape
        }

    def _whole(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.storages:
            count = storage.nbytes() // tensor.dtype.itemsize
            flat = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (count,), (1,))
            self.storages[key] = flat.clone() if self.device == "cpu" else flat.to(self.device)
        whole = self.storages[key]
        return whole if whole.dtype == tensor.dtype else whole.view(tensor.dtype)
