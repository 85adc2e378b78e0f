"""Compiled functions over random shapes, strides, dtypes and operators: what eager execution on the CPU gives."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from shakedown.neuron import events

from .programs import FLOATS, Program, programs, replay

# The same programs in every run, so that a second run finds their executables in the cache. To look for others:
# pytest --hypothesis-profile=..., or a larger number here without `derandomize`.
_FEW = settings(
    max_examples=10, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def on_device(hosts: Sequence[torch.Tensor], device: str = "neuron") -> list[torch.Tensor]:
    """`hosts` on the device with their strides and offsets: views of copies of their storages, which they share as before."""
    copies: dict[int, torch.Tensor] = {}
    made = []
    for host in hosts:
        storage = host.untyped_storage()
        if storage._cdata not in copies:
            copies[storage._cdata] = torch.empty(0, dtype=host.dtype).set_(storage).to(device, copy=True)
        made.append(copies[storage._cdata].as_strided(host.shape, host.stride(), host.storage_offset()))
    return made


def same(ours: torch.Tensor, theirs: torch.Tensor, what: str) -> None:
    assert ours.dtype is theirs.dtype, what
    assert ours.shape == theirs.shape, what
    # float64 results may come from float32 ones.
    tolerance = {torch.bfloat16: 3e-2, torch.float32: 1e-5, torch.float64: 1e-5}.get(theirs.dtype, 0.0)
    torch.testing.assert_close(
        ours.detach().cpu(),
        theirs.detach(),
        rtol=tolerance,
        atol=tolerance,
        equal_nan=True,
        msg=lambda m: f"{what}: {m}",
    )


def strides(tensor: torch.Tensor) -> list[int]:
    """Those that mean something: the stride of a dimension of size 1 is PyTorch's meta kernels' choice in a graph."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape) if size > 1 and tensor.numel()]


def agrees(program: Program, backend: str, inputs: Sequence[torch.Tensor]) -> None:
    """The compiled program on `inputs` gives what eager execution on the CPU gives, and leaves in them what that leaves."""
    host = program.make()
    theirs = replay(program, host)
    torch._dynamo.reset()
    ours = torch.compile(lambda *given: replay(program, given), backend=backend, dynamic=False, fullgraph=True)(*inputs)
    for number, (one, other) in enumerate(zip(ours, theirs)):
        same(one, other, f"step {number}")
        assert strides(one) == strides(other), f"step {number}"
    for number, (one, other) in enumerate(zip(inputs, host)):
        same(one, other, f"input {number}")


@_FEW
@given(programs())
def test_results_and_written_inputs_are_those_of_the_cpu(program: Program) -> None:
    events.clear()
    try:
        agrees(program, "neuron", on_device(program.make()))
    except Exception:
        if not program.aliased:
            raise
        # Views of inputs that share memory are AOTAutograd's to make again, and it cannot always: then not on the CPU either.
        with pytest.raises(Exception):  # noqa: B017
            agrees(program, "aot_eager", on_device(program.make(), "cpu"))
    assert events.names("fallback") == []


@_FEW
@given(programs(dtypes=FLOATS[:2], most=6))
def test_gradients_are_those_of_the_cpu(program: Program) -> None:
    def step(*inputs: torch.Tensor) -> torch.Tensor:
        results = replay(program, tuple(one * 1 for one in inputs))  # leaves may not be written to
        kept = [one.tanh().sum() for one in results if one.is_floating_point()]
        return torch.stack([one.double() for one in kept]).sum() if kept else inputs[0].sum()

    host = [one.clone().requires_grad_() for one in program.make()]
    device = [one.detach().to("neuron").requires_grad_() for one in host]
    try:
        theirs = step(*host)
        if not theirs.requires_grad:
            return
        expected = torch.autograd.grad(theirs, host, allow_unused=True)
    except RuntimeError:
        return  # written to in place after it was saved for the backward pass
    torch._dynamo.reset()
    ours = torch.compile(step, backend="neuron", dynamic=False, fullgraph=True)(*device)
    same(ours, theirs, "the sum")
    for one, other in zip(torch.autograd.grad(ours, device, allow_unused=True), expected):
        assert (one is None) == (other is None)
        if other is not None:
            same(one, other, "a gradient")


def test_a_result_that_is_a_view_of_a_written_input_lies_where_it_should() -> None:
    """The inputs share memory, so AOTAutograd makes the result from the offset of the graph's own."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.copy_(y), x + 1

    torch._dynamo.reset()
    base = torch.arange(5, device="neuron")
    x = base.as_strided((2,), (2,), 1)
    result, other = torch.compile(function, backend="neuron", dynamic=False, fullgraph=True)(x, x.transpose(0, -1))
    assert (result.tolist(), other.tolist()) == ([1, 3], [2, 4])
    assert (result.storage_offset(), result.untyped_storage()) == (1, base.untyped_storage())
