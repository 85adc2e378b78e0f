"""Sparse tensors whose indices and values live on the device, against the CPU: layouts, values, gradients, no fallback."""

import copy
import pickle
import subprocess
import sys
import warnings

import pytest
import torch

from shakedown.neuron import events

warnings.filterwarnings("ignore", message="Sparse")  # PyTorch's notes on beta features
pytestmark = [pytest.mark.filterwarnings("ignore:Sparse"), pytest.mark.rotating(2, least=3)]

_draw = torch.Generator().manual_seed(0)
MATRIX = torch.randn(5, 6, generator=_draw) * (torch.rand(5, 6, generator=_draw) > 0.6)
HYBRID = torch.randn(5, 6, 2, generator=_draw) * (torch.rand(5, 6, 1, generator=_draw) > 0.6)
DENSE = torch.randn(6, 3, generator=_draw)
PAIRS = torch.tensor([[0, 1, 0, 4], [2, 3, 2, 5]])


def make(form: str, device: str) -> torch.Tensor:
    if form == "hybrid":
        return HYBRID.to(device).to_sparse(2)
    if form == "uncoalesced":
        values = torch.tensor([1.0, -2.0, 3.0, 0.5], device=device)
        return torch.sparse_coo_tensor(PAIRS.to(device), values, (5, 6))
    if form in ("bsr", "bsc"):
        return getattr(MATRIX.to(device), f"to_sparse_{form}")((1, 2))
    return MATRIX.to(device).to_sparse(layout=getattr(torch, f"sparse_{form}"))


def same(actual, expected):
    """Layouts, dtypes, sizes, coalescence, places of entries and values; everything of `actual` on the device."""
    if isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected):
            same(a, e)
    elif isinstance(expected, torch.Tensor):
        assert actual.device.type == "neuron"
        assert (actual.layout, actual.dtype, actual.shape) == (expected.layout, expected.dtype, expected.shape)
        host = actual.detach().cpu()
        assert host.layout is expected.layout
        if expected.layout is torch.sparse_coo:
            assert actual.is_coalesced() == expected.is_coalesced()
            assert actual._indices().device.type == actual._values().device.type == "neuron"
            host, expected = host.coalesce(), expected.detach().coalesce()
        torch.testing.assert_close(host, expected.detach())
    else:
        assert actual == expected


def agree(fn):
    expected = fn("cpu")
    events.clear()
    actual = fn("neuron")
    assert not events.names("fallback")
    same(actual, expected)


ON_ANY = {
    "itself": lambda x: x,
    "dense": lambda x: x.to_dense(),
    "clone": lambda x: x.clone(),
    "other dtype": lambda x: x.to(torch.float64),
    "zeros_like": lambda x: torch.zeros_like(x),
    "neg": lambda x: -x,
    "sin": lambda x: x.coalesce().sin() if x.layout is torch.sparse_coo else x.sin(),
    "isnan": lambda x: torch.isnan(x),
    "scaled": lambda x: x * 2.5,
    "scaled in place": lambda x: x.mul_(2),
    "sum": lambda x: x.sum(),
    "zeroed": lambda x: x.zero_(),
    "transposed": lambda x: x.transpose(0, 1),
    "nnz": lambda x: x._nnz(),
    "as COO": lambda x: x.to_sparse(),
    "product of entries": lambda x: (x * x).to_dense(),
    "sum with itself": lambda x: (x + x).to_dense(),
    "added in place": lambda x: x.add_(x).to_dense(),
    "added to a dense tensor": lambda x: x.to_dense() + x,
    "times a dense tensor": lambda x: x * (x.to_dense() + 1),
}
ON_COO = {
    "divided": lambda x: x / 4,
    "coalesced": lambda x: (x.coalesce(), x.coalesce().indices(), x.coalesce().values()),
    "difference": lambda x: (x - x * 2).to_dense(),
    "sum of columns": lambda x: x.sum(0),
    "sum of rows": lambda x: torch.sparse.sum(x, 1),
    "softmax": lambda x: torch.sparse.softmax(x, 1),
    "log_softmax": lambda x: torch.sparse.log_softmax(x, 0),
    "index_select": lambda x: x.index_select(0, torch.tensor([1, 0, 1, 4], device=x.device)),
    "select": lambda x: x.select(1, 2),
    "cat": lambda x: torch.cat([x, x], 1),
    "stack": lambda x: torch.stack([x, x]),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "narrow_copy": lambda x: x.narrow_copy(0, 1, 3),
    "norm": lambda x: x.norm(),
    "pow": lambda x: x.pow(2),
    "any": lambda x: torch.isnan(x.coalesce()).any(),
    "mask of a dense tensor": lambda x: (x.to_dense() + 1).sparse_mask(x),
    "mask of a sparse tensor": lambda x: (x * 2).coalesce().sparse_mask(x),
    "broadcast factor": lambda x: x * torch.arange(1.0, 1 + x.shape[-1]).to(x.device),
    "copied": lambda x: torch.zeros_like(x).copy_(x),
    "out=": lambda x: torch.add(x, x, out=torch.zeros_like(x)).to_dense(),
}
ON_MATRICES = {
    "mm": lambda x, d: x @ d,
    "dense first": lambda x, d: d.t()[:, : x.shape[0]] @ x,
    "mv": lambda x, d: x @ d[:, 0],
    "addmm": lambda x, d: torch.sparse.addmm(torch.ones(5, 3).to(d), x, d, beta=0.5, alpha=2.0),
    "sparse by sparse": lambda x, d: torch.sparse.mm(x.to_sparse(), x.to_sparse().t()),
    "to CSR": lambda x, d: (x.coalesce() if x.layout is torch.sparse_coo else x).to_sparse_csr(),
    "to CSC": lambda x, d: (x.coalesce() if x.layout is torch.sparse_coo else x).to_sparse_csc(),
    "to BSR": lambda x, d: x.to_sparse_bsr((1, 2)),
    "to BSC": lambda x, d: x.to_sparse_bsc((1, 2)),
}


