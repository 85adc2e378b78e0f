"""The same computation on the CPU and on the device: values, gradients, and no operator run on the CPU by fallback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shakedown.conformance.compare import compare
from shakedown.conformance.databases import moved
from shakedown.neuron import events

LAYOUTS = ("contiguous", "transposed", "offset", "strided", "expanded")


def example(dtype: torch.dtype, *size: int, seed: int = 0, low: int = -4, high: int = 5) -> torch.Tensor:
    """Distinct-looking values that every dtype holds exactly; both zeros for floats, both truths for booleans."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point or dtype.is_complex:
        quarters = torch.randint(4 * low, 4 * high, size, generator=generator) / 4
        return quarters.to(dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, size, generator=generator).bool()
    return torch.randint(0 if dtype is torch.uint8 else low, high, size, generator=generator).to(dtype)


def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """`tensor` (or, expanded, its first slice repeated) over memory of another layout."""
    if layout == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "offset":
        return torch.cat([tensor.new_zeros(3), tensor.reshape(-1)])[3:].view(tensor.shape)
    if layout == "strided" and tensor.dim():
        wide = tensor.new_zeros(*tensor.shape[:-1], 2 * tensor.shape[-1])
        wide[..., ::2] = tensor
        return wide[..., ::2]
    if layout == "expanded" and tensor.dim():
        return tensor[:1].expand(tensor.shape)
    return tensor


def agree(fn: Callable[..., Any], *args: Any, gradients: bool = False) -> None:
    """Hold ``fn(*args)`` on the device to the CPU's answer.

    Raises:
        AssertionError: values, dtypes, sizes or gradients differ, an operator fell back, or nothing ran on the device.
    """
    if gradients:
        args = tuple(
            a.detach().requires_grad_() if isinstance(a, torch.Tensor) and a.dtype.is_floating_point else a
            for a in args
        )
    expected = fn(*args)
    there = moved(args)
    events.clear()
    actual = fn(*there)
    outputs = _floats(actual)
    grads: Any = []
    if gradients:
        seeds = [example(t.dtype, *t.shape, seed=5) for t in _floats(expected)]
        wanted = _gradients(_floats(expected), args, seeds)
        grads = _gradients(outputs, there, moved(seeds))
    seen = events.snapshot()
    assert not [(r["name"], r["detail"]) for r in seen if r["kind"] == "fallback"]
    assert [r for r in seen if r["kind"] == "execute"], "nothing ran on the device"
    problems = [compare(actual, expected).problem]
    if gradients:
        problems.append(compare(grads, wanted).problem)
    assert not any(problems), problems


def _floats(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [v for v in values if isinstance(v, torch.Tensor) and v.requires_grad]


def _gradients(outputs: list[torch.Tensor], inputs: Any, seeds: list[torch.Tensor]) -> list[torch.Tensor]:
    wanted = [i for i in inputs if isinstance(i, torch.Tensor) and i.requires_grad]
    found = torch.autograd.grad(outputs, wanted, seeds, allow_unused=True)
    return [g if g is not None else torch.zeros_like(i) for g, i in zip(found, wanted)]
