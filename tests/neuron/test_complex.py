"""Complex numbers: gradients are conjugated where PyTorch conjugates them, conjugates may be lazy or written."""

import pytest
import torch

from shakedown.conformance.compare import compare
from shakedown.neuron import events

F = torch.nn.functional


def values(*size, seed=0, dtype=torch.complex64):
    return torch.randn(size, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def agree(fn, *tensors, gradients=True):
    """Hold ``fn(*tensors)`` and its gradients on the device to the CPU's; nothing may fall back."""
    results = []
    for device in ("neuron", "cpu"):
        leaves = [t.detach().clone().to(device).requires_grad_(gradients) for t in tensors]
        events.clear()
        out = fn(*leaves)
        seed = values(*out.shape, seed=9).to(out.dtype) if out.is_complex() else values(*out.shape, seed=9).real
        results.append([out, *(torch.autograd.grad(out, leaves, seed.to(device)) if gradients else ())])
        assert not [(r["name"], r["detail"]) for r in events.snapshot() if r["kind"] == "fallback"]
    assert not compare(*results).problem


# Operators whose gradient is an operator of ours: each must conjugate what it multiplies by.
DIFFERENTIATED = {
    "linear": (F.linear, (3, 4), (5, 4), (5,)),
    "linear of a vector": (F.linear, (4,), (5, 4), (5,)),
    "linear by a vector": (F.linear, (2, 3, 4), (4,)),
    "linear of a vector by a vector": (F.linear, (4,), (4,)),
    "conv1d": (F.conv1d, (2, 3, 6), (4, 3, 2), (4,)),
    "conv2d in groups": (lambda x, w: F.conv2d(x, w, stride=2, groups=2), (1, 4, 6, 5), (4, 2, 3, 2)),
    "conv_transpose1d": (F.conv_transpose1d, (2, 3, 6), (3, 4, 2), (4,)),
    "addmm": (torch.addmm, (3, 5), (3, 4), (4, 5)),
    "baddbmm": (torch.baddbmm, (2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "tanh": (torch.tanh, (3, 4)),
    "sigmoid": (torch.sigmoid, (3, 4)),
    "prod": (lambda x: x.prod(0), (3, 4)),
    "cumprod": (lambda x: x.cumprod(1), (3, 4)),
    "std": (lambda x: x.std(1), (3, 4)),
    "norm": (lambda x: torch.linalg.vector_norm(x, 3, dim=1), (3, 4)),
    "div": (torch.div, (3, 4), (3, 4)),
    "pow": (torch.pow, (3, 4), (3, 4)),
}


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients(name):
    fn, *sizes = DIFFERENTIATED[name]
    agree(fn, *(values(*size, seed=n) for n, size in enumerate(sizes)))


def test_linear_by_a_vector_of_reals():
    agree(F.linear, values(2, 3, 4).real.contiguous(), values(4, seed=1).real.contiguous())


LAZY = {
    "conj": lambda x: x.conj(),
    "imaginary of a conjugate": lambda x: x.conj().imag,
    "conjugate transpose": lambda x: x.mH,
}


@pytest.mark.parametrize("name", LAZY)
@pytest.mark.parametrize("fn", [torch.exp, lambda x: x @ x.mT, lambda x: x + 1, lambda x: x.sum(0)])
def test_lazy_operands(name, fn):
    agree(lambda x: fn(LAZY[name](x)), values(3, 4))


def test_conjugation_in_place_and_into():
    x = values(3, 4)
    agree(lambda x: x.clone().conj_physical_(), x, gradients=False)
    agree(lambda x: x.mT.clone().mT.conj_physical_(), x, gradients=False)
    agree(lambda x: torch.conj_physical(x, out=torch.zeros_like(x)), x, gradients=False)
    agree(lambda x: torch.conj_physical(x, out=x.new_zeros(3, 4, 2)[..., 1]), x, gradients=False)
    agree(lambda x: x.clone().conj_physical_(), x.real.contiguous(), gradients=False)
