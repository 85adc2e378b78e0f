"""Arguments made of the values where pointwise operators go wrong, from an operator's schema alone."""

from __future__ import annotations

import itertools
from typing import Any

import torch

_FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.5, 3.7, 8.0, 0.1, 100.0, float("inf"), float("-inf"), float("nan")]
_SIGNED = [0, 1, -1, 2, -2, 3, 5, -7, 10, 100, 127, -128]
_UNSIGNED = [0, 1, 2, 3, 5, 10, 100, 127, 200, 255]
_COMPLEX = [0j, 1 + 0j, -1 + 0j, 1j, 0.5 - 0.25j, -2 + 3j, 3.5 + 0.1j]
_NUMBERS = {"float": (0.75, -2.0, 0.1), "int": (3, -2), "bool": (True,), "complex": (1.5 - 0.5j,)}


def values(dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.tensor([True, False])
    if dtype.is_complex:
        return torch.tensor(_COMPLEX, dtype=dtype)
    if dtype.is_floating_point:
        return torch.tensor(_FLOATS, dtype=dtype)
    return torch.tensor(_SIGNED if dtype.is_signed else _UNSIGNED, dtype=dtype)


def tensors(count: int, dtype: torch.dtype, *, nonzero_last: bool = False) -> list[torch.Tensor]:
    """`count` tensors that together hold every combination of values."""
    columns = [values(dtype)] * count
    if nonzero_last and not dtype.is_floating_point and not dtype.is_complex:
        columns[-1] = columns[-1][columns[-1] != 0]
    made = torch.cartesian_prod(*columns)
    columns = [made] if count == 1 else [made[:, i] for i in range(count)]
    # Whole vectors: ATen treats the elements that are left over by other code, with other answers for NaN.
    repeats = -(-columns[0].numel() // 64) * 64
    return [c[torch.arange(repeats) % c.numel()].contiguous() for c in columns]


def calls(op: torch._ops.OpOverload, dtype: torch.dtype) -> list[tuple[list[Any], dict[str, Any]]]:
    """Calls of `op` with grids in the place of tensors, one for each kind of number where it takes numbers."""
    arguments = [a for a in op._schema.arguments if not a.is_out]
    places = [a.name for a in arguments if str(a.type) in ("Tensor", "Optional[Tensor]")]
    divides = any(word in op._schema.name for word in ("div", "remainder", "fmod"))
    grid = dict(zip(places, tensors(len(places), dtype, nonzero_last=divides)))
    choices: list[list[Any]] = []
    for a in arguments:
        kind = str(a.real_type)
        if a.name == "mask":
            choices.append([grid[a.name] != 0])
        elif a.name == "value" and kind == "Tensor":
            choices.append([grid[a.name][-1]])
        elif a.name in grid:
            choices.append([grid[a.name]])
        elif kind in ("number", "Optional[number]", "float", "Optional[float]"):
            kinds = ["float"] if kind.endswith(("float", "float]")) else ["int", "float", "bool", "complex"]
            choices.append([n for k in kinds for n in _NUMBERS[k] if k in _allowed(dtype)])
        elif a.name == "rounding_mode":
            choices.append([None, "trunc", "floor"])
        elif a.name == "approximate":
            choices.append(["none", "tanh"])
        elif kind == "bool":
            choices.append([False, True])
        elif a.name in ("decimals", "n", "p"):
            choices.append([0, 1, 2])
        else:
            choices.append([a.default_value])
    found = []
    for chosen in itertools.product(*choices):
        positional = [v for a, v in zip(arguments, chosen) if not a.kwarg_only]
        keywords = {a.name: v for a, v in zip(arguments, chosen) if a.kwarg_only}
        found.append((positional, keywords))
    return found


def _allowed(dtype: torch.dtype) -> tuple[str, ...]:
    if dtype.is_complex:
        return ("int", "float", "complex")
    return ("int", "float") if dtype is not torch.bool else ("bool", "int", "float")
