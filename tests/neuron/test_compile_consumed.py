"""Compiled graphs write into the memory of what they replace, and never into anybody else's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from shakedown.neuron import compile_step

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def compiled(fn):
    return torch.compile(fn, backend="neuron", dynamic=False, fullgraph=True)


def address(tensor) -> int:
    return tensor.untyped_storage().buffer.unsafe_buffer_pointer()


def accumulate(state, x):
    state.mul_(0.5).add_(x)
    return state.sum()


def test_a_written_input_keeps_its_memory():
    state, x = torch.ones(4096, device="neuron") + 1, torch.arange(4096.0).to("neuron")
    run = compiled(accumulate)
    expected = torch.full((4096,), 2.0)
    for _ in range(3):
        before, version = address(state), state._version
        total = run(state, x)
        accumulate(expected, x.cpu())
        assert address(state) == before
        assert state._version > version
        torch.testing.assert_close(state.cpu(), expected)
        torch.testing.assert_close(total.cpu(), expected.sum())


def test_a_step_updates_weights_and_moments_where_they_are():
    model = nn.Linear(64, 64).to("neuron")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step = compile_step(model, lambda m, x: m(x).square().mean(), optimizer)
    x = torch.ones(2, 64, device="neuron")
    step(x)
    held = [model.weight, *(optimizer.state[model.weight][k] for k in ("exp_avg", "exp_avg_sq"))]
    before = [address(t) for t in held]
    step(x)
    assert [address(t) for t in held] == before


def test_whoever_shares_the_value_keeps_it():
    state = torch.ones(4096, device="neuron") + 1
    clone, deep, view = state.clone(), copy.deepcopy(state), state[:3]
    zeros, other = torch.zeros(4096, device="neuron"), torch.zeros(4096, device="neuron")
    run = compiled(accumulate)
    for _ in range(2):
        run(state, torch.ones(4096, device="neuron"))
        run(zeros, torch.ones(4096, device="neuron"))
    assert view.tolist() == [2.0] * 3 == state[:3].tolist()
    assert set(clone.tolist()) == set(deep.tolist()) == {2.0}
    assert set(other.tolist()) == {0.0}
    assert set(zeros.tolist()) == {1.5}


def test_inputs_that_share_memory():
    base = torch.arange(8.0)
    device = base.to("neuron")

    def function(x, y):
        x.add_(10)
        return x + y, y.clone()

    for pair in ((lambda b: (b[:4], b[4:])), (lambda b: (b, b[2:6].repeat(2)))):
        expected, actual = function(*pair(base)), compiled(function)(*pair(device))
        for ours, theirs in zip(actual, expected):
            assert torch.equal(ours.cpu(), theirs)
        assert torch.equal(device.cpu(), base)


def test_data_that_are_refused_leave_what_was_to_be_written():
    table = torch.arange(6.0).reshape(3, 2).to("neuron")
    state = torch.ones(2, device="neuron") + 1

    def function(state, ids):
        state.add_(nn.functional.embedding(ids, table).sum(0))
        return state * 2

    run = compiled(function)
    good, bad = torch.tensor([0, 2], device="neuron"), torch.tensor([0, 3], device="neuron")
    for ids, expected in ((bad, [2, 2]), (good, [6, 8]), (bad, [6, 8]), (good, [10, 14])):
        if ids is bad:
            with pytest.raises(IndexError):
                run(state, ids)
        else:
            run(state, ids)
        assert state.tolist() == expected
