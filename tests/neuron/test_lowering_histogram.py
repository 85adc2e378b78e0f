"""Histograms against the CPU: ranges, weights, densities, elements on edges and outside."""

import pytest
import torch

from .agreement import agree, example

pytestmark = pytest.mark.rotating(2, least=3)

INF, NAN = torch.inf, torch.nan


@pytest.mark.covering(strength=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_equal_bins(dtype, density, weighted):
    x, w = example(dtype, 6, 20), example(dtype, 6, 20, seed=1, low=0)
    options = {"density": density}

    def fn(x, w):
        weight = w if weighted else None
        return [
            torch.histogram(x, 7, weight=weight, **options),
            torch.histogram(x, 5, range=(-1.0, 2.5), weight=weight, **options),
            torch.histogram(
                x, torch.tensor([-3, -1, -0.5, 2, 2.25], dtype=dtype).to(x.device), weight=weight, **options
            ),
        ]

    agree(lambda x, w: [t for pair in fn(x, w) for t in pair], x, w)


def test_elements_on_the_edges_of_bins():
    """A bin begins where the edge says, however the division that finds it rounds."""
    for bins in (3, 7, 10, 49):
        edges = torch.linspace(0, 1, bins + 1)
        x = torch.cat([edges, edges.nextafter(torch.tensor(0.0)), edges.nextafter(torch.tensor(1.0))])
        agree(lambda x: list(torch.histogram(x, bins, range=(0.0, 1.0))), x)  # noqa: B023


@pytest.mark.parametrize(
    "x",
    [[2.0, 2.0], [], [1.0, NAN, 0.5], [INF, 1.0, -INF, 0.25]],
    ids=["one value", "nothing", "nan", "infinities"],
)
def test_unusual_data(x):
    x = torch.tensor(x)
    agree(lambda x: list(torch.histogram(x, 3, range=(0.0, 1.0))), x)
    if torch.isfinite(x).all():
        agree(lambda x: list(torch.histogram(x, 3)), x)


def test_several_dimensions():
    x, w = example(torch.float32, 4, 9, 3), example(torch.float32, 4, 9, seed=1, low=0)
    edges = [torch.tensor([-3.0, 0.0, 2.0]), torch.linspace(-4, 4, 5), torch.tensor([0.0, 0.5])]

    def fn(x, w, *edges):
        made = [
            torch.histogramdd(x, [2, 3, 4]),
            torch.histogramdd(x, [2, 3, 4], range=[-1.0, 1.0, -2.0, 2.0, 0.0, 3.0], weight=w, density=True),
            torch.histogramdd(x, edges, weight=w),
        ]
        return [t for m in made for t in (m.hist, *m.bin_edges)]

    agree(fn, x, w, *edges)


def test_given_outputs():
    x = example(torch.float32, 30).to("neuron")
    hist, edges = torch.empty(0, device="neuron"), torch.empty(0, device="neuron")
    torch.histogram(x, 4, out=(hist, edges))
    expected = torch.histogram(x.cpu(), 4)
    assert torch.equal(hist.cpu(), expected.hist)
    assert torch.equal(edges.cpu(), expected.bin_edges)
    assert not torch.neuron.get_fallback_ops()


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.histogram(x, 0),
        lambda x: torch.histogram(x, 3, range=(2.0, 1.0)),
        lambda x: torch.histogram(x / 0, 3),
        lambda x: torch.histogram(x, 3, weight=x[:2]),
        lambda x: torch.histogram(x.long(), 3),
        lambda x: torch.histogramdd(x, [3]),
        lambda x: torch.histogramdd(x.view(2, 2), [3]),
    ],
)
def test_errors_are_the_cpus(fn):
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        fn(x)
    with pytest.raises(type(expected.value)) as actual:
        fn(x.to("neuron"))
    assert str(actual.value) == str(expected.value)
