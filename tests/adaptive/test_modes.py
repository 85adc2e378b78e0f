"""Beside recorded operators: random streams, compiled graphs, function transforms, profiles, and tensors of other layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from .running import adaptive, operators, plain_eager, same, same_as_cpu, same_as_cpu_in_part, until_fused


def _plainly(fn: Callable[[], Any]) -> Any:
    """What plain eager execution gives: deterministic mode records nothing."""
    with plain_eager():
        made = fn()
        torch.neuron.synchronize()
        return made


def _drawn() -> Sequence[torch.Tensor]:
    torch.manual_seed(7)
    x = torch.rand(6, 5, device="neuron") + 1
    dropped = F.dropout(x, 0.5, training=True)
    x.normal_()
    return x, dropped, torch.rand_like(x) * dropped


def test_draws_under_a_seed_are_those_of_plain_eager_execution() -> None:
    expected = [t.cpu() for t in _plainly(_drawn)]

    def check(actual: Sequence[torch.Tensor]) -> None:
        for a, e in zip(actual, expected):
            assert torch.equal(a.cpu(), e)

    until_fused(_drawn, check)


def test_the_state_of_the_random_stream_is_that_of_the_last_recorded_draw() -> None:
    def run() -> Sequence[Any]:
        torch.manual_seed(3)
        torch.rand(4, device="neuron")
        state = torch.neuron.get_rng_state()
        first = torch.rand(4, device="neuron") * 2
        torch.neuron.set_rng_state(state)
        return state, first, torch.rand(4, device="neuron") * 2

    def check(made: Sequence[Any]) -> None:
        state, first, again = made
        assert torch.equal(state, wanted[0])
        assert torch.equal(first.cpu(), wanted[1].cpu())
        assert torch.equal(again.cpu(), first.cpu())

    wanted = _plainly(run)
    until_fused(run, check)


def test_a_generator_of_ones_own_gives_the_draws_of_plain_eager_execution() -> None:
    def run() -> torch.Tensor:
        generator = torch.Generator().manual_seed(5)
        x = torch.rand(4, 3, device="neuron")
        return x.normal_(generator=generator) + 1

    wanted = _plainly(run).cpu()
    for _ in range(5):
        assert torch.equal(run().cpu(), wanted)
        adaptive.wait(60)


def test_training_with_dropout_ends_with_the_weights_of_plain_eager_execution() -> None:
    def run() -> Sequence[torch.Tensor]:
        torch.manual_seed(11)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2)
        )
        model = model.to("neuron")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        x = torch.randn(4, 6, device="neuron")
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    wanted = [p.cpu() for p in _plainly(run)]
    until_fused(run, lambda made: same(made, wanted))


def test_compiled_graphs_and_recorded_operators_see_each_others_values() -> None:
    compiled = torch.compile(lambda x, y: (x @ y).relu() + x, backend="neuron")

    def program(d: str) -> Sequence[Any]:
        fn = compiled if d == "neuron" else (lambda x, y: (x @ y).relu() + x)
        x = torch.arange(9.0).to(d).reshape(3, 3) - 4
        y = x.t() * 0.5
        z = fn(x + 1, y)
        z.mul_(2)
        w = fn(z, y[:, :3])
        return z, w + 1

    same_as_cpu_in_part(program)


def test_a_compiled_training_step_and_a_recorded_optimizer_are_right() -> None:
    def program(d: str) -> Sequence[Any]:
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 3)
        layer = layer.to(d)
        forward = torch.compile(layer, backend="neuron") if d == "neuron" else layer
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        x = torch.arange(8.0).reshape(2, 4).to(d) / 8
        for _ in range(5):
            optimizer.zero_grad()
            forward(x).square().sum().backward()
            optimizer.step()
        return [p.detach() for p in layer.parameters()]

    expected = program("cpu")
    for _ in range(3):
        same(program("neuron"), expected)
        adaptive.wait(60)


def test_function_transforms_record() -> None:
    def program(d: str) -> Sequence[Any]:
        w = torch.arange(6.0).reshape(3, 2).to(d) / 6
        x = torch.arange(12.0).reshape(4, 3).to(d) / 12

        def loss(w: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
            return (row @ w).tanh().sum()

        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, x)
        value, pulled = torch.func.vjp(lambda w: (x @ w).sin(), w)
        _, pushed = torch.func.jvp(lambda w: (x @ w).sin(), (w,), (torch.ones_like(w),))
        return each, value, *pulled(torch.ones_like(value)), pushed, torch.func.hessian(lambda v: (v**3).sum())(w[:, 0])

    same_as_cpu(program)


def test_double_backward_and_checkpoints_record() -> None:
    from torch.utils.checkpoint import checkpoint

    def program(d: str) -> Sequence[Any]:
        w = (torch.arange(4.0) / 4).to(d).requires_grad_()
        (g,) = torch.autograd.grad((w**3).sum(), w, create_graph=True)
        (g * g).sum().backward()
        v = (torch.arange(4.0) / 4).to(d).requires_grad_()
        checkpoint(lambda t: (t.sin() * t).sum(), v, use_reentrant=False).backward()
        return w.grad, v.grad

    same_as_cpu(program)


def test_sparse_and_nested_tensors_around_recorded_values_are_right() -> None:
    def program(d: str) -> Sequence[Any]:
        values = torch.arange(3.0).to(d) * 2 + 1
        index = torch.tensor([[0, 1, 2], [2, 0, 1]]).to(d)
        sparse = torch.sparse_coo_tensor(index, values, (3, 3))
        dense = torch.arange(9.0).to(d).reshape(3, 3) * 0.5
        product = torch.sparse.mm(sparse, dense) + 1
        values.mul_(0)
        nested = torch.nested.nested_tensor([dense[0] * 2, dense[1, :2] + 1])
        padded = torch.nested.to_padded_tensor(nested * 3, 0.0)
        return product, sparse.to_dense() * 2, padded + 1

    same_as_cpu_in_part(program)


def test_a_profile_has_plans_of_its_own_and_nothing_recorded_crosses_the_switch() -> None:
    def work() -> torch.Tensor:
        x = torch.arange(6, device="neuron", dtype=torch.float64).reshape(2, 3) * 2
        return (x + 0.5).sum(1)

    expected = (torch.arange(6, dtype=torch.float64).reshape(2, 3) * 2 + 0.5).sum(1)
    for _ in range(4):
        made = work()
        assert adaptive.status()["operators"]["waiting"] > 0 or not operators()[1]
        with torch.neuron.use_profile("neuron-2.33"):
            assert adaptive.status()["operators"]["waiting"] == 0
            assert torch.equal(made.cpu(), expected)
            inside = work()
        assert adaptive.status()["operators"]["waiting"] == 0
        again = work()
        assert torch.equal(inside.cpu(), expected)
        assert torch.equal(again.cpu(), expected)
        adaptive.wait(60)


def test_an_inference_mode_and_a_default_dtype_do_not_leak_into_what_is_recorded() -> None:
    def program(d: str) -> Sequence[Any]:
        with torch.inference_mode():
            frozen = torch.ones(3, device=d) * 2
        torch.set_default_dtype(torch.float64)
        try:
            wide = torch.ones(3, device=d) * 0.1
        finally:
            torch.set_default_dtype(torch.float32)
        narrow = torch.ones(3, device=d) * 0.1
        w = torch.ones(3, device=d).requires_grad_()
        (w * frozen.clone()).sum().backward()
        return frozen, wide, narrow, w.grad

    same_as_cpu(program)


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_data_loader_with_a_forked_worker_feeds_recorded_steps() -> None:
    rows = torch.arange(24.0).reshape(8, 3)
    total = torch.zeros(3, device="neuron")
    data = torch.utils.data.TensorDataset(rows)
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context="fork"):
        total.add_((batch.to("neuron") * 2).sum(0))
    assert torch.equal(total.cpu(), (rows * 2).sum(0))


def test_data_that_a_compiled_graph_refuses_are_refused_at_the_call_and_nothing_is_left_recorded() -> None:
    compiled = torch.compile(lambda x, i: x.gather(0, i) * 2, backend="neuron")
    x = torch.arange(6.0).to("neuron")
    x.gather(0, torch.tensor([5]).to("neuron"))  # no longer new
    for _ in range(3):
        assert torch.equal(compiled(x, torch.tensor([1, 5]).to("neuron")).cpu(), torch.tensor([2.0, 10.0]))
        with pytest.raises(RuntimeError, match=r"index 6 is out of bounds .*of graph"):
            compiled(x, torch.tensor([1, 6]).to("neuron"))
        assert adaptive.status()["operators"]["waiting"] == 0
        torch.neuron.synchronize()
        late = x.gather(0, torch.tensor([7]).to("neuron"))
        # An operator recorded before the graph has its own error, not the graph's.
        with pytest.raises(RuntimeError, match=r"index 7 is out of bounds (?!.*of graph)"):
            compiled(x, torch.tensor([1, 6]).to("neuron"))
        with pytest.raises(RuntimeError, match="this tensor has no value"):
            late.cpu()
