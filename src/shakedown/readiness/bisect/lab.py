"""The restored workload on three sides: float64 on the CPU, the CPU at the run's precision, the target."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .. import requirements, snapshot, targets, variations, workload
from ..observe import numerics
from . import trees
from .job import BisectJob


@dataclass
class Side:
    """A model with its optimizer and batch on one device in one precision."""

    name: str
    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    batch: dict[str, Tensor]
    weights: dict[str, Tensor] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)

    def reset(self) -> None:
        """Weights, buffers, gradients and optimizer as they were before the step; batch norm writes buffers in every pass."""
        self.model.load_state_dict(self.weights)
        for parameter in self.model.parameters():
            parameter.grad = None
        if self.optimizer is not None:
            self.optimizer.load_state_dict(copy.deepcopy(self.state))  # which may share tensors with what it is given


class Lab:
    """Everything that a stage needs, at the start of the step that is looked into."""

    def __init__(self, job: BisectJob) -> None:
        self.job = job
        self.demand = requirements.unlock(job.path("requirements.json")).numerics
        self.target = targets.get(job.target)
        self.device = targets.open_device(self.target)
        self.workload = workload.load(job.source)
        self.dtype = getattr(torch, job.dtype)
        self.case = job.case.split("#")[0]
        self.limit = snapshot.read_info(job.path("snapshot")).reduction_lengths[self.case]
        self.target_side = self._side("target", self.dtype, self.device)
        self.moved = self._moved_wrongly()
        if not self.moved:
            self.advance(job.step - 1)
        self.cpu = self._follow("cpu", self.dtype)
        self.truth = self._follow("truth", torch.float64)

    @property
    def sides(self) -> tuple[Side, Side, Side]:
        """Target, CPU and truth."""
        return self.target_side, self.cpu, self.truth

    def _side(self, name: str, dtype: torch.dtype, device: Any) -> Side:
        restored = snapshot.restore(self.workload, self.job.path("snapshot"), self.dtype)
        if name == "target":
            self.restored = restored
        model = restored.model.to(device)
        batch = self.on(device, restored.batches[self.case][self.job.step - 1])
        if dtype is torch.float64:
            model = model.double()
            batch = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
        optimizer = snapshot.build_optimizer(self.workload, model)
        if optimizer is not None:
            optimizer = snapshot.restore_optimizer(optimizer, self.job.path("snapshot"))
        side = Side(name, model, optimizer, batch)
        side.weights = {k: v.detach().clone() for k, v in model.state_dict().items()}
        side.state = optimizer_state(side.optimizer)
        return side

    def _moved_wrongly(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Weights and inputs whose bits changed on their way to the device: what was sent, what came back."""
        sent = self.restored.weights | {
            f"batch.{k}": v for k, v in self.restored.batches[self.case][self.job.step - 1].items()
        }
        here = self.target_side.weights | {f"batch.{k}": v for k, v in self.target_side.batch.items()}
        pairs = {name: (value, trees.host(here[name])) for name, value in sent.items()}
        return {
            n: p for n, p in pairs.items() if snapshot.hash_tensors({"": p[0]}) != snapshot.hash_tensors({"": p[1]})
        }

    def on(self, device: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """`batch` on `device`, in the memory order that the case asks for."""
        moved = {name: value.to(device) for name, value in batch.items()}
        return variations.relayout(moved) if self.case.endswith("~noncontiguous") else moved

    @property
    def trains(self) -> bool:
        """False for inference, whose step ends with the forward pass."""
        return self.target_side.optimizer is not None

    def run(self, side: Side, forward: Callable[..., Any] | None = None) -> tuple[dict[str, Tensor], Tensor | None]:
        """The forward pass of the step: outputs and loss."""
        with nullcontext() if self.trains else torch.no_grad():
            result = (forward or self.workload.forward)(side.model, dict(side.batch))
        return numerics.outputs_of(result, self.trains)

    def advance(self, steps: int) -> None:
        """Train the target's side so many steps, on the batches that the trial used."""
        side = self.target_side
        here = side.batch
        for batch in self.restored.batches[self.case][:steps]:
            side.batch = self.on(self.device, batch)
            _, loss = self.run(side)
            if side.optimizer is not None and loss is not None:
                loss.backward()
                side.optimizer.step()
                side.optimizer.zero_grad(set_to_none=True)
        side.batch = here
        side.weights = {k: v.detach().clone() for k, v in side.model.state_dict().items()}
        side.state = optimizer_state(side.optimizer)

    def _follow(self, name: str, dtype: torch.dtype) -> Side:
        """A side on the CPU that starts the step where the target starts it."""
        side = self._side(name, dtype, torch.device("cpu"))
        if self.job.step > 1:
            side.model.load_state_dict({k: trees.host(v) for k, v in self.target_side.weights.items()})
            side.weights = {k: v.detach().clone() for k, v in side.model.state_dict().items()}
            side.state = self.target_side.state
        return side


def optimizer_state(optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """A copy of the optimizer's state on the host."""
    if optimizer is None:
        return {}

    def copied(value: Any) -> Any:
        if isinstance(value, Tensor):
            return trees.host(value)
        if isinstance(value, dict):
            return {key: copied(item) for key, item in value.items()}
        return [copied(item) for item in value] if isinstance(value, (list, tuple)) else copy.deepcopy(value)

    result: dict[str, Any] = copied(optimizer.state_dict())
    return result
