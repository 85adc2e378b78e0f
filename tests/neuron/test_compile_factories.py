"""Functions that make tensors, wrapped as under ``shakedown exec``, are captured whether Dynamo or the wrapping came first, and
by whichever name they are called."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import torch
from torch import arange, full
from shakedown.neuron import torch_gaps_memory

def compiled_on(device, backend):
    def made(x):
        there = {"device": x.device}
        a = arange(3, **there) + torch.arange(3, **there) + full((3,), 2.0, **there) + torch.full((3,), x[0], **there)
        b = torch.ones_like(x) + torch.zeros(3, **there) + torch.tensor([1.0, 2.0, 3.0], **there) + x.new_ones(3)
        return a + b + x.new_tensor([1.0, 2.0, 3.0]) + torch.rand(3, **there) * 0
    torch._dynamo.reset()
    return torch.compile(made, backend=backend, fullgraph=True)(torch.ones(3, device=device))

first, second = ("cpu", "eager"), ("neuron", "neuron")
if sys.argv[1] == "device":
    torch.ones(2, device="neuron") + 1
    torch_gaps_memory.close_factories()
before = compiled_on(*first).tolist()
torch_gaps_memory.close_factories()
assert before == compiled_on(*second).tolist() == compiled_on(*first).tolist() == [7, 11, 15], "values"
"""


@pytest.mark.parametrize("first", ["dynamo", "device"])
def test_a_graph_holds_them(first):
    done = subprocess.run([sys.executable, "-c", SCRIPT, first], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
