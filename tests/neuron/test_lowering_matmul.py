"""Products and linear layers against the CPU."""

import pytest
import torch

from .agreement import LAYOUTS, agree, example, laid_out

pytestmark = pytest.mark.rotating(2, least=3)

F = torch.nn.functional
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.complex64]

PRODUCTS = {
    "mm": (lambda a, b: a @ b, (3, 4), (4, 5)),
    "mm of a transposed view": (lambda a, b: a.t() @ b, (4, 3), (4, 5)),
    "mm with a transposed view": (lambda a, b: a @ b.t(), (3, 4), (5, 4)),
    "mm without a middle": (lambda a, b: a @ b, (3, 0), (0, 5)),
    "mm without rows": (lambda a, b: a @ b, (0, 4), (4, 5)),
    "bmm": (lambda a, b: torch.bmm(a, b), (2, 3, 4), (2, 4, 5)),
    "bmm of a transposed view": (lambda a, b: torch.bmm(a.mT, b), (2, 4, 3), (2, 4, 5)),
    "matmul broadcast": (lambda a, b: a @ b, (2, 1, 3, 4), (5, 4, 2)),
    "mv": (lambda a, b: a @ b, (3, 4), (4,)),
    "dot": (lambda a, b: a @ b, (4,), (4,)),
    "outer": (lambda a, b: torch.outer(a, b), (3,), (4,)),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), (2, 3, 4), (2, 5, 4)),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 2), (2, 3, 4), (3, 4, 5)),
}


@pytest.mark.covering("torch.float32")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, dtype):
    fn, *sizes = PRODUCTS[name]
    agree(fn, *(example(dtype, *s, seed=i) for i, s in enumerate(sizes)), gradients=dtype.is_floating_point)


SUMS = {
    "addmm": (torch.addmm, (3, 5), (3, 4), (4, 5)),
    "addmm of a row": (torch.addmm, (5,), (3, 4), (4, 5)),
    "baddbmm": (torch.baddbmm, (2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "addbmm": (torch.addbmm, (3, 5), (2, 3, 4), (2, 4, 5)),
    "addmv": (torch.addmv, (3,), (3, 4), (4,)),
    "addr": (torch.addr, (3, 4), (3,), (4,)),
}


@pytest.mark.covering("torch.float32")
@pytest.mark.parametrize("factors", [(1, 1), (0, 2), (3, -1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("name", SUMS)
def test_scaled_sums(name, dtype, factors):
    fn, *sizes = SUMS[name]
    beta, alpha = factors
    args = [example(dtype, *s, seed=i) for i, s in enumerate(sizes)]
    agree(lambda *a: fn(*a, beta=beta, alpha=alpha), *args, gradients=dtype.is_floating_point)


@pytest.mark.parametrize("name", SUMS)
def test_no_weight_hides_nan(name):
    fn, first, *sizes = SUMS[name]
    args = [example(torch.float32, *s, seed=i) for i, s in enumerate(sizes)]
    agree(lambda *a: fn(*a, beta=0), torch.full(first, torch.nan), *args)


def test_factors_compile_nothing_new():
    from shakedown.neuron import events

    a, b, c = (example(torch.float32, 3, 3, seed=i).to("neuron") for i in range(3))
    torch.addmm(a, b, c, beta=0.5, alpha=2.5)
    events.clear()
    for step in range(3):
        torch.addmm(a, b, c, beta=0.5 + step / 8, alpha=2.5 - step / 8)
    assert not [r for r in events.snapshot() if r["kind"] == "compile"]


@pytest.mark.covering("torch.float32")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layouts(layout, dtype):
    a, b = laid_out(example(dtype, 4, 4), layout), laid_out(example(dtype, 4, 4, seed=1), layout)
    agree(torch.mm, a, b, gradients=layout != "expanded")
    agree(torch.bmm, laid_out(example(dtype, 3, 4, 4), layout), laid_out(example(dtype, 3, 4, 4, seed=1), layout))


@pytest.mark.covering("torch.float32")
@pytest.mark.parametrize("size", [(4,), (3, 4), (2, 3, 4), (0, 4), (2, 1, 2, 1, 4)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_linear(size, bias, dtype):
    args = [example(dtype, *size), example(dtype, 5, 4, seed=1), *([example(dtype, 5, seed=2)] if bias else [])]
    agree(F.linear, *args, gradients=True)


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_linear_with_a_frozen_argument(frozen):
    args = [example(torch.float32, 2, 3, 4), example(torch.float32, 5, 4, seed=1), example(torch.float32, 5, seed=2)]
    wanted = []
    for device in ("cpu", "neuron"):
        there = [a.clone().to(device).requires_grad_(i != frozen) for i, a in enumerate(args)]
        F.linear(*there).square().sum().backward()
        wanted.append([None if a.grad is None else a.grad.cpu() for a in there])
    for ours, theirs in zip(*reversed(wanted)):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs)


def test_linear_twice_differentiated():
    def fn(x, w, b):
        y = F.linear(x, w, b).square().sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        return g.square().sum()

    agree(fn, *(example(torch.float64, *s, seed=i) for i, s in enumerate([(3, 4), (5, 4), (5,)])), gradients=True)


def test_linear_under_transforms():
    w, b = example(torch.float32, 5, 4, seed=1), example(torch.float32, 5, seed=2)

    def loss(x, w, b):
        return F.linear(x, w, b).tanh().sum()

    x = example(torch.float32, 6, 3, 4)
    agree(lambda x, w, b: torch.func.vmap(F.linear, (0, None, None))(x, w, b), x, w, b)
    agree(lambda x, w, b: torch.func.vmap(torch.func.grad(loss), (0, None, None))(x, w, b), x, w, b)
    agree(lambda x, w, b: torch.func.jvp(lambda x: F.linear(x, w, b), (x,), (x + 1,))[1], x, w, b)


def test_bilinear():
    args = [example(torch.float32, *s, seed=i) for i, s in enumerate([(3, 4), (3, 5), (2, 4, 5), (2,)])]
    agree(F.bilinear, *args)


def test_half_products_are_as_exact_as_float32_ones():
    a, b = (torch.randn(64, 512, generator=torch.Generator().manual_seed(i)).bfloat16() for i in (0, 1))
    exact = (a.double() @ b.double().t()).bfloat16()
    ours = (a.to("neuron") @ b.to("neuron").t()).cpu()
    # float32 accumulation leaves ties and near-ties only
    assert (ours != exact).float().mean() < 0.01


def test_refused_like_on_the_cpu():
    a = torch.zeros(2, 2, device="neuron")
    with pytest.raises(RuntimeError, match="dtype"):
        torch.mm(a, a.double())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.mm(a, torch.zeros(3, 2, device="neuron"))
