"""What real clients ran into, each tested for the whole kind of mistake that it was."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset


def layouts() -> list[torch.Tensor]:
    base = torch.arange(24.0).reshape(2, 3, 4)
    strided = [base, base.permute(2, 0, 1), base[:, 1:, ::2], base[:0], base[1, 2, 3]]
    return [*strided, base.to(torch.bfloat16), base > 3]


@pytest.mark.parametrize("tensor", layouts(), ids=lambda t: f"{t.dtype} {tuple(t.shape)} {t.stride()}")
def test_a_pinned_tensor_is_a_copy_that_says_so(tensor):
    pinned = tensor.pin_memory()
    assert pinned.device.type == "cpu"
    assert not tensor.is_pinned()
    assert pinned.is_pinned()
    assert pinned.view(-1)[:0].is_pinned() if pinned.is_contiguous() else pinned.detach().is_pinned()
    assert pinned.pin_memory() is pinned
    assert (pinned.dtype, pinned.shape, pinned.stride()) == (
        tensor.dtype,
        tensor.shape,
        torch.empty_like(tensor).stride(),
    )
    assert torch.equal(pinned, tensor)
    assert torch.equal(pinned.to("neuron", non_blocking=True).cpu(), tensor)
    if tensor.numel():
        pinned.zero_()
        assert tensor.any()


def test_device_tensors_are_not_pinned():
    tensor = torch.ones(3, device="neuron")
    assert not tensor.is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        tensor.pin_memory()


def test_storages_and_what_autograd_follows_are_pinned_too():
    leaf = torch.ones(3, requires_grad=True)
    assert leaf.pin_memory().is_pinned()
    storage = torch.ones(3).untyped_storage()
    assert (storage.is_pinned(), storage.pin_memory().is_pinned()) == (False, True)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_pins_its_batches(workers):
    data = torch.arange(12.0).reshape(6, 2)
    loader = DataLoader(TensorDataset(data), batch_size=2, pin_memory=True, num_workers=workers)
    batches = [b for (b,) in loader]
    assert all(b.is_pinned() for b in batches)
    assert torch.equal(torch.cat([b.to("neuron", non_blocking=True) for b in batches]).cpu(), data)


NUMBERS = [True, False, 3, 2.5]
KINDS = [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_a_number_of_any_type_is_scattered_into_any_dtype(dtype):
    """A bool is a number too, though JAX marks it otherwise than the other numbers."""
    torch.neuron.clear_op_tracking()
    index = torch.tensor([[1, 2], [0, 3]])
    for value in NUMBERS:
        here, there = torch.ones(2, 4).to(dtype), torch.ones(2, 4).to(dtype).to("neuron")
        given = index.to("neuron")
        expected = [here.scatter(1, index, value), here.clone().scatter_(1, index, value)[:, 1:]]
        made = [there.scatter(1, given, value), there.clone().scatter_(1, given, value)[:, 1:]]
        if dtype is not torch.bool:
            expected.append(here.scatter(1, index, value, reduce="add"))
            made.append(there.scatter(1, given, value, reduce="add"))
        assert all(torch.equal(m.cpu(), e) for m, e in zip(made, expected, strict=True)), value
    scalar = torch.zeros((), dtype=torch.bool, device="neuron")
    assert scalar.scatter(0, torch.zeros((), dtype=torch.int64, device="neuron"), True).item() is True
    assert torch.neuron.get_fallback_ops() == []
