"""What CUDA's allocator would count for a sequence of tensor operations, kept by hand, beside the device's own figure.

Every storage has a number and a size; a slot holds a tensor, and the numbers of all storages that it keeps alive.
"""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable

import torch
from torch import Tensor

from shakedown.neuron import dispatch

SIZES = ((4,), (2, 3), (5, 2))
DTYPES = (torch.float32, torch.int64, torch.bfloat16)


class World:
    """Tensors on the device, and how much they must take."""

    def __init__(self) -> None:
        self.before = torch.neuron.memory_allocated()
        self.slots: list[tuple[Tensor, frozenset[int]]] = []
        self.nbytes: list[int] = []  # of every storage there was

    def expected(self) -> int:
        held = frozenset().union(*(keys for _, keys in self.slots))
        return self.before + sum(self.nbytes[key] for key in held)

    def check(self) -> None:
        assert torch.neuron.memory_allocated() == self.expected()
        assert torch.neuron.max_memory_allocated() >= self.expected()

    def fresh(self, nbytes: int) -> int:
        self.nbytes.append(nbytes)
        return len(self.nbytes) - 1

    def put(self, tensor: Tensor, *keys: int) -> None:
        self.slots.append((tensor, frozenset(keys)))

    def viewed(self, number: int) -> bool:
        """Whether the tensor of a slot is a view, or another slot has a view of it. (A view keeps the tensor it was taken of.)"""
        tensor = self.slots[number][0]
        return tensor._is_view() or any(other._base is tensor for other, _ in self.slots)

    def own(self, number: int) -> int:
        """The number of the storage that the tensor of a slot lies in: the largest, since a slot's tensor is made last."""
        return max(self.slots[number][1])


def _needs(tensor: Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize


def working_memory(*names: str) -> set[int]:
    """What XLA says that the executables of these operators (``aten::add.Tensor``) need besides arguments and results."""
    return {
        compiled.memory_analysis().temp_size_in_bytes
        for operator in dispatch.known_operators()
        if operator.name in names
        for plan in operator.plans.values()
        for compiled in plan.run.runner.known.values()
    }


def _check_peak(world: World, *names: str) -> None:
    assert torch.neuron.max_memory_allocated() - world.expected() in working_memory(*names)


def create(world: World, at: int, choice: int) -> None:
    size, dtype = SIZES[choice % 3], DTYPES[choice % 7 % 3]
    make: Callable[[], Tensor] = (
        lambda: torch.ones(size, dtype=dtype, device="neuron"),
        lambda: torch.empty(size, dtype=dtype, device="neuron"),
        lambda: torch.ones(size, dtype=dtype).to("neuron"),
        lambda: torch.tensor(torch.ones(size, dtype=dtype).tolist(), dtype=dtype, device="neuron"),
    )[choice % 4]
    made = make()
    world.put(made, world.fresh(_needs(made)))


def view(world: World, at: int, choice: int) -> None:
    tensor = world.slots[at][0].detach()  # not the graph of a loss
    made = (
        lambda: tensor.t() if tensor.dim() == 2 else tensor.detach(),
        lambda: tensor[1:] if tensor.dim() else tensor.detach(),
        lambda: tensor.detach(),
        lambda: tensor.unsqueeze(0),
    )[choice % 4]()
    world.put(made, world.own(at))


def pointwise(world: World, at: int, choice: int) -> None:
    tensor = world.slots[at][0].detach()
    torch.neuron.reset_peak_memory_stats()
    made = tensor + 1 if choice % 2 else tensor * 2
    world.put(made, world.fresh(_needs(made)))
    _check_peak(world, "aten::add.Tensor", "aten::mul.Tensor")


def in_place(world: World, at: int, choice: int) -> None:
    tensor, _ = world.slots[at]
    torch.neuron.reset_peak_memory_stats()
    with torch.no_grad():
        (tensor.add_ if choice % 2 else tensor.mul_)(2)
    _check_peak(world, "aten::add_.Tensor", "aten::mul_.Tensor")


def upload_into(world: World, at: int, choice: int) -> None:
    tensor, _ = world.slots[at]
    with torch.no_grad():
        tensor.copy_(torch.ones(tensor.shape, dtype=tensor.dtype))


def resize(world: World, at: int, choice: int) -> None:
    tensor, _ = world.slots[at]
    if tensor.requires_grad or world.viewed(at):
        return
    length, item = 3 + choice % 9, tensor.dtype.itemsize
    offset, had = tensor.storage_offset(), tensor.untyped_storage().nbytes()
    tensor.resize_(length)
    if tensor.shape == (length,) and (offset + length) * item > had:
        world.slots[at] = tensor, frozenset([world.fresh((offset + length) * item)])


def deepcopied(world: World, at: int, choice: int) -> None:
    made = copy.deepcopy(world.slots[at][0].detach())
    world.put(made, world.fresh(made.untyped_storage().nbytes()))
    assert made.untyped_storage().nbytes() == world.slots[at][0].untyped_storage().nbytes()


def saved_and_loaded(world: World, at: int, choice: int) -> None:
    tensor = world.slots[at][0].detach()
    file = io.BytesIO()
    torch.save([tensor, tensor], file)
    file.seek(0)
    made, again = torch.load(file, map_location="neuron")
    assert made.untyped_storage()._cdata == again.untyped_storage()._cdata
    world.put(made, world.fresh(tensor.untyped_storage().nbytes()))


def set_to(world: World, at: int, choice: int) -> None:
    """The tensor lets go of its storage and takes that of another one."""
    tensor, source = world.slots[at][0], choice % len(world.slots)
    other = world.slots[source][0]
    if tensor.requires_grad or other.requires_grad or tensor.dtype is not other.dtype or world.viewed(at):
        return
    tensor.set_(other)
    world.slots[at] = tensor, frozenset([world.own(source)])


def loss(world: World, at: int, choice: int) -> None:
    """The graph of a loss keeps its leaf and what exp saved; after the backward pass, the leaf and its gradient."""
    tensor, _ = world.slots[at]
    if not tensor.is_floating_point():
        return
    leaf = tensor.detach().clone().requires_grad_()
    size = _needs(leaf)
    made = leaf.exp().sum()
    kept, saved, result = world.fresh(size), world.fresh(size), world.fresh(_needs(made))
    world.put(made, kept, saved, result)
    del leaf
    world.check()
    if choice % 2:
        made.backward()
        gradient = world.fresh(size)
        world.slots[-1] = made.detach(), frozenset([result])  # the leaf and its gradient go with the graph
        del made
        assert gradient != saved


def read(world: World, at: int, choice: int) -> None:
    tensor, _ = world.slots[at]
    assert tensor.cpu().shape == tensor.shape


def forget(world: World, at: int, choice: int) -> None:
    del world.slots[at]


def collect(world: World, at: int, choice: int) -> None:
    gc.collect()


STEPS = {
    step.__name__: step
    for step in (
        create,
        view,
        pointwise,
        in_place,
        upload_into,
        resize,
        deepcopied,
        saved_and_loaded,
        set_to,
        loss,
        read,
        forget,
        collect,
    )
}


def play(sequence: list[tuple[str, int, int]]) -> None:
    """Run (step, slot, choice) one after the other, and compare after each; in the end nothing may be left."""
    world = World()
    for name, at, choice in sequence:
        if not world.slots and name not in ("create", "collect"):
            continue
        STEPS[name](world, at % len(world.slots) if world.slots else 0, choice)
        world.check()
    world.slots.clear()
    world.check()
