"""Memory figures."""

from __future__ import annotations

import torch

import torch_neuronx

from .contract import entry
from .devices import both

_BYTES = ("allocated_bytes", "reserved_bytes", "active_bytes")
_COUNTS = ("num_alloc_retries", "num_ooms", "num_tensor_frees", "allocation_requests")


@both("memory_stats")
def memory_stats():
    """A dict with the keys of the table below"""
    assert set(torch_neuronx.memory_stats()) == {*_BYTES, *_COUNTS}
    assert torch_neuronx.memory_stats(0).keys() == torch_neuronx.memory_stats("neuron:0").keys()


@entry("memory", *_BYTES)
def byte_keys():
    """Each a dict of current, peak, allocated and freed; current is what was allocated and not freed"""
    x = torch.ones(1000, device="neuron")
    torch_neuronx.synchronize()
    stats = torch_neuronx.memory_stats()
    for key in _BYTES:
        assert set(stats[key]) == {"current", "peak", "allocated", "freed"}
        assert all(isinstance(v, int) for v in stats[key].values())
        assert stats[key]["current"] <= stats[key]["peak"]
    assert stats["allocated_bytes"]["current"] >= x.nbytes


@entry("memory", *_COUNTS)
def count_keys():
    """Whole numbers; requests grow with a tensor, frees with its end"""
    before = torch_neuronx.memory_stats()
    x = torch.empty(100, device="neuron")
    del x
    after = torch_neuronx.memory_stats()
    assert all(isinstance(after[key], int) for key in _COUNTS)
    assert after["allocation_requests"] == before["allocation_requests"] + 1
    assert after["num_tensor_frees"] == before["num_tensor_frees"] + 1


@both("memory_allocated")
def memory_allocated():
    """Grows by a tensor's bytes exactly, and falls again"""
    before = torch_neuronx.memory_allocated()
    x = torch.ones(1024, device="neuron")
    assert torch_neuronx.memory_allocated(0) == before + x.nbytes
    y = x[10:]
    assert torch_neuronx.memory_allocated() == before + x.nbytes
    del x, y
    assert torch_neuronx.memory_allocated() == before


@both("max_memory_allocated")
@both("reset_peak_memory_stats")
def peak():
    """Keeps the most, until it is reset to what is allocated now"""
    torch_neuronx.reset_peak_memory_stats()
    before = torch_neuronx.max_memory_allocated()
    assert before == torch_neuronx.memory_allocated()
    x = torch.ones(4096, device="neuron")
    nbytes = x.nbytes
    del x
    assert torch_neuronx.max_memory_allocated() >= before + nbytes
    torch_neuronx.reset_peak_memory_stats()
    assert torch_neuronx.max_memory_allocated() == torch_neuronx.memory_allocated()


@both("reset_accumulated_memory_stats")
def accumulated():
    """Sets the sums of allocated and freed bytes to nothing"""
    torch.ones(10, device="neuron")
    torch_neuronx.reset_accumulated_memory_stats()
    stats = torch_neuronx.memory_stats()
    assert stats["allocated_bytes"]["allocated"] == stats["allocated_bytes"]["freed"] == 0
    assert stats["allocation_requests"] == 0


@both("memory_reserved")
@both("max_memory_reserved")
def reserved():
    """Whole numbers, not below what is allocated unless they are 0, as in the snapshot"""
    torch.ones(10, device="neuron")
    assert type(torch_neuronx.memory_reserved()) is int
    assert torch_neuronx.memory_reserved() in (0, torch_neuronx.memory_allocated()) or (
        torch_neuronx.memory_reserved() > torch_neuronx.memory_allocated()
    )
    assert torch_neuronx.max_memory_reserved() >= torch_neuronx.memory_reserved()


@both("empty_cache")
def empty_cache():
    """Returns, and frees nothing that is in use"""
    x = torch.ones(3, device="neuron")
    torch_neuronx.empty_cache()
    assert x.tolist() == [1, 1, 1]


@both("memory_summary")
def memory_summary():
    """Text with its title and the device; the abbreviated form is not longer"""
    full, short = torch_neuronx.memory_summary(), torch_neuronx.memory_summary(0, abbreviated=True)
    assert "Neuron Memory Summary" in full
    assert "Device" in full
    assert len(short) <= len(full)


@entry("torch.neuron", "memory")
def submodule():
    """A submodule with all memory functions, imported either way"""
    import torch.neuron.memory as by_import

    assert by_import is torch.neuron.memory
    for name in (
        "memory_stats",
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "reset_peak_memory_stats",
        "reset_accumulated_memory_stats",
        "memory_summary",
        "empty_cache",
    ):
        assert getattr(torch.neuron.memory, name) is getattr(torch.neuron, name)