@pytest.mark.covering("coo")
@pytest.mark.parametrize("name", ON_ANY)
@pytest.mark.parametrize("form", ["coo", "hybrid", "uncoalesced", "csr"])
def test_every_layout(form, name):
    agree(lambda device: ON_ANY[name](make(form, device)))


@pytest.mark.parametrize("form", ["csc", "bsr", "bsc"])
def test_other_compressed_layouts(form):
    agree(lambda device: make(form, device))
    agree(lambda device: [f(make(form, device)) for f in (torch.neg, torch.clone, torch.Tensor.to_dense)])
    agree(lambda device: make(form, device) * 2)


@pytest.mark.covering("coo")
@pytest.mark.parametrize("name", ON_COO)
@pytest.mark.parametrize("form", ["coo", "hybrid", "uncoalesced"])
def test_coo(form, name):
    agree(lambda device: ON_COO[name](make(form, device)))


@pytest.mark.covering("coo")
@pytest.mark.parametrize("name", ON_MATRICES)
@pytest.mark.parametrize("form", ["coo", "uncoalesced", "csr", "csc"])
def test_matrices(form, name):
    if form == "csc" and name == "mv":
        pytest.skip("the CPU has no product of a CSC matrix and a vector")
    agree(lambda device: ON_MATRICES[name](make(form, device), DENSE.to(device)))


CONSTRUCTED = {
    "COO of lists": lambda v: torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], device=v),
    "empty COO": lambda v: torch.sparse_coo_tensor(size=(2, 3), device=v),
    "zeros": lambda v: torch.zeros(2, 3, layout=torch.sparse_coo, device=v),
    "inferred size": lambda v: torch.sparse_coo_tensor(PAIRS.to(v), torch.ones(4, device=v)),
    "checked COO": lambda v: torch.sparse_coo_tensor(
        PAIRS[:, :2].to(v), torch.ones(2, device=v), (5, 6), is_coalesced=True, check_invariants=True
    ),
    "checked CSR": lambda v: torch.sparse_csr_tensor(
        torch.tensor([0, 1, 3], device=v),
        torch.tensor([0, 0, 1], device=v),
        torch.ones(3, device=v),
        check_invariants=True,
    ),
    "int32 indices": lambda v: torch.sparse_csr_tensor(
        torch.tensor([0, 1, 3]).int(), torch.tensor([0, 0, 1]).int(), torch.ones(3), (2, 2), device=v
    ),
    "of booleans": lambda v: MATRIX.bool().to(v).to_sparse(),
    "of integers": lambda v: MATRIX.to(torch.int64).to(v).to_sparse_csr(),
    "moved": lambda v: [make(form, "cpu").to(v) for form in ("coo", "csr", "uncoalesced")],
    "deep copy": lambda v: copy.deepcopy(make("coo", v)),
    "pickled": lambda v: [pickle.loads(pickle.dumps(make(form, v))) for form in ("coo", "csr")],
    "diagonals": lambda v: torch.sparse.spdiags(
        torch.arange(12.0, device=v).view(3, 4), torch.tensor([0, -1, 2], device=v), (3, 5)
    ),
}


