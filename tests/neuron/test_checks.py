"""Data that an operator does not accept: the CPU's error, in eager mode and inside a graph, and nothing written."""

import re

import pytest
import torch
import torch.nn.functional as F

from shakedown.conformance.databases import moved
from shakedown.neuron import events

pytestmark = pytest.mark.rotating(2, least=3)

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")


def ints(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


X3, X32 = torch.arange(3.0), torch.arange(6.0).view(3, 2)
HALVES = torch.tensor([0.5, 0.5])

# name -> (function, arguments that are accepted, arguments of the same sizes and types that are not)
CALLS = {
    "gather": (lambda x, i: x.gather(0, i), (X3, ints(2)), (X3, ints(-1))),
    "gather of a corner": (lambda x, i: x.gather(0, i), (X32, ints(2).view(1, 1)), (X32, ints(3).view(1, 1))),
    "gather from a number": (lambda x, i: x.gather(0, i), (X3[0], ints(0)[0]), (X3[0], ints(1)[0])),
    "scatter": (lambda x, i, s: x.scatter(0, i, s), (X3, ints(2), X3[:1]), (X3, ints(3), X3[:1])),
    "scatter of a number": (lambda x, i: x.scatter_(0, i, 4.0), (X3, ints(2)), (X3, ints(-1))),
    "scatter_add": (lambda x, i, s: x.scatter_add_(0, i, s), (X3, ints(1), X3[:1]), (X3, ints(3), X3[:1])),
    "scatter_reduce": (
        lambda x, i, s: x.scatter_reduce_(0, i, s, "amax"),
        (X3, ints(1), X3[:1]),
        (X3, ints(-2), X3[:1]),
    ),
    "index_select": (lambda x, i: x.index_select(0, i), (X32, ints(2)), (X32, ints(-1))),
    "index_add": (lambda x, i, s: x.index_add_(0, i, s), (X32, ints(1), X32[:1]), (X32, ints(3), X32[:1])),
    "index_copy": (lambda x, i, s: x.index_copy_(0, i, s), (X32, ints(1), X32[:1]), (X32, ints(-1), X32[:1])),
    "index_fill": (lambda x, i: x.index_fill_(0, i, 7.0), (X32, ints(-3)), (X32, ints(-4))),
    "take": (lambda x, i: x.take(i), (X32, ints(-6, 5)), (X32, ints(0, 6))),
    "put": (lambda x, i, s: x.put_(i, s), (X32, ints(-6), X3[:1]), (X32, ints(6), X3[:1])),
    "index": (lambda x, i: x[i], (X32, ints(-3, 2)), (X32, ints(0, -4))),
    "index of the second dimension": (lambda x, i: x[:, i], (X32, ints(1)), (X32, ints(2))),
    "two indices": (lambda x, i, j: x[i, j], (X32, ints(2), ints(1)), (X32, ints(2), ints(2))),
    "index_put": (lambda x, i: x.index_put_((i,), x[:1] + 1), (X32, ints(2)), (X32, ints(3))),
    "index_put accumulating": (lambda x, i: x.index_put_((i,), x[:1] + 1, True), (X32, ints(2)), (X32, ints(3))),
    "masked_scatter": (
        lambda x, m, s: x.masked_scatter_(m, s),
        (X3, ints(0, 1, 0).bool(), X3[:1]),
        (X3, ints(1, 1, 0).bool(), X3[:1]),
    ),
    "embedding": (lambda w, i: F.embedding(i, w), (X32, ints(0, 2)), (X32, ints(0, 3))),
    "embedding_renorm": (
        lambda w, i: aten.embedding_renorm_(w, i, 1.0, 2.0),
        (X32, ints(-1, 2)),
        (X32, ints(0, 3)),
    ),
    "nll_loss": (lambda x, t: F.nll_loss(x, t), (X32, ints(0, 1, -100)), (X32, ints(0, 2, 1))),
    "nll_loss of pixels": (
        lambda x, t: F.nll_loss(x, t),
        (X32[:, :, None, None], ints(0, 1, -100).view(3, 1, 1)),
        (X32[:, :, None, None], ints(0, 1, -1).view(3, 1, 1)),
    ),
    "cross_entropy": (lambda x, t: F.cross_entropy(x, t), (X32, ints(0, 1, 0)), (X32, ints(0, 2, 1))),
    "multi_margin_loss": (lambda x, t: F.multi_margin_loss(x, t), (X32, ints(0, 1, 0)), (X32, ints(0, 2, 1))),
    "multilabel_margin_loss": (
        lambda x, t: F.multilabel_margin_loss(x, t),
        (X32[:1], ints(0, -1).view(1, 2)),
        (X32[:1], ints(-1, 2).view(1, 2)),
    ),
    "max_unpool2d": (
        lambda x, i: F.max_unpool2d(x, i, 2),
        (X32[None, :2], ints(0, 3, 5, 15).view(1, 2, 2)),
        (X32[None, :2], ints(0, 3, 5, 16).view(1, 2, 2)),
    ),
    "binary_cross_entropy": (
        lambda x, t: F.binary_cross_entropy(x, t),
        (HALVES, HALVES),
        (torch.tensor([0.5, 1.5]), HALVES),
    ),
    "binary_cross_entropy of NaN": (
        lambda x, t: F.binary_cross_entropy(x, t),
        (HALVES, HALVES),
        (HALVES, torch.tensor([0.5, NAN])),
    ),
    "remainder": (lambda x, y: x % y, (ints(5), ints(3)), (ints(5), ints(0))),
    "remainder by a number": (lambda x, y: x % y, (ints(5), 3), (ints(5), 0)),
    "fmod": (torch.fmod, (ints(5), ints(3)), (ints(5), ints(0))),
    "floor_divide": (lambda x, y: x // y, (ints(5), ints(3)), (ints(5), ints(0))),
    "division in place": (lambda x, y: x.floor_divide_(y), (ints(5), ints(3)), (ints(5), ints(0))),
    "truncated division": (
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        (ints(5), ints(3)),
        (ints(5), ints(0)),
    ),
    "huber_loss": (lambda x, d: F.huber_loss(x, x, delta=d), (X3, 1.0), (X3, -1.0)),
    "smooth_l1_loss": (lambda x, b: F.smooth_l1_loss(x, x, beta=b), (X3, 1.0), (X3, -1.0)),
    "softshrink": (lambda x, b: F.softshrink(x, b), (X3, 1.0), (X3, -1.0)),
    "celu": (lambda x, a: F.celu(x, a), (X3, 1.0), (X3, 0.0)),
    "power of integers": (lambda x, e: x**e, (ints(2), 2), (ints(2), -1)),
    "searchsorted": (
        lambda x, v, s: torch.searchsorted(x, v, sorter=s),
        (HALVES, HALVES, ints(1, 0)),
        (HALVES, HALVES, ints(1, 2)),
    ),
    "cholesky_inverse": (
        torch.cholesky_inverse,
        (torch.eye(2),),
        (torch.ones(2, 2).tril().mul(torch.tensor([1.0, 0.0])),),
    ),
    "ldl_solve": (
        torch.linalg.ldl_solve,
        (torch.eye(2), ints(1, 2, dtype=torch.int32), torch.ones(2, 1)),
        (torch.eye(2), ints(1, 9, dtype=torch.int32), torch.ones(2, 1)),
    ),
    "quantile": (torch.quantile, (X3, HALVES), (X3, HALVES + 1)),
    "nearest quantile": (
        lambda x, q: torch.quantile(x, q, interpolation="nearest"),
        (X3, HALVES),
        (X3, torch.tensor([1.05, 0.5])),
    ),
    "histc": (torch.histc, (torch.tensor([1.0, 2.0]),), (torch.tensor([1.0, INF]),)),
    "repeat_interleave": (
        lambda r: torch.repeat_interleave(r, output_size=3),
        (ints(1, 2),),
        (ints(1, 3),),
    ),
    "fill": (lambda x, v: x.fill_(v), (ints(0, dtype=torch.int8), 3), (ints(0, dtype=torch.int8), 300)),
    "fill with infinity": (lambda x, v: x.fill_(v), (ints(0), 3.0), (ints(0), INF)),
    "fill of halves": (lambda x, v: x.fill_(v), (HALVES.half(), 3.0), (HALVES.half(), 1e6)),
    "masked_fill": (
        lambda x, v: x.masked_fill(x == 0, v),
        (ints(0, dtype=torch.int8), 3),
        (ints(0, dtype=torch.int8), 300),
    ),
    "_assert_async": (lambda x: torch._assert_async(x), (ints(1),), (ints(0),)),
}

# The same of operators with random values, of which only the error is compared.
DRAWS = {
    "bernoulli": (torch.bernoulli, (HALVES,), (HALVES * 3,)),
    "bernoulli of NaN": (torch.bernoulli, (HALVES,), (HALVES * NAN,)),
    "bernoulli_": (lambda x, p: x.bernoulli_(p), (X3[:2], HALVES), (X3[:2], -HALVES)),
    "native_dropout": (lambda x, p: aten.native_dropout(x, p, True), (X3, 0.5), (X3, 1.5)),
    "uniform_": (lambda x, a, b: x.uniform_(a, b), (X3, 1.0, 2.0), (X3, 2.0, 1.0)),
    "uniform_ without end": (lambda x, a, b: x.uniform_(a, b), (X3, 1.0, 2.0), (X3, 2.0, INF)),
    "normal": (torch.normal, (X3, X3), (X3, -X3)),
    "normal_": (lambda x, s: x.normal_(0.0, s), (X3, 1.0), (X3, -1.0)),
    "poisson": (torch.poisson, (X3,), (-X3,)),
    "multinomial": (lambda p: p.multinomial(1), (HALVES,), (torch.tensor([0.5, -0.5]),)),
    "multinomial of nothing": (lambda p: p.multinomial(3, True), (HALVES,), (HALVES * 0,)),
    "multinomial of infinity": (lambda p: p.multinomial(1), (HALVES,), (HALVES * INF,)),
}


def copied(values):
    return [v.clone() if isinstance(v, torch.Tensor) else v for v in values]


def run_at_once(fn, *args):
    fn(*args)
    torch.neuron.synchronize()  # under adaptive eager the error comes now, and names the operator


def error_of(fn, args):
    with pytest.raises(Exception) as caught:
        run_at_once(fn, *args)
    return type(caught.value), str(caught.value).partition(" (in aten::")[0]


@pytest.mark.rotating(2)
@pytest.mark.parametrize("name", [*CALLS, *DRAWS])
def test_refused_as_on_the_cpu(name):
    fn, good, bad = (CALLS | DRAWS)[name]
    expected = error_of(fn, copied(bad))
    fine = fn(*copied(good))
    for _ in range(2):  # the first call builds the program, the others run it
        result = fn(*moved(copied(good)))
        if name in CALLS and fine is not None:
            torch.testing.assert_close(result.cpu(), fine)
        given = moved(copied(bad))
        assert error_of(fn, given) == expected
        for tensor, before in zip(given, bad):
            if isinstance(before, torch.Tensor):
                torch.testing.assert_close(tensor.cpu(), before, equal_nan=True)


@pytest.mark.parametrize("name", CALLS)
def test_refused_on_the_first_call(name):
    fn, _, bad = CALLS[name]
    assert error_of(fn, moved(copied(bad))) == error_of(fn, copied(bad))


REFUSED = {
    "linspace into a narrow dtype": lambda d: torch.linspace(1e6, -2, 3, dtype=torch.int8, device=d),
    "logspace from infinity": lambda d: torch.logspace(INF, 2, 3, dtype=torch.int64, device=d),
    "logspace to one value": lambda d: torch.logspace(3.0, 2, 1, dtype=torch.int8, device=d),
    "randint_like of an empty range": lambda d: torch.randint_like(X3.to(d), 3, 3),
    "random_ of an empty range": lambda d: X3.to(d).random_(3, 3),
    "median of nothing": lambda d: torch.empty(0, 3, device=d).median(0),
    "nanmedian of nothing": lambda d: torch.empty(0, 3, device=d).nanmedian(0),
    "mode of nothing": lambda d: torch.empty(0, 3, device=d).mode(0),
    "targets of images without pixels": lambda d: aten.nll_loss2d(X32[:1].to(d), ints().to(d), None, 1, 3),
    "a boolean factor of floats": lambda d: torch.rsub(X3.to(d), X3.to(d), alpha=True),
    "labels of another dtype": lambda d: F.binary_cross_entropy(HALVES.to(d), ints(0, 1).to(d)),
    "put of another count": lambda d: X3.to(d).put(ints(1, 2).to(d), X3.to(d)),
    "a grid of another dtype": lambda d: F.grid_sample(
        X3.to(d).view(1, 1, 1, 3), torch.zeros(1, 1, 1, 2, device=d).double()
    ),
    "weights of another dtype": lambda d: F.nll_loss(X32.to(d), ints(0, 1, 1).to(d), X3[:2].to(d).double()),
    "repeats that do not fill": lambda d: torch.repeat_interleave(ints(1, 2).to(d), output_size=4),
    "full of what does not fit": lambda d: torch.full((2,), 300, dtype=torch.int8, device=d),
    "full_like of what does not fit": lambda d: torch.full_like(ints(1, dtype=torch.int8).to(d), 300),
    "padding with what does not fit": lambda d: F.pad(ints(1, dtype=torch.int8).to(d), (1, 1), value=300),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_without_looking_at_elements(name):
    expected = error_of(REFUSED[name], ["cpu"])
    for _ in range(2):
        assert error_of(REFUSED[name], ["neuron"]) == expected


def test_accepted_data_stays_on_the_device():
    for name, (fn, good, _) in CALLS.items():
        events.clear()
        fn(*moved(copied(good)))
        assert not events.total("fallback"), name


def test_a_failing_call_leaves_the_next_alone():
    x, i = X3.to("neuron"), ints(5).to("neuron")
    with pytest.raises(RuntimeError, match=re.escape("index 5 is out of bounds for dimension 0 with size 3")):
        run_at_once(x.gather, 0, i)
    assert x.gather(0, i - 3).item() == 2


IN_GRAPHS = ["gather", "index", "index_select", "embedding", "cross_entropy", "remainder", "scatter_add", "index_put"]


@pytest.mark.parametrize("name", IN_GRAPHS)
def test_refused_inside_a_graph(name):
    fn, good, bad = CALLS[name]
    compiled = torch.compile(lambda *args: fn(*args) * 2, backend="neuron")
    torch.testing.assert_close(compiled(*moved(copied(good))).cpu(), fn(*copied(good)) * 2)
    kind, message = error_of(fn, copied(bad))
    given = moved(copied(bad))
    with pytest.raises((IndexError, RuntimeError)) as caught:
        compiled(*given)
    assert "of graph" in str(caught.value)
    assert "aten." in str(caught.value)
    if name != "cross_entropy":  # which a graph takes apart
        assert caught.type is kind
        assert message in str(caught.value)
    for tensor, before in zip(given, bad):
        torch.testing.assert_close(tensor.cpu(), before)
    torch.testing.assert_close(compiled(*moved(copied(good))).cpu(), fn(*copied(good)) * 2)


def test_refused_in_backward():
    weight = X32.to("neuron").requires_grad_()
    with pytest.raises(IndexError):
        F.embedding(ints(3).to("neuron"), weight).sum().backward()
    F.embedding(ints(2).to("neuron"), weight).sum().backward()
    assert weight.grad.cpu().tolist() == [[0, 0], [0, 0], [1, 1]]


def test_refused_under_vmap():
    gather = torch.func.vmap(lambda x, i: x.gather(0, i))
    x = X32.to("neuron")
    assert gather(x, ints(1, 0, 1).view(3, 1).to("neuron")).cpu().tolist() == [[1], [2], [5]]
    with pytest.raises(RuntimeError, match="out of bounds"):
        run_at_once(gather, x, ints(1, 0, 2).view(3, 1).to("neuron"))
