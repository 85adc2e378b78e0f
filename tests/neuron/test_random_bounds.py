"""Ranges of whole numbers that a dtype does not hold are refused as on the CPU, and those that it holds are drawn here."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

RANGES = [(0, 2), (0, 256), (-129, 3), (0, 300), (0, 70000), (5, 5)]
CALLS: dict[str, Callable[..., Any]] = {
    "randint": lambda low, high, dtype, device: torch.randint(low, high, (3,), dtype=dtype, device=device),
    "randint_like": lambda low, high, dtype, device: torch.randint_like(
        torch.empty(3, device=device), low, high, dtype=dtype
    ),
    "random_": lambda low, high, dtype, device: torch.empty(3, dtype=dtype, device=device).random_(low, high),
    "random_ to": lambda low, high, dtype, device: torch.empty(3, dtype=dtype, device=device).random_(high),
    "randperm": lambda low, high, dtype, device: torch.randperm(min(high, 2050), dtype=dtype, device=device),
}


def outcome(call: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a dtype does not hold every number of a range
        try:
            made = call(*args)
        except RuntimeError as error:
            return type(error), str(error)
    return made.dtype, made.shape


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.bool, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CALLS)
def test_a_range_fits_into_a_dtype_as_on_the_cpu(name, dtype):
    for low, high in RANGES:
        if name == "randperm" and dtype is torch.bool:
            continue
        expected = outcome(CALLS[name], low, high, dtype, "cpu")
        if expected[0] is RuntimeError and "not implemented" in expected[1]:
            continue
        assert outcome(CALLS[name], low, high, dtype, "neuron") == expected, (low, high)
    assert not torch.neuron.get_fallback_ops()
