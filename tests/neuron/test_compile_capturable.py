"""Optimizers whose numbers are tensors: Dynamo makes fused multiply-adds of their sums, and the step stays one program."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from shakedown.neuron import events


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sums_by_a_tensor_are_the_cpus(fresh_dynamo, dtype):
    def run(x: Any, y: Any, number: Any) -> Any:
        a, b, c = x.clone(), x.clone(), x.clone()
        return a.add_(y, alpha=number), b.addcmul_(x, y, value=number), c.addcdiv_(x, y, value=number)

    torch.manual_seed(0)
    x, y, number = torch.randn(3, 4).to(dtype), torch.rand(3, 4).to(dtype) + 1, torch.tensor(0.25, dtype=dtype)
    there = [t.to("neuron") for t in (x, y, number)]
    events.clear()
    got = torch.compile(run, backend="neuron", fullgraph=True)(*there)
    assert events.total("compile") == 1
    for ours, theirs in zip(got, run(x, y, number.item())):
        torch.testing.assert_close(ours.cpu(), theirs)
        assert ours.dtype == dtype


def test_a_capturable_step_is_one_program(fresh_dynamo, recwarn):
    torch.manual_seed(0)
    host = torch.nn.Linear(4, 3)
    there = copy.deepcopy(host).to("neuron")
    theirs = torch.optim.AdamW(host.parameters(), lr=0.01)
    ours = torch.optim.AdamW(there.parameters(), lr=0.01, capturable=True, foreach=False)
    step = torch.compile(ours.step, backend="neuron")
    for _ in range(3):
        x = torch.randn(5, 4)
        for model, optimizer, run in ((host, theirs, theirs.step), (there, ours, step)):
            optimizer.zero_grad()
            model(x.to(next(model.parameters()).device)).square().sum().backward()
            run()
    assert not [w for w in recwarn if "splits graph" in str(w.message)]
    for mine, other in zip(there.parameters(), host.parameters()):
        torch.testing.assert_close(mine.cpu(), other, atol=1e-5, rtol=1e-4)
