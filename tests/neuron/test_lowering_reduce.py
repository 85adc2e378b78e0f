"""Reductions, scans and sorting against the CPU."""

import math

import pytest
import torch

from shakedown.neuron import events

from .agreement import LAYOUTS, agree, example, laid_out

pytestmark = pytest.mark.rotating(2, least=3)

NAN, INF = math.nan, math.inf

REDUCTIONS = {
    "sum": lambda x: x.sum(),
    "sum of a dimension": lambda x: x.sum(1, keepdim=True),
    "sum in float64": lambda x: x.sum((0, -1), dtype=torch.float64),
    "nansum": lambda x: x.nansum(-1),
    "prod": lambda x: x.prod(1),
    "amax": lambda x: x.amax((0, 2)),
    "amin": lambda x: x.amin(1, keepdim=True),
    "max": lambda x: x.max(),
    "max with index": lambda x: x.max(1),
    "min with index": lambda x: x.min(-1, keepdim=True),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "argmax": lambda x: x.argmax(),
    "argmin of a dimension": lambda x: x.argmin(0, keepdim=True),
    "any": lambda x: x.any(1),
    "all": lambda x: x.all(),
    "count_nonzero": lambda x: x.count_nonzero((0, 1)),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(-1),
    "cummax": lambda x: x.cummax(1),
    "cummin": lambda x: x.cummin(0),
    "sort": lambda x: x.sort(dim=1, stable=True),
    "sort descending": lambda x: torch.sort(x, dim=-1, descending=True, stable=True),
    "msort": lambda x: torch.msort(x),
    "mode": lambda x: x.mode(1),
}
FLOATS = {
    "mean": lambda x: x.mean(),
    "mean of dimensions": lambda x: x.mean((0, 1)),
    "var": lambda x: x.var(1),
    "std without correction": lambda x: x.std((0, 2), correction=0),
    "var_mean": lambda x: torch.var_mean(x, (1, 2), correction=2, keepdim=True),
    "std_mean": lambda x: torch.std_mean(x),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "norm of order 3": lambda x: x.norm(3, (0, 1)),
    "norm of order 1": lambda x: torch.linalg.vector_norm(x, 1, (1, 2)),
    "largest": lambda x: torch.linalg.vector_norm(x, INF, 2),
    "logsumexp": lambda x: x.logsumexp((0, 2)),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "renorm": lambda x: x.renorm(2, 1, 3.0),
    "cdist": lambda x: torch.cdist(x, x.flip(1) + 1),
    "quantile": lambda x: x.float().quantile(0.3, 1),
}


@pytest.mark.covering("torch.float32")
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_reductions(name, dtype):
    if dtype is torch.bool and name in ("nansum", "argmax", "argmin of a dimension"):
        pytest.skip("the CPU has no kernel for booleans")
    agree(REDUCTIONS[name], example(dtype, 3, 4, 5))


@pytest.mark.covering
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["sum of a dimension", "max with index", "cumsum", "sort"])
def test_layouts(name, layout):
    agree(REDUCTIONS[name], laid_out(example(torch.float32, 3, 4, 5), layout))


@pytest.mark.covering("torch.float32")
@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_floats_with_gradients(name, dtype):
    if dtype is torch.bfloat16 and name in ("renorm", "cdist"):
        pytest.skip("the CPU has no kernel, or loses half its digits to intermediate rounding")
    # Values at no kink of a norm, and no two equal, so that gradients are unique.
    x = (torch.randperm(60, generator=torch.Generator().manual_seed(3)).view(3, 4, 5) / 8 - 3.9).to(dtype)
    agree(FLOATS[name], x, gradients=True)


@pytest.mark.parametrize("name", ["sum", "prod", "amax", "max with index", "cumsum", "cumprod", "sort", "cummax"])
def test_gradients(name):
    x = torch.randperm(60, generator=torch.Generator().manual_seed(3)).view(3, 4, 5) / 8 - 3.9
    agree(REDUCTIONS[name], x, gradients=True)


SPECIAL = torch.tensor([[1.0, NAN, 3.0, NAN, -INF], [2.0, 2.0, -0.0, 0.0, 2.0], [NAN, NAN, INF, 1.0, 1.0]])


@pytest.mark.covering("torch.float32")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize(
    "call",
    [
        lambda x: (x.max(1), x.min(1), x.argmax(1), x.argmin(1), x.amax(1), x.amin(), torch.aminmax(x)),
        lambda x: (*x.cummax(1), *x.cummin(1)),
        lambda x: (*x.sort(dim=1, stable=True), *torch.sort(x, dim=1, descending=True, stable=True)),
        lambda x: (x.nansum(1), x.any(1), x.all(1), x.count_nonzero(1)),
        lambda x: (*x.nanmedian(1), x.median(1).values, x.nanmedian(), x.median()),
        lambda x: (x.topk(3, 1).values, x.topk(5, 1, largest=False).values, x.kthvalue(2, 1).values),
        lambda x: (x.logsumexp(1), torch.tensor([-INF, -INF], dtype=x.dtype, device=x.device).logsumexp(0)),
    ],
    ids=["extremes", "running extremes", "sort", "counts", "medians", "selections", "logsumexp"],
)
def test_nan_infinity_and_ties(call, dtype):
    agree(
        lambda x: [t for part in call(x) for t in ([part] if isinstance(part, torch.Tensor) else part)],
        SPECIAL.to(dtype),
    )


