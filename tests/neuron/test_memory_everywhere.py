"""Bytes held through everything that moves storages about, and running out of memory wherever a program may."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shakedown.neuron import compile_step

pytestmark = pytest.mark.usefixtures("cheap_collections")
n = torch.neuron
KIB = 1024


@pytest.fixture(autouse=True)
def _nothing_is_left():
    gc.collect()
    before = n.memory_allocated()
    yield
    n.set_memory_limit(None)
    gc.collect()
    assert n.memory_allocated() == before


def kib(count: int) -> torch.Tensor:
    return torch.ones(count, 256, device="neuron")


def leave(nbytes: int) -> None:
    gc.collect()
    n.set_memory_limit(n.memory_allocated() + nbytes)


def refused(fn, *args) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        fn(*args)
    n.set_memory_limit(None)


class Kind(torch.Tensor):
    pass


def _loaded(saved: object, **options: object) -> object:
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file, **options)


def _with_other_data(x: torch.Tensor) -> object:
    parameter = nn.Parameter(x)
    parameter.data = kib(1)
    return parameter


def _swapped(x: torch.Tensor) -> object:
    other = kib(2)
    torch.utils.swap_tensors(x, other)
    return other


def _raising(x: torch.Tensor) -> object:
    def fails():
        inside = x + 1
        raise ValueError(inside.shape)

    with pytest.raises(ValueError) as caught:
        fails()
    return caught  # its traceback holds the frame


def _tied(x: torch.Tensor) -> object:
    module = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)).to("neuron")
    module[1].weight = module[0].weight
    return module, copy.deepcopy(module)


# What each leaves behind besides its argument, a tensor of 4 KiB, in KiB.
HELD = {
    "deepcopy": (copy.deepcopy, 4),
    "deepcopy of views": (lambda x: copy.deepcopy([x, x[1:], x.t()]), 4),
    "deepcopy of tied modules": (_tied, 2),
    "saved and loaded": (lambda x: _loaded([x, x[2:], x.t()]), 4),
    "saved on the host": (lambda x: _loaded({"x": x.cpu()}, map_location="neuron"), 4),
    "pickled": (lambda x: pickle.loads(pickle.dumps(x)), 4),
    "other data": (_with_other_data, 1),
    "swapped": (_swapped, 2),
    "set": (lambda x: kib(2).set_(x), 0),
    "a subclass": (lambda x: x.as_subclass(Kind), 0),
    "of a subclass": (lambda x: x.as_subclass(Kind) + 1, 4),
    "conjugated": (lambda x: torch.complex(x, x).conj(), 8),
    "real": (lambda x: torch.view_as_real(torch.complex(x, x)), 8),
    "nested": (
        lambda x: torch.nested.as_nested_tensor([x[:1], x[1:]], layout=torch.jagged),
        4 + 24 / KIB,
    ),  # and offsets
    "a storage": (lambda x: x.untyped_storage().clone(), 4),
    "an exception": (_raising, 4),
    "a graph": (lambda x: x.detach().requires_grad_().exp(), 4),
    "on the host": (lambda x: [x.cpu(), x.untyped_storage().cpu(), x.tolist()], 0),
}


@pytest.mark.parametrize(("fn", "more"), HELD.values(), ids=HELD)
def test_what_is_held(fn, more):
    fn(kib(4))  # what it loads is there
    gc.collect()
    x = kib(4)
    before = n.memory_allocated()
    made = fn(x)
    gc.collect()
    if fn is _swapped:
        assert x.shape == (2, 256)
    assert n.memory_allocated() - before == more * KIB
    del made


@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_child_that_is_forked_counts_its_own():
    x = kib(4)
    before = n.memory_allocated()
    child = os.fork()
    if child == 0:
        del x
        gc.collect()
        os._exit(0 if n.memory_allocated() == before - 4 * KIB else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert n.memory_allocated() == before


REFUSED = {
    "load": lambda x: _loaded({"x": x.cpu()}, map_location="neuron"),
    "module": lambda x: nn.Linear(64, 64).to("neuron"),
    "dtype": lambda x: x.double(),
    "storage": lambda x: torch.UntypedStorage(4096, device="neuron"),
    "storage cloned": lambda x: x.untyped_storage().clone(),
    "cat": lambda x: torch.cat([x, x]),
    "mask": lambda x: x[x > 0],
    "expanded": lambda x: x.expand(2, 8, 256).contiguous(),
}


@pytest.mark.parametrize("fn", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_leaves_nothing(fn):
    x = kib(8)
    leave(2 * KIB)
    before = n.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError):
        fn(x)
    gc.collect()
    assert n.memory_allocated() == before
    assert torch.equal(x.cpu(), torch.ones(8, 256))


def test_in_another_thread():
    errors: list[BaseException] = []

    def work() -> None:
        try:
            kib(8)
        except torch.OutOfMemoryError as error:
            errors.append(error.with_traceback(None))

    leave(KIB)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(errors) == 1


@pytest.mark.parametrize("reentrant", [True, False])
def test_in_a_checkpointed_part(reentrant):
    layer, x = nn.Linear(256, 256, device="neuron"), kib(8).requires_grad_()

    def loss() -> torch.Tensor:
        return checkpoint(lambda t: layer(t).relu().pow(2), x, use_reentrant=reentrant).sum()

    loss().backward()
    wanted, x.grad = x.grad.cpu(), None
    layer.zero_grad()
    made = loss()
    leave(4 * KIB)
    refused(made.backward)
    del made
    x.grad = None
    layer.zero_grad()
    loss().backward()
    assert torch.equal(x.grad.cpu(), wanted)


def test_under_a_profiler():
    x = kib(8)
    with torch.profiler.profile(profile_memory=True) as profile:
        leave(KIB)
        refused(lambda: x * 3)
        made = x * 3
    assert made.sum().item() == 3 * 8 * 256
    assert profile.key_averages()


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_graph_in_pieces_has_drawn_nothing():
    def drawn(x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(x, 0.5)
        x = torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)  # which no program can hold
        return nn.functional.dropout(x, 0.5)

    compiled, x = torch.compile(drawn, backend="neuron"), kib(8)
    with pytest.warns(match="fake_quantize"):
        compiled(x)
    for room in (1, 9, 17):  # the first program, the operator, the second program
        state = n.get_rng_state()
        leave(room * KIB)
        refused(compiled, x)
        assert torch.equal(n.get_rng_state(), state)
    again = compiled(x)
    n.set_rng_state(state)
    assert torch.equal(compiled(x).cpu(), again.cpu())


@pytest.mark.usefixtures("fresh_dynamo")
def test_the_first_run_of_a_compiled_function_knows_its_working_memory():
    @torch.compile(backend="neuron")
    def drawn(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return nn.functional.dropout((x @ x.t()).softmax(-1), 0.5)

    x = kib(64)
    state = n.get_rng_state()
    leave(65 * 64 * 4)  # the result, and less than the product
    refused(drawn, x)
    assert torch.equal(n.get_rng_state(), state)
    assert torch.equal(x.cpu(), torch.ones(64, 256))
    n.reset_peak_memory_stats()
    before = n.memory_allocated()
    drawn(x)
    needs = n.max_memory_allocated() - before
    assert needs > 64 * 64 * 4
    for room, fits in ((needs - 1, False), (needs, True)):
        leave(room)
        if fits:
            drawn(x)
        else:
            refused(drawn, x)
    assert torch.equal(x.cpu(), torch.full((64, 256), 3.0))


@pytest.mark.usefixtures("fresh_dynamo")
def test_the_first_run_of_a_compiled_step_is_done_whole_or_not_at_all():
    module = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 64)).to("neuron")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    step = compile_step(module, lambda m, x: m(x).pow(2).mean(), optimizer)
    weight, x, state = module[0].weight.detach().cpu(), torch.ones(32, 64, device="neuron"), n.get_rng_state()
    # Room for the momenta and the gradients with which the optimizer makes them, and not for the program.
    leave(2 * sum(p.nbytes for p in module.parameters()) + 256)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        step(x)
    assert any(entry.name == "learn" for entry in caught.traceback)
    del caught
    n.set_memory_limit(None)
    assert torch.equal(module[0].weight.cpu(), weight)
    assert not any(optimizer.state.values())
    assert torch.equal(n.get_rng_state(), state)
    for _ in range(2):
        assert step(x) > 0
    assert len(optimizer.state) == 4
