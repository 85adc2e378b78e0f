"""Autocast and random numbers in compiled functions: the same as in eager execution, also where a checkpoint computes again."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.utils.checkpoint as checkpointing
from torch import nn
from torch.nn import functional as F

from .twins import close, compiled, randn

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def ones(*size: int, grad: bool = False) -> torch.Tensor:
    return torch.ones(*size, device="neuron", requires_grad=grad)


# --- autocast -----------------------------------------------------------------------------------------------------------


def _mixed(x, w):
    product = x @ w
    return product, product.sum(), torch.softmax(product, -1), product + x, F.linear(x, w), torch.addcmul(product, x, w)


# What CUDA's autocast gives, according to the lists in PyTorch's documentation.
_MIXED = [torch.bfloat16, torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float32]


def test_autocast_eager_inside_and_outside_agree():
    x, w = randn(4, 4).to("neuron"), randn(4, 4).to("neuron")

    def inside(x, w):
        with torch.autocast("neuron", dtype=torch.bfloat16):
            return _mixed(x, w)

    with torch.autocast("neuron", dtype=torch.bfloat16):
        eager, outside = _mixed(x, w), compiled(_mixed)(x, w)
    within = compiled(inside)(x, w)
    assert [t.dtype for t in eager] == _MIXED
    for results in (outside, within):
        for ours, theirs in zip(results, eager):
            assert ours.dtype == theirs.dtype
            close(ours.float(), theirs.float().cpu(), 1e-2)
    assert compiled(_mixed)(x, w)[0].dtype is torch.float32  # it was outside


def test_autocast_trains_and_leaves_doubles_and_whole_numbers_alone():
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("neuron")
    run = compiled(module)
    with torch.autocast("neuron", dtype=torch.bfloat16):
        result = run(ones(3, 4))
        assert result.dtype is torch.bfloat16
        assert (torch.ones(2, 2, dtype=torch.float64, device="neuron") @ ones(2, 2).double()).dtype is torch.float64
        assert torch.arange(3, device="neuron").sum().dtype is torch.int64
        with pytest.raises(RuntimeError, match="binary_cross_entropy.* unsafe to autocast"):
            F.binary_cross_entropy(ones(2), ones(2))
    result.float().sum().backward()
    assert module[0].weight.grad.dtype is torch.float32


# --- random numbers -----------------------------------------------------------------------------------------------------


def _draws(x):
    return F.dropout(x, 0.5), torch.rand_like(x), torch.randint(0, 9, (50,), device=x.device)


def test_a_graph_draws_what_eager_execution_draws():
    x, run = ones(50, grad=True), compiled(_draws)
    torch.manual_seed(5)
    eager = [_draws(x), _draws(x), torch.neuron.get_rng_state()]
    torch.manual_seed(5)
    graph = [run(x), run(x), torch.neuron.get_rng_state()]
    for ours, theirs in zip((*graph[0], *graph[1], graph[2]), (*eager[0], *eager[1], eager[2])):
        assert torch.equal(ours, theirs)
    assert not torch.equal(graph[0][0], graph[1][0])


def test_fork_rng_gives_the_stream_back():
    run, x = compiled(lambda x: F.dropout(x, 0.5)), ones(50)
    with torch.random.fork_rng(devices=[0], device_type="neuron"):
        inside = run(x)
    assert torch.equal(run(x), inside)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
def test_a_checkpoint_draws_the_same_mask_again(reentrant, outside):
    def dropped(a):
        return F.dropout(a * 1.0, 0.5)

    x = ones(64, grad=True)
    inner = compiled(dropped) if outside else dropped
    run = partial(checkpointing.checkpoint, inner, use_reentrant=reentrant)
    y = (run if outside else compiled(run))(x)
    torch.rand(1, device="neuron")
    y.sum().backward()
    assert set(y.tolist()) == {0.0, 2.0}
    assert torch.equal(x.grad, y.detach())


def test_checkpointed_layers_train_as_without_a_checkpoint():
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3)) for _ in range(2))).to("neuron")

    def function(x, saves):
        for layer in layers:
            x = layer(x) if saves else checkpointing.checkpoint(layer, x, use_reentrant=False)
        return x

    x, seen = randn(4, 8).to("neuron"), []
    for run, saves in ((function, True), (compiled(function), True), (compiled(function), False)):
        layers.zero_grad()
        torch.manual_seed(3)
        y = run(x, saves)
        y.square().sum().backward()
        seen.append((y.detach().cpu(), layers[0][0].weight.grad.cpu()))
    for y, grad in seen[1:]:
        torch.testing.assert_close(y, seen[0][0])
        torch.testing.assert_close(grad, seen[0][1])
