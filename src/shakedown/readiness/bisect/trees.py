"""Tensors inside whatever a module takes or returns, and copies of them on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in nested tuples, lists, dicts and dataclasses, with where it is."""
    if isinstance(value, Tensor):
        yield path or "output", value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from leaves(item, f"{path}[{number}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}" if path else field.name)


def mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """An operator's arguments with every tensor changed; one tensor that is given twice stays one."""
    seen: dict[int, Any] = {}

    def go(item: Any) -> Any:
        if isinstance(item, Tensor):
            if id(item) not in seen:
                seen[id(item)] = change(item)
            return seen[id(item)]
        if isinstance(item, (list, tuple)):
            return [go(x) for x in item]
        if isinstance(item, dict):
            return {key: go(x) for key, x in item.items()}
        return item

    return go(value)


def host(value: Tensor) -> Tensor:
    """A copy on the CPU that nothing else writes to."""
    return value.detach().to("cpu", copy=True)


def wide(value: Tensor) -> Tensor:
    """A copy in double precision; integers and masks as they are."""
    if value.is_floating_point():
        return value.to(torch.float64, copy=True)
    return value.to(torch.complex128, copy=True) if value.is_complex() else value.clone()


def dtype_name(value: Tensor) -> str:
    """``float32`` of a tensor, or of each part of its complex numbers."""
    dtype = {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(value.dtype, value.dtype)
    return str(dtype).removeprefix("torch.")


def array(value: Tensor) -> np.ndarray:
    """A host tensor for NumPy: halves widen, complex becomes pairs, masks become 0 and 1."""
    value = value.detach().resolve_conj().resolve_neg()
    if value.is_complex():
        value = torch.view_as_real(value)
    if value.dtype is torch.bool:
        value = value.to(torch.uint8)
    elif value.is_floating_point() and value.dtype not in (torch.float32, torch.float64):
        value = value.float()
    return value.contiguous().numpy()
