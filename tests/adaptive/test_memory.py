"""What is recorded counts from when it is recorded: the figures are those of plain eager execution."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ..neuron import memory_model
from .running import adaptive, operators

pytestmark = pytest.mark.usefixtures("cheap_collections")
n = torch.neuron
KIB = 1024


@pytest.fixture(autouse=True)
def _no_limit_afterwards():
    yield
    n.set_memory_limit(None)


def kib(count: int) -> torch.Tensor:
    return torch.ones(count, 256, device="neuron")


def recorded() -> int:
    return adaptive.status()["operators"]["waiting"]


def test_a_recorded_result_is_counted_before_it_is_there():
    x = kib(4)
    for _ in range(2):  # the first call of an operator is not recorded
        n.synchronize()
        before = n.memory_allocated()
        n.reset_peak_memory_stats()
        y = x + 1
        z = y * 2
        assert n.memory_allocated() == n.max_memory_allocated() == before + 8 * KIB
        waits = recorded()
        del y
        assert n.memory_allocated() == before + 4 * KIB
        z.add_(1)
        n.synchronize()
        assert n.memory_allocated() == before + 4 * KIB
        assert n.max_memory_allocated() == before + 8 * KIB
        assert torch.equal(z.cpu(), torch.full((4, 256), 5.0))
        del z
    assert waits >= 2


_steps = st.tuples(st.sampled_from([*memory_model.STEPS, "create", "forget"]), st.integers(0, 9), st.integers(0, 20))


@given(st.lists(_steps, min_size=4, max_size=14))
@settings(max_examples=30, deadline=None)
def test_any_sequence_counts_as_on_cuda(sequence):
    memory_model.play([("create", 0, len(sequence)), *sequence])


def test_a_training_step_has_one_peak_however_it_is_run():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)).to("neuron")
    optimizer = torch.optim.AdamW(module.parameters(), foreach=True)
    x = torch.ones(8, 16, device="neuron")

    def step() -> int:
        n.reset_peak_memory_stats()
        optimizer.zero_grad()
        module(x).pow(2).mean().backward()
        optimizer.step()
        n.synchronize()
        return n.max_memory_allocated()

    for _ in range(2):
        step()
    one_by_one = step()
    fused, _ = operators()
    for _ in range(8):
        assert step() == one_by_one
        adaptive.wait(60)
    assert operators()[0] > fused  # some of these ran fused


def test_what_is_refused_was_not_recorded():
    x = kib(8)
    for _ in range(2):
        del _
        y = x + 1
        del y
    n.synchronize()
    gc.collect()
    n.set_memory_limit(n.memory_allocated() + KIB)
    before = n.memory_allocated(), recorded(), n.get_rng_state()
    with pytest.raises(torch.OutOfMemoryError) as caught:
        x + 1
    del caught
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.rand(64, 256, device="neuron")
    del caught
    assert n.memory_allocated() == before[0]
    assert recorded() == before[1]
    assert torch.equal(n.get_rng_state(), before[2])
    x.mul_(3)
    n.set_memory_limit(None)
    assert torch.equal((x + 1).cpu(), torch.full((8, 256), 4.0))


def test_a_backward_pass_can_be_tried_again():
    x = kib(8).requires_grad_()
    for _ in range(2):
        loss = (x.exp() * x).sum()
        loss.backward()
        x.grad = None
    loss = (x.exp() * x).sum()
    gc.collect()
    n.set_memory_limit(n.memory_allocated() + 9 * KIB)
    with pytest.raises(torch.OutOfMemoryError):
        loss.backward(retain_graph=True)
    n.set_memory_limit(None)
    x.grad = None
    loss.backward()
    torch.testing.assert_close(x.grad.cpu(), torch.full((8, 256), 2 * torch.e))


def test_the_working_memory_of_fused_programs_counts():
    x = kib(64)

    def step() -> int:
        n.reset_peak_memory_stats()
        before = n.memory_allocated()
        y = (x.exp() + 1).softmax(-1) * 2
        n.synchronize()
        assert y.sum().item() == pytest.approx(2 * 64, rel=1e-5)
        return n.max_memory_allocated() - before

    fused, _ = operators()
    for _ in range(8):
        most = step()
        adaptive.wait(60)
    assert operators()[0] > fused
    needs = [
        made.temp for _, group in adaptive.segments() for made in group.programs if "aten::_softmax" in group.operators
    ]
    assert max(needs) > 0
    assert most >= 64 * KIB + max(needs)