def test_signs_of_zeros_survive_a_sort():
    x = torch.tensor([0.0, -0.0, 1.0, -0.0, -1.0], device="neuron")
    assert torch.equal(x.sort(stable=True).values.signbit().cpu(), torch.tensor([True, False, True, True, False]))


def test_sums_are_wide_enough():
    agree(lambda x: x.sum(), torch.full((3,), 2**62, dtype=torch.int64))
    agree(lambda x: (x.sum(), x.cumsum(0)[-1]), torch.full((1000,), 2**31 - 1, dtype=torch.int32))
    ones = torch.ones(5000, dtype=torch.bfloat16, device="neuron")
    assert ones.sum().item() == 4992  # 5000 rounded once; counting in bfloat16 stops at 256
    assert ones.mean().item() == 1


@pytest.mark.covering("()")
@pytest.mark.parametrize("size", [(), (0, 3), (3, 0), (1,)], ids=str)
@pytest.mark.parametrize("name", ["sum", "any", "all", "count", "cumsum", "sort", "mean"])
def test_scalars_and_empty_tensors(name, size):
    calls = {
        "sum": lambda x: (x.sum(), x.sum(0), x.prod(-1)),
        "any": lambda x: (x.any(), x.any(0)),
        "all": lambda x: (x.all(), x.all(-1)),
        "count": lambda x: x.count_nonzero(),
        "cumsum": lambda x: (x.cumsum(0), *x.cummax(-1)),
        "sort": lambda x: x.sort(dim=0, stable=True),
        "mean": lambda x: (x.mean(), x.mean(0), x.var(-1, correction=0)),
    }
    agree(calls[name], example(torch.float32, *size))


def test_wrong_dimensions_raise_what_the_cpu_raises():
    x = torch.ones(2, 3, device="neuron")
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.sum(2)
    with pytest.raises(RuntimeError, match="dim 1 appears multiple times"):
        x.sum((1, 1))
    with pytest.raises(IndexError, match=r"max\(\): Expected reduction dim 0 to have non-zero size"):
        torch.ones(0, 3, device="neuron").max(0)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64, torch.float16], ids=str)
@pytest.mark.parametrize("largest", [True, False])
def test_topk_of_distinct_values(dtype, largest):
    x = (torch.randperm(240, generator=torch.Generator().manual_seed(1)).view(4, 60) - 120).to(dtype)
    agree(lambda x: (*x.topk(7, -1, largest), *x.topk(2, 0, largest), *x.kthvalue(9, 1), *x.median(1)), x)


@pytest.mark.parametrize("count", [5, 300])
@pytest.mark.parametrize("right", [False, True])
def test_search(count, right):
    edges = torch.arange(count).float().sort().values.repeat_interleave(2)
    values = torch.cat([example(torch.float32, 50, low=-3, high=count), torch.tensor([NAN, INF, -INF])])
    agree(lambda e, v: (torch.bucketize(v, e, right=right), torch.searchsorted(e, v, right=right)), edges, values)
    agree(
        lambda e, v: torch.searchsorted(e, v, side="right" if right else "left"),
        edges.view(2, -1),
        values[:50].view(2, -1),
    )
    agree(lambda e: torch.bucketize(2, e, right=right, out_int32=True), edges)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_isin(dtype):
    few, many = example(dtype, 5), example(dtype, 200, low=-3)
    for wanted in (few, many):
        agree(
            lambda x, w: (torch.isin(x, w), torch.isin(x, w, invert=True), torch.isin(x, 2)),
            example(dtype, 4, 6),
            wanted,
        )


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int16, torch.uint8], ids=str)
def test_histogram_of_integers_which_the_cpu_refuses(dtype):
    events.clear()
    ids = torch.tensor([0, 2, 2, 3, 1, 2], dtype=dtype, device="neuron")
    with pytest.raises(NotImplementedError, match="not implemented for"):
        torch.histc(ids.cpu(), bins=4, min=0, max=3)
    count = torch.compile(lambda x: torch.histc(x, bins=4, min=0, max=3), backend="neuron", dynamic=False)
    for counted in (torch.histc(ids, bins=4, min=0, max=3), torch.histc(ids, bins=4), count(ids)):
        assert counted.dtype == dtype
        assert counted.tolist() == [1, 1, 3, 1]
    out = torch.empty(4, dtype=dtype, device="neuron")
    assert torch.histc(ids, bins=4, out=out) is out
    assert out.tolist() == [1, 1, 3, 1]
    assert not [e["name"] for e in events.snapshot() if e["kind"] == "fallback"]
    with pytest.raises(RuntimeError):
        torch.histc(ids, bins=4, min=3, max=0)
    with pytest.raises(NotImplementedError):
        torch.histc(ids > 1, bins=2)


def test_histogram_of_floats():
    agree(lambda x: (torch.histc(x, 7, -2, 2), torch.histc(x, 5)), example(torch.float32, 100))


def test_long_scans():
    """Long enough that a quadratic implementation would take minutes."""
    x = example(torch.float64, 100_000)
    agree(lambda x: (x.cumsum(0), *x.cummax(0), x.cumsum(0).logcumsumexp(0)), x)
