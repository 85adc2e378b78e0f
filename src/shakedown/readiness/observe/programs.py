"""What the programs of one step compute and move, and what training keeps in memory. In a step that nobody times."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import targets
from ..evidence.programs import ProgramCost, Programs, StateBytes
from ..targets import Target
from .paths import Recorder

_SOURCE = (
    "torch.neuron.count_programs: XLA's cost analysis of the embedded device's programs, and the programs as traced"
)


def observe(target: Target, recorder: Recorder, step: Callable[[], None], state: StateBytes) -> Programs:
    """Count one `step`, which must have run before with the same shapes and must wait for the device at its end."""
    if targets.family(target) != "rehearsal":
        reason = (
            f"programs can be counted on the embedded device only; nothing on {target.name} tells what they compute"
        )
        return Programs(source="none", programs=None, reason=reason, state=state)
    start = time.perf_counter()
    with recorder.step() as rows:
        with torch.neuron.count_programs() as counted:
            step()
    ran: Counter[str] = Counter()
    for row in rows:
        if row.kind == "execute" and row.detail != "composite":  # whose parts are counted themselves
            ran[row.name] += row.count or 0
    for found in counted:
        for name, count in (found["operators"] or {found["name"]: 1}).items():
            ran[name] -= count * found["calls"]
    return Programs(
        source=_SOURCE,
        programs=[ProgramCost.model_validate(found) for found in counted],
        unanalysed={name: count for name, count in ran.items() if count > 0},
        state=state,
        seconds=time.perf_counter() - start,
    )


def state_bytes(model: nn.Module, optimizer: torch.optim.Optimizer | None, batch: dict[str, Tensor]) -> StateBytes:
    """Bytes that training keeps on the device. Gradients are those that a backward pass leaves, one for each weight."""
    weights = list(model.parameters())
    kept = [value for state in (optimizer.state.values() if optimizer else ()) for value in _tensors(state)]
    device = weights[0].device.type if weights else ""
    return StateBytes(
        parameters=_nbytes(weights),
        gradients=_nbytes([p for p in weights if p.requires_grad]) if optimizer is not None else 0,
        optimizer=_nbytes([value for value in kept if value.device.type == device]),
        buffers=_nbytes(list(model.buffers())),
        batch=_nbytes(list(batch.values())),
    )


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [found for item in value for found in _tensors(item)] if isinstance(value, (list, tuple)) else []


def _nbytes(tensors: list[Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
