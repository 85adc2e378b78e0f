"""How much the device holds, to the byte: against a model of what CUDA would count, and against sums done by hand."""

from __future__ import annotations

import gc
import queue
import signal
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shakedown.neuron import events, ledger, memory
from shakedown.neuron.buffer import template
from shakedown.neuron.sizes import readable

from . import memory_model

pytestmark = pytest.mark.usefixtures("cheap_collections")
n = torch.neuron
KIB = torch.ones(256).nbytes
assert KIB == 1024


def kib(count: int) -> torch.Tensor:
    return torch.ones(count, 256, device="neuron")


def test_the_figures_have_torch_neurons_names():
    stats = n.memory_stats()
    assert set(stats) == {
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "num_alloc_retries",
        "num_ooms",
        "num_tensor_frees",
        "allocation_requests",
    }
    for name in ("allocated_bytes", "reserved_bytes", "active_bytes"):
        assert set(stats[name]) == {"current", "peak", "allocated", "freed"}
    assert stats["active_bytes"] == stats["allocated_bytes"]
    assert set(stats["reserved_bytes"].values()) == {0} == {n.memory_reserved(), n.max_memory_reserved()}
    assert n.memory is memory
    for name in memory.__all__:
        assert getattr(n, name) is getattr(n.memory, name)


def test_names_of_cuda_that_are_not_here_say_why():
    for name in (*torch.cuda.memory.__all__, "_snapshot", "_dump_snapshot", "_record_memory_history"):
        for module in (n, n.memory):
            if name not in memory.__all__:
                assert not hasattr(module, name)
                with pytest.raises(AttributeError, match=f"no attribute '{name}': [a-z].* "):
                    getattr(module, name)
    with pytest.raises(AttributeError, match="no attribute 'now'$"):
        n.now


@pytest.mark.parametrize("device", [None, 0, "neuron", "neuron:0", torch.device("neuron", 0)])
def test_the_device_may_be_named(device):
    assert n.memory_allocated(device) == n.memory_allocated()
    n.reset_peak_memory_stats(device)
    assert n.max_memory_allocated(device) == n.memory_allocated()


@pytest.mark.parametrize("device", [1, "neuron:1", "cpu"])
def test_another_device_is_refused(device):
    for function in (
        n.memory_stats,
        n.memory_allocated,
        n.max_memory_allocated,
        n.reset_peak_memory_stats,
        n.mem_get_info,
    ):
        with pytest.raises(ValueError):
            function(device)


def test_sums_by_hand():
    n.reset_accumulated_memory_stats()
    n.reset_peak_memory_stats()
    before = n.memory_allocated()
    a = kib(4)
    b = a + 1
    view = b.t()[2:]
    assert n.memory_allocated() == before + 8 * KIB
    del a
    c = b * 2
    assert n.memory_allocated() == n.max_memory_allocated() == before + 8 * KIB
    del b
    assert n.memory_allocated() == before + 8 * KIB  # the view keeps it
    del view, c
    assert n.memory_allocated() == before
    stats = n.memory_stats()
    assert stats["allocated_bytes"] == {
        "current": before,
        "peak": before + 8 * KIB,
        "allocated": 12 * KIB,
        "freed": 12 * KIB,
    }
    assert (stats["allocation_requests"], stats["num_tensor_frees"]) == (3, 3)
    n.reset_peak_memory_stats()
    assert n.max_memory_allocated() == before
    n.empty_cache()
    assert n.memory_allocated() == before


def test_what_needs_no_memory_is_not_counted():
    n.reset_accumulated_memory_stats()
    before = n.memory_stats()
    empty = torch.empty(0, 3, device="neuron")
    kept = empty + 1, empty.clone()
    assert n.memory_stats() == before
    del empty, kept
    assert n.memory_stats() == before


_steps = st.tuples(st.sampled_from([*memory_model.STEPS, "create", "forget"]), st.integers(0, 9), st.integers(0, 20))


