"""Operators under names that few programs use: against the CPU, without a fallback."""

import pytest
import torch

from shakedown.neuron import events

from .agreement import agree, example

pytestmark = pytest.mark.rotating(2, least=3)

C = torch._C._nn
aten = torch.ops.aten


def matrix(*size, **options):
    return example(torch.float32, *size, **options)


CONVOLUTIONS = {
    "by columns": (lambda x, w: C.thnn_conv2d(x, w, (3, 3), None, 2, 1), (2, 2, 6, 6), (3, 2, 3, 3)),
    "by columns, in space": (lambda x, w: C.slow_conv3d(x, w, (3, 3, 3), None, 1, 1), (1, 2, 5, 5, 5), (3, 2, 3, 3, 3)),
    "dilated": (lambda x, w: C.slow_conv_dilated2d(x, w, (3, 3), None, 1, 1, 2), (1, 2, 6, 6), (3, 2, 3, 3)),
    "dilated, in space": (
        lambda x, w: C.slow_conv_dilated3d(x, w, (3, 3, 3), None, 1, 1, 2),
        (1, 2, 6, 6, 6),
        (3, 2, 3, 3, 3),
    ),
    "transposed": (lambda x, w: C.slow_conv_transpose2d(x, w, (3, 3), None, 2, 1, 1), (1, 2, 5, 5), (2, 4, 3, 3)),
    "transposed, without batch": (lambda x, w: C.slow_conv_transpose2d(x, w, (3, 3)), (2, 5, 5), (2, 4, 3, 3)),
    "transposed, in space": (
        lambda x, w: C.slow_conv_transpose3d(x, w, (3, 3, 3), None, 2, 1, 1),
        (1, 2, 4, 4, 4),
        (2, 4, 3, 3, 3),
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    fn, x, w = CONVOLUTIONS[name]
    agree(fn, matrix(*x), matrix(*w, seed=1), gradients=name != "transposed, without batch")


CALLS = {
    "int8 product": (
        torch._int_mm,
        torch.randint(-90, 90, (4, 32), dtype=torch.int8),
        torch.ones(32, 8).to(torch.int8),
    ),
    "combination": (torch._compute_linear_combination, matrix(4, 2, 3), matrix(5, 4, seed=1)),
    "projections": (lambda x, b: aten._transform_bias_rescale_qkv(x, b, 2), matrix(2, 3, 24), matrix(24, seed=1)),
    "sum and rectifier": (lambda x, y: aten._add_relu(x, y, alpha=2), matrix(3, 4), matrix(3, 4, seed=1)),
    "extremes": (lambda x: aten._aminmax(x), matrix(3, 4)),
    "extremes of rows": (lambda x: aten._aminmax.dim(x, 1, True), matrix(3, 4)),
    "hash": (torch.hash_tensor, matrix(3, 4)),
    "hash of rows": (lambda x: torch.hash_tensor(x, dim=1, keepdim=True), matrix(3, 4)),
    "hash of integers": (torch.hash_tensor, torch.arange(-5, 20)),
    "hash of half precision": (torch.hash_tensor, matrix(3, 4).bfloat16()),
    "shift to the left": (lambda x: x.clone().__ilshift__(2), torch.arange(9)),
    "shift to the right": (lambda x: x.clone().__irshift__(x), torch.arange(9)),
    "another storage": (lambda x: torch._lazy_clone(x).add_(1), matrix(3, 4)),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    fn, *args = CALLS[name]
    agree(fn, *args)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [0, 1, 2, 9])
def test_kaiser_windows(length, dtype):
    for options in ({}, {"periodic": False}, {"periodic": False, "beta": 3.0}):
        expected = torch.kaiser_window(length, dtype=dtype, **options)
        actual = torch.kaiser_window(length, dtype=dtype, device="neuron", **options)
        torch.testing.assert_close(actual.cpu(), expected)
    assert not torch.neuron.get_fallback_ops()


def test_given_outputs_of_factories():
    events.clear()
    whole = torch.empty(0, dtype=torch.int64, device="neuron")
    assert torch.equal(torch.randperm(7, out=whole).sort().values.cpu(), torch.arange(7))
    with pytest.warns(UserWarning, match="deprecated"):
        line = torch.range(1, 4, 0.5, out=torch.empty(0, device="neuron"))
    assert torch.equal(line.cpu(), torch.arange(1, 4.5, 0.5))
    assert not torch.neuron.get_fallback_ops()


def test_same_memory():
    x = torch.ones(3, 4, device="neuron")
    assert x.is_set_to(x.view(3, 4))
    assert not x.is_set_to(x.clone())
    assert not x.is_set_to(x.t())
    assert not torch.neuron.get_fallback_ops()


def test_forward_derivatives_of_gated_units():
    """By the product of gate and value, written out."""
    x, dx = matrix(3, 8), matrix(3, 8, seed=1)

    def gate(v):
        a, b = v.chunk(2, -1)
        return a * b.sigmoid()

    def slope(fn):
        return torch.func.grad(lambda v: fn(v).square().sum())

    here, there = (x, dx), (x.to("neuron"), dx.to("neuron"))
    unit = torch.nn.functional.glu
    events.clear()
    for wrap in (lambda fn: fn, slope):
        expected = torch.func.jvp(wrap(gate), (here[0],), (here[1],))
        actual = torch.func.jvp(wrap(unit), (there[0],), (there[1],))
        torch.testing.assert_close([a.cpu() for a in actual], list(expected))
    assert not torch.neuron.get_fallback_ops()
