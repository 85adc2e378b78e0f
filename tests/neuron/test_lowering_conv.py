"""Convolutions against the CPU, values and gradients."""

import itertools

import pytest
import torch

from .agreement import LAYOUTS, agree, example, laid_out

pytestmark = pytest.mark.rotating(2, least=3)

F = torch.nn.functional

CASES = {
    "plain": (F.conv2d, (2, 4, 6, 7), (6, 4, 3, 3), {}),
    "stride that leaves a rest": (F.conv2d, (2, 4, 8, 7), (6, 4, 3, 2), {"stride": 3}),
    "padding": (F.conv2d, (2, 4, 5, 5), (6, 4, 3, 3), {"padding": (1, 2)}),
    "dilation": (F.conv2d, (2, 4, 9, 9), (6, 4, 3, 3), {"dilation": (2, 3), "padding": 2}),
    "groups": (F.conv2d, (2, 4, 6, 6), (6, 2, 3, 3), {"groups": 2, "stride": 2, "padding": 1}),
    "depthwise": (F.conv2d, (2, 4, 6, 7), (4, 1, 3, 3), {"groups": 4, "padding": 1}),
    "depthwise with stride": (F.conv2d, (2, 4, 8, 7), (8, 1, 3, 2), {"groups": 4, "stride": 2, "dilation": 2}),
    "pointwise": (F.conv2d, (2, 4, 5, 6), (6, 4, 1, 1), {}),
    "pointwise with stride": (F.conv2d, (2, 4, 5, 6), (6, 4, 1, 1), {"stride": 2, "padding": 1}),
    "kernel of the input's size": (F.conv2d, (2, 4, 5, 6), (6, 4, 5, 6), {}),
    "same": (F.conv2d, (2, 4, 5, 6), (6, 4, 4, 3), {"padding": "same"}),
    "without batch": (F.conv2d, (4, 5, 6), (6, 4, 3, 3), {}),
    "empty batch": (F.conv2d, (0, 4, 5, 6), (6, 4, 3, 3), {}),
    "one dimension": (F.conv1d, (2, 4, 9), (6, 4, 3), {"stride": 2, "padding": 1}),
    "causal depthwise": (F.conv1d, (2, 6, 9), (6, 1, 4), {"groups": 6, "padding": 3}),
    "three dimensions": (F.conv3d, (1, 2, 5, 4, 6), (4, 2, 2, 3, 2), {"padding": 1}),
    "transposed": (F.conv_transpose2d, (2, 4, 5, 4), (4, 6, 3, 3), {}),
    "transposed with stride": (F.conv_transpose2d, (2, 4, 5, 4), (4, 6, 3, 2), {"stride": 2, "padding": 1}),
    "transposed with output padding": (
        F.conv_transpose2d,
        (2, 4, 4, 4),
        (4, 6, 3, 3),
        {"stride": 3, "padding": 2, "output_padding": (2, 1), "dilation": (3, 2)},
    ),
    "output padding beyond the stride": (
        F.conv_transpose2d,
        (2, 4, 4, 4),
        (4, 6, 3, 3),
        {"stride": 1, "output_padding": 1, "dilation": 2},
    ),
    "transposed in groups": (F.conv_transpose2d, (2, 4, 5, 4), (4, 3, 3, 3), {"groups": 2, "stride": 2}),
    "transposed depthwise": (F.conv_transpose2d, (2, 4, 5, 4), (4, 1, 3, 3), {"groups": 4, "stride": 2}),
    "transposed, one dimension": (F.conv_transpose1d, (2, 4, 5), (4, 6, 3), {"stride": 2}),
    "transposed, three dimensions": (F.conv_transpose3d, (1, 2, 3, 4, 3), (2, 3, 2, 2, 3), {"padding": 1}),
}


def arguments(name, dtype, bias):
    fn, x, w, named = CASES[name]
    transposed = "transpose" in fn.__name__
    channels = w[1] * named.get("groups", 1) if transposed else w[0]
    args = [example(dtype, *x, low=-2, high=3), example(dtype, *w, seed=1, low=-2, high=3)]
    return args + ([example(dtype, channels, seed=2)] if bias else []), fn, named


@pytest.mark.covering("True")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_convolutions(name, bias):
    args, fn, named = arguments(name, torch.float32, bias)
    agree(lambda *a: fn(*a, **named), *args, gradients=True)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["plain", "groups", "depthwise", "transposed"])
def test_dtypes(name, dtype):
    """Small values, so that products and sums are exact and the CPU's own rounding in half types does not show."""
    args, fn, named = arguments(name, dtype, True)
    agree(lambda *a: fn(*a, **named), *(a.sign() for a in args), gradients=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    args, fn, named = arguments("padding", torch.float32, True)
    agree(lambda *a: fn(*a, **named), *(laid_out(a, layout) for a in args))


def test_channels_last():
    args, fn, named = arguments("padding", torch.float32, True)
    agree(lambda *a: fn(*a, **named), args[0].to(memory_format=torch.channels_last), *args[1:], gradients=True)


@pytest.mark.covering
@pytest.mark.parametrize("wanted", [w for w in itertools.product((0, 1), repeat=3) if any(w)], ids=str)
@pytest.mark.parametrize("name", ["plain", "transposed"])
def test_only_what_needs_a_gradient(name, wanted):
    args, fn, named = arguments(name, torch.float32, True)
    found = []
    for device in ("cpu", "neuron"):
        there = [a.clone().to(device).requires_grad_(bool(w)) for a, w in zip(args, wanted)]
        fn(*there, **named).square().sum().backward()
        found.append([None if a.grad is None else a.grad.cpu() for a in there])
    for ours, theirs in zip(*reversed(found)):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


def test_twice_differentiated():
    def fn(x, w):
        (g,) = torch.autograd.grad(F.conv2d(x, w, padding=1).square().sum(), w, create_graph=True)
        return g.square().sum()

    agree(fn, example(torch.float64, 1, 2, 4, 4), example(torch.float64, 3, 2, 3, 3, seed=1), gradients=True)


def test_mixed_dtypes_are_refused():
    x, w = torch.zeros(1, 2, 4, 4, device="neuron"), torch.zeros(2, 2, 3, 3, device="neuron").double()
    with pytest.raises(RuntimeError, match="expected scalar type"):
        F.conv2d(x, w)
