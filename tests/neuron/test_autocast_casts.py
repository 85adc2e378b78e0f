"""The cache of casts: a weight is cast once in an outermost region of autocast, and never read when it is stale."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from shakedown.neuron import autocast, events

pytestmark = pytest.mark.rotating(2, least=3)

CAST = "aten::_to_copy"


def region(**options):
    return torch.autocast("neuron", dtype=torch.bfloat16, **options)


@pytest.fixture
def weight() -> torch.Tensor:
    return nn.Parameter(torch.full((3, 3), 2.0, device="neuron"))


@pytest.fixture
def x() -> torch.Tensor:
    return torch.ones(3, 3, device="neuron", dtype=torch.bfloat16)  # which nothing has to cast


def casts() -> int:
    """How many there were since the last call."""
    found = Counter({row["name"]: row["count"] for row in events.snapshot() if row["kind"] == "execute"})[CAST]
    events.clear()
    return found


def test_a_weight_is_cast_once_in_an_outermost_region(weight, x):
    casts()
    with region():
        (x @ weight), (x @ weight)
        with region(enabled=False):
            assert (x.float() @ weight).dtype is torch.float32
        with region():
            y = x @ weight
        x @ weight
    assert y.dtype is torch.bfloat16
    assert casts() == 1 + 1  # and x, by hand
    assert not autocast._casts._kept
    with region():
        x @ weight
    assert casts() == 1


def test_it_can_be_turned_off_and_cleared(weight, x):
    casts()
    with region(cache_enabled=False):
        (x @ weight), (x @ weight)
    assert casts() == 2
    with region():
        x @ weight
        with region(cache_enabled=False):
            x @ weight
        assert casts() == 2
        x @ weight
        assert casts() == 0
        torch.clear_autocast_cache()
        x @ weight
        assert casts() == 1
    torch.set_autocast_cache_enabled(False)
    try:
        with region():
            (x @ weight), (x @ weight)
    finally:
        torch.set_autocast_cache_enabled(True)
    assert casts() == 2


def test_an_error_in_a_region_clears_it_too(weight, x):
    def failing():
        with region():
            x @ weight
            return 1 / 0

    with pytest.raises(ZeroDivisionError):
        failing()
    assert not autocast._casts._kept


def test_only_leaves_in_float32_that_require_a_gradient_are_kept(weight, x):
    for other in (
        weight.detach(),  # requires none
        weight * 1.0,  # no leaf
        nn.Parameter(weight.detach().half()),  # another dtype
        weight.view(3, 3),
    ):
        with region():
            casts()
            (x @ other), (x @ other)
            assert casts() == 2
            assert not autocast._casts._kept


@pytest.mark.parametrize(
    "write",
    [
        lambda w: w.detach().add_(1),
        lambda w: w.data.mul_(1.5),
        lambda w: setattr(w, "data", torch.full((3, 3), 3.0, device="neuron")),
        lambda w: torch.no_grad()(w.copy_)(torch.full((3, 3), 3.0)),
        lambda w: torch.optim.SGD([w], lr=1.0, maximize=True, foreach=False).step(
            setattr(w, "grad", torch.ones_like(w))
        ),
        lambda w: w.detach().view(-1)[:].fill_(3.0),
        lambda w: torch._foreach_add_([w.detach()], 1.0),
    ],
    ids=["in place", "data", "set data", "copy", "optimizer", "view", "foreach"],
)
def test_a_weight_that_was_written_is_cast_anew(weight, x, write):
    """CUDA's cache gives the old value here."""
    with region():
        assert torch.equal(x @ weight, torch.full_like(x, 6))
        write(weight)
        assert torch.equal(x @ weight, torch.full_like(x, 9))
        casts()
        x @ weight
        assert casts() == 0


def test_precisions_in_each_other_have_casts_of_their_own(weight, x):
    with region():
        x @ weight
        with torch.autocast("neuron", dtype=torch.float16):
            assert (x.half() @ weight).dtype is torch.float16
        casts()
        assert (x @ weight).dtype is torch.bfloat16
        assert casts() == 0


def test_gradients_flow_through_a_shared_cast(weight, x):
    with region():
        y = (x @ weight) + (x @ weight)
    y.sum().backward()
    assert torch.equal(weight.grad, torch.full((3, 3), 6.0, device="neuron"))
    weight.grad = None
    with region():
        for _ in range(2):  # each backward pass through the same cast
            (x @ weight).sum().backward()
    assert torch.equal(weight.grad, torch.full((3, 3), 6.0, device="neuron"))


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_a_cast_without_a_gradient_is_not_taken_for_one_with(weight, x, without):
    """CUDA's cache loses the gradient here."""
    with region():
        with without():
            x @ weight
        y = x @ weight
        y.sum().backward()
    assert torch.equal(weight.grad, torch.full((3, 3), 3.0, device="neuron"))


def test_a_weights_memory_is_its_own(weight):
    """A dead weight's cast is not another's, though the other may get its id and its memory."""
    x = torch.ones(3, 3, device="neuron", dtype=torch.bfloat16)
    with region():
        for value in range(20):
            made = nn.Parameter(torch.full((3, 3), float(value), device="neuron"))
            assert torch.equal(x @ made, torch.full_like(x, 3 * value))
            del made


def test_under_transforms_and_modes_each_cast_is_seen(weight, x):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.name())
            return func(*args, **(kwargs or {}))

    with region():
        x @ weight
        seen: list[str] = []
        with Names():
            (x @ weight), (x @ weight)
        assert seen.count(CAST) == 2
        grad = torch.func.grad(lambda w: (x @ w).sum())(weight)
        assert torch.equal(grad, torch.full((3, 3), 3.0, device="neuron"))
        mapped = torch.vmap(lambda row: row @ weight)(x)
        assert torch.equal(mapped, x @ weight)


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_graph_within_a_region_neither_reads_nor_fills_it(weight, x):
    run = torch.compile(lambda x, w: x @ w + x @ w, backend="neuron", fullgraph=True)
    with region():
        first = run(x, weight)
        assert not autocast._casts._kept
        x @ weight
        assert torch.equal(run(x, weight), first)
        with torch.no_grad():
            weight.add_(1)
        assert torch.equal(run(x, weight), torch.full_like(x, 18))


def test_a_model_that_uses_its_weights_twice_learns_the_same():
    """But for rounding: gradients of one cast are summed in its own precision, those of two casts in float32."""
    torch.manual_seed(0)
    start = nn.Linear(4, 4).to("neuron")
    x = torch.randn(3, 4, device="neuron")
    results = []
    for cached in (True, False):
        model = nn.Linear(4, 4).to("neuron")
        model.load_state_dict(start.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            with region(cache_enabled=cached):
                loss = model(model(x)).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append([p.detach().cpu() for p in model.parameters()])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)
