"""Tiny computations with one right answer, at the edges of dtypes where devices are known to differ."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..evidence.probes import Canary
from .measure import Bench, said

_ROUNDED = [1 + 2**-9, 1 + 2**-8, 1 + 2**-7, 1 + 3 * 2**-8, 3.1415927, 0.001, 65504.0, 1 / 3]
_LONG = [2**31 + 5, 2**32, 3]


def canaries(bench: Bench) -> list[Canary]:
    """All of them, in the mode of `bench`. What the device raises and warns of is part of the answer."""
    return [
        *(_narrowing(bench, dtype) for dtype in (torch.bfloat16, torch.float16)),
        _long(bench),
        _double(bench),
        _denormals(bench),
        _histogram(bench),
    ]


def _run(bench: Bench, function: Callable[..., Any], *inputs: Tensor) -> tuple[list[str], str, list[str]]:
    """Values of the result written out, an error, and warnings. Floats are exact: ``repr`` of their float64 value."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if bench.backend is not None:
                torch._dynamo.reset()
                function = torch.compile(function, backend=bench.backend, dynamic=False)
            result = function(*(value.to(bench.device) for value in inputs))
            bench.wait()
            found = written(*(result if isinstance(result, tuple) else (result,)))
            return found, "", [str(w.message).splitlines()[0][:200] for w in caught]
        except Exception as error:  # whatever a backend raises is an answer
            return [], said(error), [str(w.message).splitlines()[0][:200] for w in caught]


def written(*results: Tensor) -> list[str]:
    """Values as text, exactly."""
    return [repr(value) for result in results for value in result.detach().cpu().reshape(-1).tolist()]


def _canary(
    bench: Bench, name: str, operation: str, function: Callable[..., Any], inputs: list[Tensor], without: list[str]
) -> Canary:
    expected = function(*inputs)
    found, error, warned = _run(bench, function, *inputs)
    return Canary(
        name=name,
        operation=operation,
        expected=written(*(expected if isinstance(expected, tuple) else (expected,))),
        found=found,
        without=without,
        error=error,
        warnings=warned,
    )


def _narrowing(bench: Bench, dtype: torch.dtype) -> Canary:
    """A round trip through a narrower type must round: a compiler that folds the two casts returns the input."""
    value = torch.tensor(_ROUNDED, dtype=torch.float32)
    name = str(dtype).removeprefix("torch.")
    return _canary(
        bench,
        f"narrowing({name})",
        f"float32 to {name} and back",
        lambda x: x.to(dtype).to(torch.float32),
        [value],
        without=written(value),
    )


def _long(bench: Bench) -> Canary:
    """64-bit integers above 2^31. ``without`` is what 32 bits make of them."""

    def arithmetic(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return a + 1, a * 2, a // 7, a.sum(), a.argmax(), b + 1

    a, b = torch.tensor(_LONG, dtype=torch.int64), torch.tensor([2**31 - 1], dtype=torch.int64)
    narrow = arithmetic(a.int(), b.int())
    truncated = [value.int() for value in narrow]
    operation = "int64 [2^31+5, 2^32, 3]: +1, *2, //7, sum, argmax; [2^31-1] + 1"
    return _canary(bench, "int64", operation, arithmetic, [a, b], without=written(*truncated))


def _double(bench: Bench) -> Canary:
    """float64 asked for. ``without`` is what float32 makes of it."""
    value = torch.tensor([1 + 2**-40, 1e-300, 16777217.0], dtype=torch.float64)
    without = written(value.float() - 1)
    return _canary(bench, "float64", "float64 [1+2^-40, 1e-300, 16777217] - 1", lambda x: x - 1, [value], without)


def _denormals(bench: Bench) -> Canary:
    """Numbers below the least normal one, doubled. ``without`` is what a device gives that takes them for zero."""
    value = torch.tensor([2.0**-126, 2.0**-128, 2.0**-149], dtype=torch.float32)
    without = written(torch.tensor([2.0**-125, 0.0, 0.0]))
    return _canary(bench, "denormals", "float32 x + x of [2^-126, 2^-128, 2^-149]", lambda x: x + x, [value], without)


def _histogram(bench: Bench) -> Canary:
    """A histogram of integers, which CPU kernels have for floating types only: the answer is known without them."""
    ids = torch.tensor([0, 2, 2, 3, 1, 2], dtype=torch.int32)
    found, error, warned = _run(bench, lambda x: torch.histc(x, bins=4, min=0, max=3).to(torch.int32), ids)
    return Canary(
        name="histc(int32)",
        operation="histc of int32 [0, 2, 2, 3, 1, 2] in 4 bins from 0 to 3",
        expected=["1", "1", "3", "1"],
        found=found,
        without=[],
        error=error,
        warnings=warned,
    )
