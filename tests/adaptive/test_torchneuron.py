"""TorchNeuron's names with adaptive eager on: the checks of the contract that run operators, and the script of the examples."""

from __future__ import annotations

import pytest

from ..torchneuron.contract import Entry, entries, row_of
from ..torchneuron.test_script import test_the_script_runs_and_learns as test_the_script_runs_and_learns

# What starts processes of its own, or compiles graphs, is the same with recorded operators.
_SECTIONS = ("torch_neuronx", "stream", "event", "memory", "torch.neuron", "metrics", "profiling")


@pytest.mark.parametrize(
    "one", [e for e in entries() if e.section in _SECTIONS], ids=lambda one: f"{one.section}-{one.name}"
)
def test_the_check_passes(one: Entry) -> None:
    assert not row_of(one).problem
