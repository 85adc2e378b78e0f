"""Pinned host memory: every function that makes tensors, what PyTorch knows them by afterwards, and copies from it."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from shakedown.neuron import torch_gaps_memory

D = "neuron"
_base = torch.arange(6.0).view(2, 3)

MADE = {
    "arange": lambda **k: torch.arange(4, **k),
    "empty": lambda **k: torch.empty(4, 3, **k),
    "empty_like": lambda **k: torch.empty_like(_base, **k),
    "empty_permuted": lambda **k: torch.empty_permuted((2, 3), (1, 0), **k),
    "empty_strided": lambda **k: torch.empty_strided((2, 3), (1, 2), **k),
    "eye": lambda **k: torch.eye(3, **k),
    "full": lambda **k: torch.full((3,), 2.0, **k),
    "full_like": lambda **k: torch.full_like(_base, 2.0, **k),
    "linspace": lambda **k: torch.linspace(0, 1, 5, **k),
    "logspace": lambda **k: torch.logspace(0, 1, 5, **k),
    "normal": lambda **k: torch.normal(0.0, 1.0, (3,), **k),
    "ones": lambda **k: torch.ones(3, dtype=torch.bfloat16, **k),
    "ones_like": lambda **k: torch.ones_like(_base, **k),
    "rand": lambda **k: torch.rand(3, requires_grad=True, **k),
    "rand_like": lambda **k: torch.rand_like(_base, **k),
    "randint": lambda **k: torch.randint(9, (3,), **k),
    "randint_like": lambda **k: torch.randint_like(_base, 9, **k),
    "randn": lambda **k: torch.randn((3,), **k),
    "randn_like": lambda **k: torch.randn_like(_base, **k),
    "randperm": lambda **k: torch.randperm(5, **k),
    "scalar_tensor": lambda **k: torch.scalar_tensor(3, **k),
    "tensor": lambda **k: torch.tensor([[1, 2]], **k),
    "tril_indices": lambda **k: torch.tril_indices(3, 3, **k),
    "triu_indices": lambda **k: torch.triu_indices(3, 3, **k),
    "zeros": lambda **k: torch.zeros(0, 3, **k),
    "zeros_like": lambda **k: torch.zeros_like(_base, **k),
    "new_empty": lambda **k: _base.new_empty(3, **k),
    "new_empty_strided": lambda **k: _base.new_empty_strided((2, 3), (1, 2), **k),
    "new_full": lambda **k: _base.new_full((3,), 2.0, **k),
    "new_ones": lambda **k: _base.new_ones(3, **k),
    "new_zeros": lambda **k: _base.new_zeros((3,), **k),
}


@pytest.fixture(scope="module", autouse=True)
def _as_under_exec():
    """The functions are wrapped, and are PyTorch's own again for the tests of other files."""
    torch.neuron.init()
    torch_gaps_memory.close_factories()
    yield
    for name, function in torch_gaps_memory._factories.items():
        place, _, last = name.rpartition(".")
        setattr(torch if place == "torch" else torch.Tensor, last, function)
    torch_gaps_memory._factories.clear()


def test_every_function_has_a_row():
    assert set(MADE) == {*torch_gaps_memory._FACTORIES, *torch_gaps_memory._METHODS}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_functions_that_make_tensors(make):
    torch.manual_seed(3)
    wanted = make()
    torch.manual_seed(3)
    made = make(pin_memory=True)
    assert made.is_pinned()
    assert made.detach()[..., None].is_pinned()
    assert not wanted.is_pinned()
    assert not make(pin_memory=False).is_pinned()
    assert (made.dtype, made.shape, made.stride(), made.requires_grad, made.device) == (
        wanted.dtype,
        wanted.shape,
        wanted.stride(),
        wanted.requires_grad,
        wanted.device,
    )
    if "empty" in " ".join(make.__code__.co_names):
        made.fill_(3)  # what was there may be no number
    else:
        assert torch.equal(made, wanted)
    assert made.pin_memory() is made
    assert torch.equal(made.to(D, non_blocking=True).cpu(), made)


@pytest.mark.parametrize(
    "name", sorted(set(MADE) - {name for name in MADE if name.endswith("_like") or "new_" in name})
)
def test_a_device_tensor_is_not_pinned(name):
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        MADE[name](pin_memory=True, device=D)


def test_a_copy_has_what_the_memory_held_when_it_was_asked_for():
    host = torch.full((64,), 1.0, pin_memory=True)
    there = host.to(D, non_blocking=True)
    host.fill_(2)
    back = torch.empty(64, pin_memory=True)
    back.copy_(there, non_blocking=True)
    assert back.is_pinned()
    assert back.sum() == 64.0


def test_what_knows_these_functions_by_name_or_identity():
    with torch.device(D):
        assert torch.empty(3).device.type == torch.tensor(3.0).device.type == D
    with torch.device("meta"):
        assert torch.zeros(3).is_meta
    assert pickle.loads(pickle.dumps(torch.empty)) is torch.empty
    assert torch.empty.__name__ == "empty"

    def scripted(x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros(3) + torch.full([3], 1.0) + torch.zeros_like(x) + x.new_ones(3)

    assert torch.jit.script(scripted)(torch.ones(3)).tolist() == [3.0] * 3

    @torch.compile(backend="aot_eager", fullgraph=True)
    def captured(x: torch.Tensor) -> torch.Tensor:
        return scripted(x) + torch.tensor([1.0, 2.0, 3.0]) + torch.arange(3)

    assert captured(torch.ones(3)).tolist() == [4.0, 6.0, 8.0]


@pytest.mark.parametrize("where", ["", D])
def test_data_loaders(where):
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, pin_memory=True, pin_memory_device=where)
    batches = [batch for (batch,) in loader]
    assert all(batch.is_pinned() for batch in batches)
    assert torch.cat([batch.to(D, non_blocking=True) for batch in batches]).tolist() == list(range(8))
