"""The example of products of groups of rows: PyTorch's own operator and a loop over the groups, values and gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from .test_kernels import compiled, example, on_device

grouped = example("kernels_grouped_matmul")
MODES = pytest.mark.parametrize("mode", [lambda fn: fn, compiled], ids=["eager", "compile"])


@pytest.fixture(autouse=True)
def _nothing_falls_back(fresh_dynamo: None) -> Any:
    yield
    assert not torch.neuron.get_fallback_ops()


def looped(x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """One product for each group; rows after the last are zeros."""
    parts, begin = [], 0
    for group, end in enumerate(offs.tolist()):
        parts.append(x[begin:end] @ weight[group])
        begin = end
    return torch.cat([*parts, x.new_zeros(x.shape[0] - begin, weight.shape[2])])


def agrees(mode: Any, x: Tensor, weight: Tensor, offs: Tensor, close: float) -> None:
    x, weight = x.requires_grad_(), weight.requires_grad_()
    expected = looped(x, weight, offs)
    upstream = torch.randn(expected.shape).to(x.dtype)
    expected_grads = torch.autograd.grad(expected, (x, weight), upstream)
    there = on_device(x), on_device(weight)
    got = mode(grouped.grouped_matmul)(*there, offs.to("neuron"))
    grads = torch.autograd.grad(got, there, on_device(upstream))
    for ours, theirs in zip((got, *grads), (expected, *expected_grads)):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours.cpu(), theirs, atol=close, rtol=close)


@MODES
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 2e-5), (torch.bfloat16, 4e-2)], ids=str)
def test_values_and_gradients_are_those_of_a_loop(mode, dtype, close):
    torch.manual_seed(0)
    # Blocks of 32 rows: a group within one, an empty one, one over three blocks, and rows that belong to none.
    ends = torch.tensor([5, 5, 90, 96 - 3], dtype=torch.int32)
    agrees(mode, torch.randn(96, 8).to(dtype), torch.randn(4, 8, 6).to(dtype), ends, close)
    # Strides that do not nest, and the same shapes with other groups: nothing is compiled anew.
    ends = torch.tensor([0, 96, 96, 96], dtype=torch.int32)
    agrees(mode, torch.randn(8, 96).to(dtype).t(), torch.randn(4, 6, 8).to(dtype).transpose(1, 2), ends, close)


@pytest.mark.parametrize("sizes", [(0, 4, 3, 2), (7, 0, 3, 2), (7, 4, 0, 2), (7, 4, 3, 0)], ids=str)
def test_of_no_rows_columns_or_groups(sizes):
    rows, inner, columns, groups = sizes
    x, weight = torch.randn(rows, inner, device="neuron"), torch.randn(groups, inner, columns, device="neuron")
    offs = torch.full((groups,), rows, dtype=torch.int32, device="neuron")
    got = grouped.grouped_matmul(x.requires_grad_(), weight.requires_grad_(), offs)
    assert got.shape == (rows, columns)
    assert not got.any()
    got.sum().backward()
    assert x.grad.shape == x.shape
    assert not weight.grad.any()


def test_it_is_pytorchs_own_operator():
    x, weight = torch.randn(24, 16), torch.randn(3, 16, 8)
    offs = torch.tensor([8, 8, 24], dtype=torch.int32)
    expected = F.grouped_mm(x, weight, offs=offs)
    for device in ("cpu", "neuron"):
        got = grouped.grouped_matmul(x.to(device), weight.to(device), offs.to(device))
        torch.testing.assert_close(got.cpu(), expected, atol=2e-5, rtol=2e-5)


def test_second_derivatives():
    x = torch.randn(5, 3, dtype=torch.float64, device="neuron", requires_grad=True)
    weight = torch.randn(2, 3, 2, dtype=torch.float64, device="neuron", requires_grad=True)
    offs = torch.tensor([2, 4], dtype=torch.int32, device="neuron")
    assert torch.autograd.gradgradcheck(lambda x, w: grouped.grouped_matmul(x, w, offs), (x, weight))


def dense(model: Any, x: Tensor) -> Tensor:
    """Every expert on every token, of which a token takes the chosen ones."""
    weights, experts = model.router(x).softmax(-1).topk(model.chosen)
    made = torch.einsum("teh,ehw->tew", F.silu(torch.einsum("tw,ewh->teh", x, model.up)), model.down)
    return (weights[..., None] * made.gather(1, experts[..., None].expand(-1, -1, x.shape[1]))).sum(1)


@pytest.mark.parametrize("way", ["eager", "compile", "step"])
def test_a_mixture_of_experts_learns_what_a_dense_one_learns(way):
    torch.manual_seed(0)
    host = grouped.Experts(8, 6, experts=3)
    there = copy.deepcopy(host).to("neuron")
    theirs, ours = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (host, there))
    run = compiled(there) if way == "compile" else there
    step = torch.neuron.compile_step(there, lambda m, x: m(x).square().mean(), ours) if way == "step" else None
    for _ in range(3):
        x = torch.randn(10, 8)
        theirs.zero_grad()
        loss = dense(host, x).square().mean()
        loss.backward()
        theirs.step()
        if step is not None:
            got = step(x.to("neuron"))
        else:
            ours.zero_grad()
            got = run(x.to("neuron")).square().mean()
            got.backward()
            ours.step()
        torch.testing.assert_close(got.detach().cpu(), loss.detach(), atol=1e-5, rtol=1e-5)
    for mine, other in zip(there.parameters(), host.parameters()):
        torch.testing.assert_close(mine.cpu(), other, atol=1e-5, rtol=1e-4)
