"""Complex numbers: gradients are conjugated where PyTorch conjugates them, conjugates may be lazy or written."""

import pytest
import torch

from shakedown.conformance.compare import compare
from shakedown.neuron import events

pytestmark = pytest.mark.rotating(2, least=3)

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


@pytest.mark.rotating(2)
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


# --- complex32: kept as pairs of float16, computed as complex64 --------------------------------------------------------


def halves(*size, seed=0):
    return values(*size, seed=seed).to(torch.complex32)


COMPLEX32 = {
    "to complex64": lambda x: x.cfloat(),
    "from complex64": lambda x: x.cfloat().chalf(),
    "to float16": lambda x: x.real.clone(),
    "imaginary part": lambda x: x.imag,
    "as pairs": torch.view_as_real,
    "as pairs and back": lambda x: torch.view_as_complex(torch.view_as_real(x)),
    "as other bits": lambda x: x.view(torch.int32),
    "transpose": lambda x: x.mT.clone(),
    "strided slice": lambda x: x[1:, ::2].clone(),
    "row filled": lambda x: x.clone().index_fill_(0, torch.tensor([1], device=x.device), 2 + 1j),
    "slice written": lambda x: x.clone().mT[1:3].copy_(x.mT[:2]),
    "conjugate": lambda x: x.conj().cfloat(),
    "sum of two": lambda x: x + x,
    "product": lambda x: x * x,
    "with a number": lambda x: x * (2 - 1j),
    "with complex64": lambda x: x + x.cfloat(),
    "with float16": lambda x: x + x.real,
    "concatenated": lambda x: torch.cat([x, x]),
    "compared": lambda x: x == x,
    "put together": lambda x: torch.complex(x.real, x.imag),
    "made of nothing": lambda x: torch.zeros(3, dtype=x.dtype, device=x.device),
    "made like it": lambda x: torch.full_like(x, 1 + 3j),
}


@pytest.mark.parametrize("name", COMPLEX32)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex32(name):
    x = halves(3, 4)
    events.clear()
    actual, expected = COMPLEX32[name](x.to("neuron")), COMPLEX32[name](x)
    assert not [(r["name"], r["detail"]) for r in events.snapshot() if r["kind"] == "fallback"]
    assert (actual.dtype, actual.stride()) == (expected.dtype, expected.stride())
    if expected.dtype is torch.complex32:  # the CPU cannot subtract these
        actual, expected = actual.cpu().cfloat(), expected.cfloat()
    torch.testing.assert_close(actual.cpu(), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex32_gradients_and_storage():
    parts = torch.randn(3, 2, dtype=torch.float16, generator=torch.Generator().manual_seed(2))
    grads = []
    for device in ("cpu", "neuron"):
        leaf = parts.detach().clone().to(device).requires_grad_()
        torch.view_as_complex(leaf).cfloat().abs().sum().backward()
        grads.append(leaf.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0])
    made = torch.empty(5, 2, dtype=torch.complex32, device="neuron")
    assert made.untyped_storage().nbytes() == 40
    assert made.fill_(1 - 2j)[1, 1].item() == 1 - 2j
    assert "1.-2.j" in str(made)
