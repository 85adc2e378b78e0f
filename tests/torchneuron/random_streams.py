"""The device's random stream."""

from __future__ import annotations

import pytest
import torch

from .contract import entry


@entry("torch.neuron", "manual_seed", "manual_seed_all")
def manual_seed():
    """The same seed gives the same values; `torch.manual_seed` seeds the device too; the CPU's generator is left alone"""
    cpu = torch.get_rng_state()
    torch.neuron.manual_seed(3)
    first = torch.rand(4, device="neuron").tolist()
    torch.neuron.manual_seed_all(3)
    assert torch.rand(4, device="neuron").tolist() == first
    assert torch.equal(cpu, torch.get_rng_state())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        assert torch.rand(4, device="neuron").tolist() == first


@entry("torch.neuron", "seed", "seed_all", "initial_seed")
def seed():
    """A new seed from the system, which `initial_seed` tells"""
    torch.neuron.manual_seed(5)
    assert torch.neuron.initial_seed() == 5
    torch.neuron.seed()
    once = torch.neuron.initial_seed()
    torch.neuron.seed_all()
    assert len({5, once, torch.neuron.initial_seed()}) == 3
    torch.neuron.manual_seed(0)


@entry("torch.neuron", "get_rng_state", "set_rng_state")
def state():
    """16 bytes, seed and offset; 8 are a seed with offset 0; other sizes are a RuntimeError"""
    torch.neuron.manual_seed(7)
    state = torch.neuron.get_rng_state()
    assert (state.dtype, state.numel(), state.device.type) == (torch.uint8, 16, "cpu")
    first = torch.rand(3, device="neuron").tolist()
    torch.neuron.set_rng_state(state)
    assert torch.rand(3, device="neuron").tolist() == first
    torch.neuron.set_rng_state(state[:8])
    assert torch.rand(3, device="neuron").tolist() == first
    with pytest.raises(RuntimeError):
        torch.neuron.set_rng_state(state[:5])
