"""What ``torch.compile`` is given in a trial: forward pass and loss, or the whole training step as one program.

The second is what ``boundary = "step"`` asks for. Outputs, loss and gradients come out of that program too, since they are
evidence: the program that is judged is the one that is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .errors import BadInput
from .observe import graphs, numerics
from .targets import Target

if TYPE_CHECKING:
    from .requirements import Requirements
    from .step import Stepper


def compile_stepper(stepper: Stepper, target: Target, demand: Requirements, watch: graphs.Watch | None = None) -> None:
    """Have `stepper` make compiled steps, within the boundary that the requirements ask for; `watch` sees what is captured.

    A workload without an optimizer has no more of a step than its forward pass.
    """
    if demand.workload.boundary == "step" and stepper.new_optimizer() is not None:
        stepper.whole = WholeStep(stepper, target, watch)
        if stepper.optimizer is not None:
            stepper.whole.use(stepper.optimizer)
        return
    # Forward pass and loss, with the backward pass that belongs to them. The optimizer stays outside.
    backend = target.backend if watch is None else watch.backend(target.backend)
    forward = torch.compile(stepper.workload.forward, backend=backend, dynamic=False)
    stepper.forward = forward if watch is None else watch.calls(forward)


class WholeStep:
    """Forward and backward pass and the optimizer of a stepper, which calls it instead of making the step itself."""

    def __init__(self, stepper: Stepper, target: Target, watch: graphs.Watch | None) -> None:
        make = getattr(torch.get_device_module(target.device), "compile_step", None)
        if make is None:
            raise BadInput(
                f"the package that provides {target.name} here does not compile a whole training step: set "
                "workload.boundary to `forward and loss`"
            )
        forward = stepper.workload.forward

        def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            outputs, value = numerics.outputs_of(forward(model, batch))
            return value.reshape(()), outputs

        wrapper = None if watch is None else watch.backend
        self._step = make(stepper.model, loss, stepper.new_optimizer(), keep_gradients=True, backend_wrapper=wrapper)
        self._call: Callable[..., Any] = self._step if watch is None else watch.calls(self._step)

    def use(self, optimizer: torch.optim.Optimizer) -> None:
        """Train with `optimizer` from now on. Programs that were made for one like it serve."""
        self._step.optimizer = optimizer

    def __call__(self, batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """(outputs by name, loss); gradients are in ``.grad``, and the optimizer has made its step."""
        loss, outputs = self._call(batch)
        return outputs, loss
