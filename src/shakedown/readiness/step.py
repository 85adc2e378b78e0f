"""One training step of a restored workload on a device, phase by phase: data, forward, backward, optimizer, logging.

Where the whole step is one program, ``step`` stands in place of the three in the middle.

A workload without parameters, or whose ``build_optimizer`` returns None, is an inference workload: its step ends with the
forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from . import snapshot
from .observe import numerics
from .workload import Workload

if TYPE_CHECKING:
    from .whole import WholeStep

Span = Callable[[str], AbstractContextManager[Any]]
AfterBackward = Callable[[dict[str, Tensor], Tensor | None], None]


def _ignore(outputs: dict[str, Tensor], loss: Tensor | None) -> None:
    """Look at nothing."""


class Stepper:
    """The model on its device, and how a step of it is made. :meth:`reset` begins a case from the snapshot."""

    def __init__(self, loaded: Workload, restored: snapshot.Restored, device: torch.device, folder: Path) -> None:
        self.workload, self.restored, self.device, self.folder = loaded, restored, device, folder
        self.model: nn.Module = restored.model.to(device)
        self.forward: Callable[..., Any] = loaded.forward
        self.optimizer: torch.optim.Optimizer | None = None
        self.whole: WholeStep | None = None  # in place of forward pass, backward pass and optimizer
        self.rearrange: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict  # of a batch that is on the device

    def new_optimizer(self) -> torch.optim.Optimizer | None:
        """A new optimizer over the model, in the snapshot's state; None for inference."""
        built = snapshot.build_optimizer(self.workload, self.model)
        return None if built is None else snapshot.restore_optimizer(built, self.folder)

    def reset(self) -> None:
        """Put model and optimizer where the snapshot has them."""
        self.model.load_state_dict(self.restored.weights)
        for parameter in self.model.parameters():
            parameter.grad = None
        self.optimizer = self.new_optimizer()
        if self.whole is not None and self.optimizer is not None:
            self.whole.use(self.optimizer)

    def step(
        self, batch: dict[str, Tensor], span: Span, after_backward: AfterBackward = _ignore, log: bool = False
    ) -> None:
        """One step; `span` opens each phase, `after_backward` sees outputs and loss outside any span, `log` reads and
        prints the loss at the end.
        """
        with span("data"):
            on_device = self.rearrange({name: value.to(self.device) for name, value in batch.items()})
        self.step_on_device(on_device, span, after_backward, log)

    def step_on_device(
        self, batch: dict[str, Tensor], span: Span, after_backward: AfterBackward = _ignore, log: bool = False
    ) -> None:
        """The rest of a step whose batch is on the device already."""
        if self.whole is not None:
            self._whole_step(self.whole, batch, span, after_backward, log)
            return
        trains = self.optimizer is not None
        with span("forward"), nullcontext() if trains else torch.no_grad():
            result = self.forward(self.model, batch)
        outputs, loss = numerics.outputs_of(result, trains)
        if self.optimizer is not None and loss is not None:
            with span("backward"):
                loss.backward()
        after_backward(outputs, loss)
        if self.optimizer is not None:
            with span("optimizer"):
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
        if log and loss is not None:
            with span("logging"):
                print(f"loss {loss.item():.6f}", flush=True)

    def _whole_step(
        self, whole: WholeStep, batch: dict[str, Tensor], span: Span, after_backward: AfterBackward, log: bool
    ) -> None:
        with span("step"):
            outputs, loss = whole(batch)
        after_backward(outputs, loss)
        assert self.optimizer is not None
        self.optimizer.zero_grad(set_to_none=True)
        if log:
            with span("logging"):
                print(f"loss {loss.item():.6f}", flush=True)
