"""A kernel's arguments as a list of tensors and one text, so that any call fits the schema of one operator.

The text is JSON in which a tensor is its number in the list. It says everything else of the call, so it can be a part of a key,
and of a graph that another process reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..dtypes import to_numpy, to_torch


def encode(kernel: str, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[torch.Tensor], str]:
    """The tensors of a call of `kernel`, and the text.

    Raises:
        TypeError: an argument is neither tensor nor plain value, or there is no tensor.
    """
    tensors: list[torch.Tensor] = []

    def plain(value: Any, where: str) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return {"tensor": len(tensors) - 1}
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, torch.SymInt):
            return int(value)
        if isinstance(value, torch.SymFloat):
            return float(value)
        if type(value) is list:
            return [plain(v, where) for v in value]
        if isinstance(value, tuple):
            return {"tuple": [plain(v, where) for v in value]}
        if type(value) is dict:
            return {"dict": [[plain(k, where), plain(v, where)] for k, v in value.items()]}
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        dtype = _dtype(value)
        if dtype is not None:
            return {"dtype": str(dtype).removeprefix("torch.")}
        raise TypeError(
            f"kernel {kernel}: argument {where} is a {type(value).__name__}; a kernel takes tensors, and plain values "
            "(None, bool, int, float, complex, str, a dtype, or a list, tuple or dict of them) as constants"
        )

    text = json.dumps(
        [
            [plain(v, str(i + 1)) for i, v in enumerate(args)],
            {n: plain(v, repr(n)) for n, v in kwargs.items()},
        ],
        separators=(",", ":"),
    )
    if not tensors:
        raise TypeError(f"kernel {kernel}: no argument is a tensor, so it is not known where to run it")
    return tensors, text


def _dtype(value: Any) -> torch.dtype | None:
    if isinstance(value, torch.dtype):
        return value
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return to_torch(value)
    given = getattr(value, "dtype", None)  # jnp.float32 is an object that says which dtype it makes
    return to_torch(given) if callable(value) and isinstance(given, np.dtype) else None


def decode(text: str, arrays: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """(args, kwargs) of :func:`encode`'s call, with `arrays` in the place of its tensors; dtypes are numpy's."""

    def value(plain: Any) -> Any:
        if isinstance(plain, list):
            return [value(p) for p in plain]
        if isinstance(plain, dict):
            ((kind, inner),) = plain.items()
            return _VALUES[kind](inner, value, arrays)
        return plain

    args, kwargs = json.loads(text)
    return [value(a) for a in args], {n: value(a) for n, a in kwargs.items()}


_VALUES: dict[str, Callable[[Any, Callable[[Any], Any], Sequence[Any]], Any]] = {
    "tensor": lambda inner, value, arrays: arrays[inner],
    "tuple": lambda inner, value, arrays: tuple(map(value, inner)),
    "dict": lambda inner, value, arrays: {value(k): value(v) for k, v in inner},
    "complex": lambda inner, value, arrays: complex(*inner),
    "dtype": lambda inner, value, arrays: to_numpy(getattr(torch, inner)),
}


class Spec:
    """What is said of an array in place of its elements: ``float32[4, 8]``."""

    def __init__(self, array: Any) -> None:
        name = str(array.dtype).removeprefix("torch.")
        self.text = f"{name}[{', '.join(map(str, array.shape))}]"

    def __repr__(self) -> str:
        return self.text


def described(names: Sequence[str], text: str, arrays: Sequence[Any]) -> str:
    """The call for people: ``x=float32[4, 8], eps=1e-06``. `names` are the kernel's parameters, as far as they are known."""
    args, kwargs = decode(text, list(map(Spec, arrays)))
    given = [f"{names[i]}={a!r}" if i < len(names) else repr(a) for i, a in enumerate(args)]
    return ", ".join([*given, *(f"{n}={a!r}" for n, a in kwargs.items())])