@pytest.mark.parametrize("name", CONSTRUCTED)
def test_constructors(name):
    agree(CONSTRUCTED[name])


FIRST = """
import torch
given = torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.tensor([1.0, 2.0])
made = {first}
assert made.device.type == "neuron"
assert made.cpu().to_dense().tolist() == [[1.0, 0.0], [0.0, 2.0]]
"""


@pytest.mark.parametrize(
    "first",
    [
        'torch.sparse_csr_tensor(*given, (2, 2), device="neuron")',
        'torch.sparse_csr_tensor(*given, (2, 2)).to("neuron")',
    ],
)
def test_a_compressed_tensor_may_be_the_first_sparse_one_of_a_process(first):
    """PyTorch's constructors of compressed tensors ask no device, so they cannot be what brings the kernels."""
    ended = subprocess.run([sys.executable, "-c", FIRST.format(first=first)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_wrong_indices_raise_what_the_cpu_raises():
    for v in ("cpu", "neuron"):
        with pytest.raises(RuntimeError, match="size is inconsistent with indices"):
            torch.sparse_coo_tensor(PAIRS.to(v), torch.ones(4, device=v), (2, 2), check_invariants=True)
        with pytest.raises(RuntimeError, match="Use add\\(dense, sparse\\) instead"):
            make("coo", v) + MATRIX.to(v)


GRADIENTS = {
    "product with COO": lambda a, b: torch.sparse.mm(a.to_sparse(), b),
    "product with CSR": lambda a, b: torch.sparse.mm(a.to_sparse_csr(), b),
    "to dense": lambda a, b: a.to_sparse().to_dense() @ b,
    "sum": lambda a, b: torch.sparse.sum(a.to_sparse(), 0).to_dense() @ b,
    "softmax": lambda a, b: torch.sparse.softmax(a.to_sparse(), 1).to_dense() @ b,
    "log_softmax": lambda a, b: torch.sparse.log_softmax(a.to_sparse(), 0).to_dense() @ b,
    "products of entries": lambda a, b: (a.to_sparse() * a.to_sparse()).to_dense() @ b,
    **{
        f"{how} of products": lambda a, b, how=how: torch.sparse.mm(a.to_sparse_csr(), b, how)
        for how in ("sum", "mean", "amax", "amin")
    },
    "sampled product": lambda a, b: torch.sparse.sampled_addmm(a.to_sparse_csr(), b[:5], b.t()).to_dense(),
}


@pytest.mark.rotating(2)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    def fn(device):
        a, b = (t.clone().to(device).requires_grad_() for t in (MATRIX, DENSE))
        GRADIENTS[name](a, b).sin().sum().backward()
        return [t.grad for t in (a, b) if t.grad is not None]

    agree(fn)


@pytest.mark.parametrize("form", ["coo", "uncoalesced", "csr"])
def test_gradient_of_a_sparse_leaf(form):
    def fn(device):
        a, b = make(form, device).requires_grad_(), DENSE.clone().to(device).requires_grad_()
        torch.sparse.mm(a, b).sin().sum().backward()
        return a.grad, b.grad

    agree(fn)


def test_gradient_of_values():
    def fn(device):
        x = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device, requires_grad=True)
        (torch.sparse_coo_tensor(PAIRS.to(device), x, (5, 6)).coalesce().to_dense() ** 2).sum().backward()
        return x.grad

    agree(fn)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "SparseAdam": lambda p: torch.optim.SparseAdam(p, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sparse_embedding_trains(name):
    def fn(device):
        torch.manual_seed(0)
        layer = torch.nn.Embedding(10, 3, sparse=True).to(device)
        optimizer = OPTIMIZERS[name](list(layer.parameters()))
        for _ in range(2):
            optimizer.zero_grad()
            layer(torch.tensor([1, 2, 1, 5], device=device)).sin().sum().backward()
            gradient = layer.weight.grad
            optimizer.step()
        return layer.weight.detach(), gradient

    agree(fn)


def test_printing_shows_the_entries():
    for form in ("coo", "csr"):
        host, device = repr(make(form, "cpu")), repr(make(form, "neuron"))
        assert "device='neuron:0'" in device
        numbers = [t for t in host.replace(",", " ").split() if "." in t and t[0].isdigit()]
        assert numbers
        assert all(n in device.replace(",", " ") for n in numbers)


def test_what_has_no_kernel_runs_on_the_cpu_with_a_record():
    a = make("coo", "neuron")
    events.clear()
    result = torch.hspmm(a, DENSE.to("neuron"))
    assert events.names("fallback") == ["aten::hspmm"]
    same(result, torch.hspmm(make("coo", "cpu"), DENSE))
