"""Units of work by name, so that a process of its own can be told which to do (:mod:`benchmarks.side`).

Each returns only when its results are complete, and reads none of them.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from .decoder import MEDIUM, SMALL, Decoder, Size, batch


def adds(device: str) -> Callable[[], None]:
    """A chain of 100 additions of 64x64."""
    ones = torch.ones(64, 64, device=device)

    def work() -> None:
        x = ones
        for _ in range(100):
            x = x + ones
        torch.accelerator.synchronize()

    return work


def decoder(size: Size) -> tuple[Decoder, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return Decoder(size), batch(size)


class Training:
    """A decoder on one device with AdamW; ``step`` is a whole step, ``gradients`` forward and backward alone."""

    def __init__(
        self, module: Decoder, data: tuple[torch.Tensor, torch.Tensor], device: str, compiled: bool = False
    ) -> None:
        self.device = device
        self.module = copy.deepcopy(module).to(device)
        self.data = tuple(t.to(device) for t in data)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-3)
        self.forward: Callable[..., torch.Tensor] = self.module
        if compiled:
            self.forward = torch.compile(self.module, backend="neuron", dynamic=False, fullgraph=True)

    def gradients(self) -> torch.Tensor:
        loss = self._backward()
        self._complete()
        return loss

    def step(self) -> torch.Tensor:
        loss = self._backward()
        self.optimizer.step()
        self._complete()
        return loss

    def _backward(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward(*self.data)
        loss.backward()
        return loss

    def _complete(self) -> None:
        if (
            self.device != "cpu"
        ):  # there a call that returned is complete, and waiting for another device would not be free
            torch.accelerator.synchronize()


class WholeStep:
    """The same step as one program."""

    def __init__(self, module: Decoder, data: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.module = copy.deepcopy(module).to("neuron")
        self.data = tuple(t.to("neuron") for t in data)
        optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-3)
        self._step = torch.neuron.compile_step(self.module, None, optimizer)

    def step(self) -> torch.Tensor:
        loss = self._step(*self.data)
        torch.accelerator.synchronize()
        return loss


class InductorTraining(Training):
    """A decoder on the CPU by PyTorch's own compiler: forward and backward, and the optimizer's step."""

    def __init__(self, module: Decoder, data: tuple[torch.Tensor, torch.Tensor]) -> None:
        super().__init__(module, data, "cpu")
        self.forward = torch.compile(self.module, backend="inductor", dynamic=False, fullgraph=True)
        self.update = torch.compile(self.optimizer.step, backend="inductor", fullgraph=False)

    def step(self) -> torch.Tensor:
        loss = self._backward()
        self.update()
        return loss


def training(size: Size, device: str, compiled: bool = False) -> Callable[[], torch.Tensor]:
    return Training(*decoder(size), device, compiled).step


def new_shapes(device: str) -> Callable[[], None]:
    """Forward and backward of a small MLP, on a batch of another size each time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 64)).to(device)
    rows = 16

    def work() -> None:
        nonlocal rows
        rows += 1
        x, y = torch.ones(rows, 64, device=device), torch.zeros(rows, 64, device=device)
        model.zero_grad(set_to_none=True)
        F.mse_loss(model(x), y).backward()
        torch.accelerator.synchronize()

    return work


def untracked() -> Callable[[], object]:
    from .profiler import untracked  # which needs this module

    return untracked()


def after_a_profile() -> Callable[[], object]:
    from .profiler import after_a_profile

    return after_a_profile()


WORKS: dict[str, Callable[[], Callable[[], object]]] = {
    "adds": functools.partial(adds, "neuron"),
    "small": functools.partial(training, SMALL, "neuron"),
    "small, untracked": untracked,
    "small, after a profile": after_a_profile,
    "small on the CPU": functools.partial(training, SMALL, "cpu"),
    "medium": functools.partial(training, MEDIUM, "neuron"),
    "medium, compiled": functools.partial(training, MEDIUM, "neuron", compiled=True),
    "medium on the CPU": functools.partial(training, MEDIUM, "cpu"),
    "new shapes": functools.partial(new_shapes, "neuron"),
}
