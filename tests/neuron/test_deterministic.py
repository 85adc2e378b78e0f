"""Deterministic mode: nothing is refused, because every operator gives the same bits each time; new memory shows itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from shakedown.neuron import events

pytestmark = pytest.mark.rotating(2, least=3)


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def rand(*size: int, grad: bool = False) -> torch.Tensor:
    host = torch.rand(*size, generator=torch.Generator().manual_seed(5))
    return host.to("neuron").requires_grad_(grad)


def index(n: int, top: int) -> torch.Tensor:
    return torch.randint(top, (n,), generator=torch.Generator().manual_seed(6)).to("neuron")


def _gradient(fn, *size: int) -> torch.Tensor:
    x = rand(*size, grad=True)
    fn(x).square().sum().backward()
    return x.grad


# What CUDA refuses in this mode, or computes by another algorithm (the list at torch.use_deterministic_algorithms).
CALLS = {
    "scatter_add": lambda: torch.zeros(9, device="neuron").scatter_add(0, index(400, 9), rand(400)),
    "scatter_reduce": lambda: torch.zeros(9, device="neuron").scatter_reduce(0, index(400, 9), rand(400), "mean"),
    "index_add": lambda: torch.zeros(9, device="neuron").index_add(0, index(400, 9), rand(400)),
    "index_put": lambda: torch.zeros(9, device="neuron").index_put((index(400, 9),), rand(400), accumulate=True),
    "put": lambda: torch.zeros(9, device="neuron").put(index(400, 9), rand(400), accumulate=True),
    "index_copy": lambda: torch.zeros(9, device="neuron").index_copy(0, index(9, 9), rand(9)),
    "bincount": lambda: torch.bincount(index(400, 9), rand(400)),
    "histc": lambda: torch.histc(rand(400), 9),
    "cumsum": lambda: torch.cumsum(rand(400), 0),
    "kthvalue": lambda: torch.kthvalue(rand(40), 7)[1],
    "max unpooling": lambda: F.max_unpool1d(rand(1, 1, 3), torch.tensor([[[0, 3, 5]]], device="neuron"), 2),
    "median": lambda: torch.median(rand(3, 40), 1)[1],
    "embedding": lambda: _gradient(lambda w: F.embedding(index(400, 9), w), 9, 4),
    "gather": lambda: _gradient(lambda x: x.gather(0, index(400, 9)), 9),
    "index": lambda: _gradient(lambda x: x[index(400, 9)], 9),
    "interpolate": lambda: _gradient(lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), 1, 2, 4, 4),
    "adaptive pooling": lambda: _gradient(lambda x: F.adaptive_avg_pool2d(x, 3), 1, 2, 5, 5),
    "max pooling": lambda: _gradient(lambda x: F.max_pool2d(x, 3, 1), 1, 2, 5, 5),
    "reflection padding": lambda: _gradient(lambda x: F.pad(x, (2, 2), mode="reflect"), 1, 2, 5),
    "nll_loss2d": lambda: _gradient(lambda x: F.nll_loss(x, index(16, 3).view(1, 4, 4)), 1, 3, 4, 4),
    "convolution": lambda: _gradient(lambda x: F.conv2d(x, rand(3, 2, 3, 3)), 1, 2, 6, 6),
}


@pytest.mark.rotating(2)
@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_refused_and_bits_repeat(deterministic, name):
    events.clear()
    first = CALLS[name]()
    for _ in range(3):
        assert torch.equal(CALLS[name](), first)
    assert not torch.neuron.get_fallback_ops()
    torch.use_deterministic_algorithms(False)  # interpolation is another operator then
    assert torch.equal(CALLS[name](), first) or name == "interpolate"


def _trained() -> list[torch.Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 9)).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    ids = index(40, 9)
    for _ in range(3):
        F.cross_entropy(model(ids), ids).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().cpu() for p in model.parameters()]


def test_a_training_repeats_itself(deterministic):
    first = _trained()
    assert all(torch.equal(a, b) for a, b in zip(_trained(), first))
    torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(_trained(), first))


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_graph_repeats_itself(deterministic):
    def many(x, ids):
        return torch.zeros_like(x).index_add(0, ids, x), torch.cumsum(x, 0), F.dropout(x, 0.5)

    run, x, ids = torch.compile(many, backend="neuron", fullgraph=True), rand(20), index(20, 20)
    results = []
    for _ in range(2):
        torch.manual_seed(2)
        results.append(run(x, ids))
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_modes(recwarn):
    """Warnings are for what is not deterministic: there is none."""
    for mode, number in (("warn", 1), ("error", 2), ("default", 0)):
        torch.set_deterministic_debug_mode(mode)
        try:
            assert torch.get_deterministic_debug_mode() == number
            assert torch.are_deterministic_algorithms_enabled() is bool(number)
            CALLS["scatter_add"](), CALLS["index_put"]()
        finally:
            torch.set_deterministic_debug_mode("default")
    assert not [w for w in recwarn if "determinis" in str(w.message)]


DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.uint8, torch.bool, torch.complex64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_new_memory_is_filled_as_on_the_cpu(deterministic, dtype):
    def made(device):
        like = torch.zeros(2, 2, dtype=dtype, device=device)
        return [
            torch.empty(3, dtype=dtype, device=device),
            torch.empty_strided((2, 2), (1, 3), dtype=dtype, device=device),
            torch.empty_like(like),
            like.new_empty(3),
            torch.zeros(2, dtype=dtype, device=device).resize_(4),
            torch.empty(0, dtype=dtype, device=device),
        ]

    for ours, theirs in zip(made("neuron"), made("cpu")):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0, equal_nan=True)


def test_it_can_be_left_unfilled(deterministic):
    settings = torch.utils.deterministic
    assert settings.fill_uninitialized_memory
    settings.fill_uninitialized_memory = False
    try:
        assert not torch.empty(3, device="neuron").isnan().any()
    finally:
        settings.fill_uninitialized_memory = True
    assert torch.empty(3, device="neuron").isnan().all()
    torch.use_deterministic_algorithms(False)
    assert not torch.empty(3, device="neuron").isnan().any()
