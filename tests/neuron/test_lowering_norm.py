"""Normalisation and softmax against the CPU."""

import pytest
import torch

from shakedown.neuron import events

from .agreement import LAYOUTS, agree, example, laid_out

pytestmark = pytest.mark.rotating(2, least=3)

F = torch.nn.functional
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
C = 6

NORMS = {
    "layer norm": (lambda x, w, b: F.layer_norm(x, (4,), w[:4], b[:4]), (2, C, 4)),
    "layer norm of two dimensions": (lambda x, w, b: F.layer_norm(x, (C, 4)), (2, C, 4)),
    "layer norm without bias": (lambda x, w, b: F.layer_norm(x, (4,), w[:4]), (2, C, 4)),
    "layer norm of nothing": (lambda x, w, b: F.layer_norm(x, (4,), w[:4], b[:4]), (0, 4)),
    "rms norm": (lambda x, w, b: F.rms_norm(x, (4,), w[:4]), (2, C, 4)),
    "rms norm without weight": (lambda x, w, b: F.rms_norm(x, (4,), eps=1e-3), (2, C, 4)),
    "group norm": (lambda x, w, b: F.group_norm(x, 3, w, b), (2, C, 4, 3)),
    "group norm without weight": (lambda x, w, b: F.group_norm(x, 2), (2, C, 4)),
    "batch norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (4, C, 3)),
    "batch norm of rows": (lambda x, w, b: F.batch_norm(x, None, None, training=True), (5, C)),
    "batch norm of images": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (2, C, 3, 4)),
    "instance norm": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), (2, C, 3, 4)),
    "local response norm": (lambda x, w, b: F.local_response_norm(x, 3), (2, C, 4)),
    "softmax": (lambda x, w, b: x.softmax(1), (2, C, 4)),
    "log softmax": (lambda x, w, b: x.log_softmax(-1), (2, C, 4)),
    "softmin": (lambda x, w, b: F.softmin(x, 0), (C, 4)),
    "softmax of one": (lambda x, w, b: x.softmax(0), ()),
    "softmax of nothing": (lambda x, w, b: x.softmax(1), (0, 4)),
    "softmax to float32": (lambda x, w, b: x.softmax(1, dtype=torch.float32), (2, C)),
}


@pytest.mark.covering("torch.float32")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_norms(name, dtype):
    fn, size = NORMS[name]
    if dtype is torch.bfloat16 and name in ("instance norm", "layer norm", "layer norm without bias"):
        pytest.skip("rounded statistics, and sums of the CPU in bfloat16: test_floating.py judges these by float64")
    x, w, b = example(dtype, *size), example(dtype, C, seed=1) / 4 + 1, example(dtype, C, seed=2)
    if "layer norm of nothing" in name:
        return agree(fn, x, w, b)
    agree(fn, x, w, b, gradients=True)  # those that ignore w and b have zero gradients on both sides
    return None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    x = laid_out(example(torch.float32, 4, 4, 4), layout)
    agree(lambda x: F.layer_norm(x, (4,)), x)
    agree(lambda x: F.batch_norm(x, None, None, training=True), x)
    agree(lambda x: x.softmax(0), x)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics(dtype, affine, momentum):
    """They move in training, stay in evaluation, and the gradients of both are the CPU's."""
    layers = [torch.nn.BatchNorm2d(C, affine=affine, momentum=momentum) for _ in range(2)]
    layers[1] = layers[1].to("neuron")
    x = example(dtype, 4, C, 3, 2)
    rtol = 2e-2 if dtype is torch.bfloat16 else 1e-4
    for training in (True, True, False):
        results = []
        events.clear()
        for layer, device in zip(layers, ("cpu", "neuron")):
            layer.train(training)
            v = x.to(device, copy=True).requires_grad_()
            y = layer(v)
            (g,) = torch.autograd.grad(y.square().sum(), v)
            results.append((y.detach().cpu(), g.cpu(), layer.running_mean.cpu(), layer.running_var.cpu()))
        for ours, theirs in zip(*reversed(results)):
            assert ours.dtype == theirs.dtype
            torch.testing.assert_close(ours, theirs, rtol=rtol, atol=4 * rtol)
        assert not torch.neuron.get_fallback_ops()
    assert layers[1].num_batches_tracked.item() == 2


def test_evaluation_leaves_statistics_alone():
    layer = torch.nn.BatchNorm1d(C).to("neuron").eval()
    before = layer.running_mean.clone()
    layer(torch.randn(4, C, device="neuron"))
    assert torch.equal(layer.running_mean.cpu(), before.cpu())


def test_functional_batch_norms():
    """The forms that captured graphs hold."""
    aten = torch.ops.aten
    x, w, b = example(torch.float32, 4, C, 3), example(torch.float32, C, seed=1), example(torch.float32, C, seed=2)
    mean, var = example(torch.float32, C, seed=3), example(torch.float32, C, seed=4, low=1)
    agree(lambda *a: aten._native_batch_norm_legit_functional(*a, True, 0.1, 1e-5), x, w, b, mean, var)
    agree(lambda *a: aten._native_batch_norm_legit.no_stats(*a, True, 0.1, 1e-5), x, w, b)
    agree(lambda *a: aten._batch_norm_with_update_functional(*a, 0.1, 1e-5)[:3], x, w, b, mean, var)
    agree(lambda *a: aten._native_batch_norm_legit_no_training(*a, 0.1, 1e-5)[0], x, w, b, mean, var)
    agree(lambda *a: aten._batch_norm_no_update(*a, 0.1, 1e-5)[0], x, w, b, mean, var)


def test_rms_norm_is_one_operator_each_way():
    x = torch.randn(3, 8, device="neuron", requires_grad=True)
    w = torch.randn(8, device="neuron", requires_grad=True)
    events.clear()
    y = F.rms_norm(x, (8,), w)
    assert torch.neuron.get_executed_ops() == ["aten::_fused_rms_norm"]
    events.clear()
    torch.autograd.grad(y, (x, w), y.detach())
    assert torch.neuron.get_executed_ops() == ["aten::_fused_rms_norm_backward"]


def test_twice_differentiated():
    def fn(norm):
        def gradient(x):
            (g,) = torch.autograd.grad(norm(x).pow(3).sum(), x, create_graph=True)
            return g.square().sum()

        return gradient

    x = example(torch.float64, 3, 5)
    for norm in (lambda x: F.layer_norm(x, (5,)), lambda x: F.rms_norm(x, (5,)), lambda x: x.softmax(1)):
        agree(fn(norm), x, gradients=True)


def test_weight_norm():
    v, g = example(torch.float32, 4, 3) + 0.125, example(torch.float32, 4, 1, seed=1)
    agree(lambda v, g: torch._weight_norm(v, g, 0), v, g, gradients=True)
    agree(lambda v, g: torch.ops.aten._weight_norm_interface(v, g, 0), v, g)


def test_infinite_scores():
    x = torch.tensor([[0.0, -torch.inf, 1.0], [-torch.inf] * 3, [torch.inf, 0.0, 1.0], [torch.nan, 0.0, 1.0]])
    agree(lambda x: x.softmax(1), x)
    agree(lambda x: x.log_softmax(1), x)
    agree(lambda x: torch.ops.aten._safe_softmax(x, 1), x)
