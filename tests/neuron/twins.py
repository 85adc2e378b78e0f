"""One function twice: as it is on the CPU, and compiled on the device; results, what was written, and gradients must agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shakedown.neuron import events


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(fn, backend="neuron", fullgraph=options.pop("fullgraph", True), **options)


def randn(*size: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*size, requires_grad=grad)


def close(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(
        ours.detach().cpu().resolve_conj(), theirs.detach().resolve_conj(), rtol=tolerance, atol=tolerance
    )


def _leaves(tree: Any) -> list[Any]:
    return list(tree) if isinstance(tree, (list, tuple)) else [tree]


def on_device(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().to("neuron").requires_grad_(value.requires_grad)


def agree(fn: Callable[..., Any], *inputs: Any, tolerance: float = 1e-5, whole: bool = True) -> None:
    """Compare values, dtypes, sizes, strides, who requires a gradient, gradients, and what became of the inputs.

    `whole`: everything must run in graphs of the device, and nothing on the CPU.
    """
    torch._dynamo.reset()
    mine = [on_device(v) for v in inputs]
    events.clear()
    actual = compiled(fn, fullgraph=whole)(*mine)
    if whole:
        kinds = {name.partition("::")[0] for name in events.names("execute")}
        assert kinds <= {"graph"}, events.names("execute")
        assert not events.names("fallback")
    # An operator on the CPU may write its inputs, so theirs are copies too.
    given = [v.detach().clone().requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v for v in inputs]
    expected = fn(*given)
    pairs = list(zip(_leaves(actual), _leaves(expected), strict=True))
    for ours, theirs in pairs:
        if not isinstance(theirs, torch.Tensor):
            assert ours == theirs
            assert type(ours) is type(theirs)
            continue
        assert ours.device.type == "neuron"
        assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        assert ours.requires_grad == theirs.requires_grad
        close(ours, theirs, tolerance)
    for number in (0, 1):
        wanting = [p[number] for p in pairs if isinstance(p[number], torch.Tensor) and p[number].requires_grad]
        if wanting:
            sum(t.abs().square().sum() for t in wanting).backward()
    for ours, theirs in zip(mine, given):
        if not isinstance(theirs, torch.Tensor):
            continue
        close(ours, theirs, tolerance)
        assert (ours.grad is None) == (theirs.grad is None)
        if theirs.grad is not None:
            close(ours.grad, theirs.grad, tolerance)