@given(st.lists(_steps, min_size=4, max_size=14))
@settings(max_examples=60, deadline=None)
def test_any_sequence_counts_as_on_cuda(sequence):
    memory_model.play([("create", 0, len(sequence)), *sequence])


def test_every_step_of_the_model_is_played():
    for number, name in enumerate(memory_model.STEPS):
        memory_model.play([("create", 0, 0), ("create", 0, 5), (name, 0, 3), (name, 1, 8), ("pointwise", 0, number)])


def model_of(width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


def test_a_training_step_ends_where_it_began():
    module = model_of().to("neuron")
    optimizer = torch.optim.AdamW(module.parameters(), foreach=True)
    x = torch.ones(8, 16, device="neuron")

    def step() -> None:
        optimizer.zero_grad()
        module(x).pow(2).mean().backward()
        optimizer.step()

    step()
    before, parameters = n.memory_allocated(), sum(p.nbytes for p in module.parameters())
    n.reset_peak_memory_stats()
    first = None
    for _ in range(3):
        step()
        assert n.memory_allocated() == before
        first = first or n.max_memory_allocated()
        assert n.max_memory_allocated() == first > before
    n.synchronize()
    assert n.live_bytes() >= 4 * parameters  # weights, gradients, two moments
    optimizer.zero_grad()
    assert n.memory_allocated() == before - parameters


def test_copies_are_counted_though_the_device_shares_their_value():
    a = kib(4)
    before, held = n.memory_allocated(), n.live_bytes()
    b = a.clone()
    assert n.memory_allocated() == before + 4 * KIB
    assert n.live_bytes() in (held, held + 4 * KIB)
    b.add_(1)
    assert n.live_bytes() == held + 4 * KIB


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled_functions():
    weight = kib(4).requires_grad_()

    @torch.compile(backend="neuron")
    def loss(w: torch.Tensor) -> torch.Tensor:
        return (w.exp() * w).sum()

    loss(weight).backward()
    weight.grad = None
    before = n.memory_allocated()
    result = loss(weight)
    saved = n.memory_allocated() - before - result.nbytes
    assert saved in (0, 4 * KIB)  # the partitioner may compute exp anew
    n.reset_peak_memory_stats()
    result.backward()
    assert n.memory_allocated() == before + result.nbytes + 4 * KIB
    assert n.max_memory_allocated() >= before + result.nbytes + saved + 4 * KIB
    del result
    weight.grad = None
    assert n.memory_allocated() == before


@pytest.mark.usefixtures("fresh_dynamo")
def test_the_peak_holds_what_a_program_needs_besides_its_results():
    @torch.compile(backend="neuron")
    def squares(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.t()).sin() @ x

    x = kib(64)
    for _ in range(2):  # when it is compiled, and when it is there
        n.reset_peak_memory_stats()
        before = n.memory_allocated()
        y = squares(x)
        assert n.memory_allocated() == before + 64 * KIB
        assert n.max_memory_allocated() >= before + 64 * KIB + 64 * 64 * 4  # the product of 64 by 64
        del y


def test_threads_free_what_others_made():
    n.reset_accumulated_memory_stats()
    before, made = n.memory_allocated(), queue.Queue()

    def work() -> None:
        x = torch.ones(8, device="neuron")
        for _ in range(300):
            made.put(x + 1)
            made.get()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made.empty()
    assert n.memory_allocated() == before
    stats = n.memory_stats()
    assert stats["allocated_bytes"]["allocated"] == stats["allocated_bytes"]["freed"] == 4 * 301 * 32
    assert stats["allocation_requests"] == stats["num_tensor_frees"] == 4 * 301


def test_an_interruption_leaves_the_sums_right():
    class Interruption(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interruption

    layout, value = template(torch.float32, (8,), (1,)), torch.ones(8, device="neuron").untyped_storage().buffer
    before, came = n.memory_stats()["allocated_bytes"], 0
    old = signal.signal(signal.SIGALRM, interrupt)
    gc.disable()  # an interruption within a callback of the collector's, JAX's for one, is lost
    try:
        while came < 400:
            try:
                signal.setitimer(signal.ITIMER_REAL, 3e-4)
                for _ in range(20_000):
                    layout.new(value)
            except Interruption:
                came += 1
    finally:
        gc.enable()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    after = n.memory_stats()["allocated_bytes"]
    assert after["current"] == before["current"]
    assert after["allocated"] - before["allocated"] == after["freed"] - before["freed"] > 400 * 32


def test_the_summary():
    long, short = n.memory_summary(), n.memory_summary("neuron:0", abbreviated=True)
    for text in (long, short):
        assert "Neuron Memory Summary" in text
        assert "Device" in text
        assert len({len(line) for line in text.splitlines()}) == 1
    assert len(short) <= len(long)
    x = kib(1024)
    assert readable(n.memory_allocated()) in n.memory_summary()
    assert readable(x.nbytes) == "1.00 MiB"


def test_the_accelerators_functions():
    accelerator = torch.accelerator
    x = kib(4)
    n.reset_peak_memory_stats()
    y = x + 1
    del y
    assert accelerator.memory_allocated() == n.memory_allocated()
    assert accelerator.max_memory_allocated("neuron:0") == n.max_memory_allocated() == n.memory_allocated() + 4 * KIB
    stats = accelerator.memory_stats()
    assert stats["allocated_bytes.all.current"] == n.memory_allocated()
    accelerator.reset_peak_memory_stats()
    assert accelerator.max_memory_allocated() == n.memory_allocated()
    accelerator.reset_accumulated_memory_stats(0)
    assert n.memory_stats()["allocation_requests"] == 0 == accelerator.memory_reserved()
    free, total = accelerator.get_memory_info()
    assert 0 < free < total == n.mem_get_info()[1]
    accelerator.empty_cache()
    accelerator.empty_host_cache()
    with pytest.raises(ValueError):
        accelerator.memory_allocated(3)


def test_whoever_asks_is_told_of_each_storage():
    x, told = kib(4), []
    with events.subscribe(told.append):
        x + 1  # nobody asked for memory
        with memory.telling(), memory.telling():
            held = n.memory_allocated()
            y = x + 1
            z = y.t()
            del y
            assert [e.name for e in told if e.kind == "memory"] == ["allocate"]
            del z
        x + 1
    allocate, free = [e for e in told if e.kind == "memory"]
    assert (allocate.name, allocate.nbytes, int(allocate.detail)) == ("allocate", 4 * KIB, held + 4 * KIB)
    assert (free.name, free.nbytes, int(free.detail)) == ("free", 4 * KIB, held)
    assert not hasattr(template(torch.float32, (1,), (1,)).new, "__wrapped__")


def test_storages_that_live_are_counted_one_by_one():
    before = ledger.living()
    kept = [torch.ones(3, device="neuron") for _ in range(5)]
    assert ledger.living() == before + 5
    del kept[2:]
    assert ledger.living() == before + 2


@torch.library.custom_op("memory::on_the_host", mutates_args=("x",), device_types="cpu")
def on_the_host(x: torch.Tensor, half: torch.Tensor) -> list[torch.Tensor]:
    x.add_(1)
    return [half * 2, x + half]


@pytest.fixture
def _no_collections():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collections")
def test_an_operator_on_the_cpu_keeps_nothing():
    before = torch.neuron.memory_allocated()
    for _ in range(3):  # the first call takes another way
        x, half = torch.ones(8, 8, device="neuron"), torch.ones(8, 8, device="neuron", dtype=torch.float16)
        results = on_the_host(x, half)
        assert x[0, 0].item() == 2
        given = x.nbytes + half.nbytes
        assert torch.neuron.memory_allocated() == before + given + results[0].nbytes + results[1].nbytes
        del x, half, results
        assert torch.neuron.memory_allocated() == before
    assert torch.neuron.get_fallback_ops() == ["memory::on_the_host"]
