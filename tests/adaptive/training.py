"""Two small trainings, each run twice from the same start: under plain eager execution and recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.decoder import SMALL, Decoder, batch

from .running import operators, plain_eager

_BATCHES = 8
Batch = tuple[torch.Tensor, ...]


class Convolutions(nn.Module):
    """Images and classes in, cross-entropy loss out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1, stride=2)
        self.norm_first, self.norm_second = nn.BatchNorm2d(8), nn.BatchNorm2d(16)
        self.head = nn.Linear(16 * 4 * 4, 10)

    def forward(self, x_bchw: torch.Tensor, labels_b: torch.Tensor) -> torch.Tensor:
        x_bchw = F.max_pool2d(F.relu(self.norm_first(self.first(x_bchw))), 2)
        x_bchw = F.relu(self.norm_second(self.second(x_bchw)))
        return F.cross_entropy(self.head(x_bchw.flatten(1)), labels_b)


def _decoder() -> tuple[nn.Module, list[Batch]]:
    return Decoder(SMALL), [batch(SMALL) for _ in range(_BATCHES)]


def _convolutions() -> tuple[nn.Module, list[Batch]]:
    return Convolutions(), [(torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))) for _ in range(_BATCHES)]


MODELS: dict[str, Callable[[], tuple[nn.Module, list[Batch]]]] = {"decoder": _decoder, "convolutions": _convolutions}
OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
}


@dataclass
class Trained:
    """Losses step by step, and the model's and the optimizer's state at the end, on the CPU."""

    losses: list[torch.Tensor]
    state: dict[str, torch.Tensor]
    fused: int  # operators, since the start
    one_by_one: int


def train(model: str, optimizer: str, dtype: torch.dtype, steps: int, *, eager: bool, read: int = 0) -> Trained:
    """Train from a start of its own. The loss is read every `read` steps (0: never); the compiler is waited for at first."""
    with plain_eager() if eager else contextlib.nullcontext():
        torch.manual_seed(0)
        module, batches = MODELS[model]()
        module = module.to(dtype).to("neuron")
        there = [tuple((t.to(dtype) if t.is_floating_point() else t).to("neuron") for t in b) for b in batches]
        stepper = OPTIMIZERS[optimizer](module.parameters())
        losses = []
        before = operators()
        for step in range(steps):
            stepper.zero_grad()
            loss = module(*there[step % _BATCHES])
            loss.backward()
            stepper.step()
            losses.append(loss.detach())
            if read and step % read == read - 1:
                loss.item()
            if not eager and step in (4, 7, 9):
                torch.neuron.synchronize()
                assert torch.neuron.adaptive.wait(300), "the background compiler takes too long"
        state = dict(module.state_dict())
        for number, values in stepper.state_dict()["state"].items():
            state.update({f"{number}.{name}": v for name, v in values.items() if isinstance(v, torch.Tensor)})
        kept = {name: value.detach().cpu() for name, value in state.items()}
        after = operators()
        return Trained([x.cpu() for x in losses], kept, after[0] - before[0], after[1] - before[1])
