"""``compile_step``: forward, backward and the optimizer's update as one program.

Dynamo captures the loss, with its guards; a :class:`Captured` takes what it captured, and makes a program of the whole step
for each arrangement of parameters, optimizer options, state and gradients that it is called with.
"""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...device import _start
from ...errors import UnsupportedStep, said_by
from .step_calls import Captured
from .step_trace import Path

MANY_SHAPES = 8  # from which on it is worth saying that inputs can be padded to fewer


def compile_step(
    model: torch.nn.Module,
    loss_fn: Callable[..., Any] | None,
    optimizer: torch.optim.Optimizer,
    *,
    clip_grad_norm: float | None = None,
    accumulate: int = 1,
    before_update: Callable[[list[Tensor]], Any] | None = None,
    keep_gradients: bool = False,
    max_programs: int = 32,
    name: str = "model_default",
    backend_wrapper: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
) -> TrainingStep:
    """A callable ``step(*batch) -> loss`` that trains `model` by one step, as one program for each shape of batch.

    Args:
        model: on the device.
        loss_fn: ``loss_fn(model, *batch)`` gives the loss, a 0-d tensor, or a tuple that starts with it. None: the model
            returns it itself, or an object whose ``loss`` it is.
        optimizer: over parameters of `model`. It keeps its state and its options: schedulers, ``state_dict`` and
            ``load_state_dict`` work between steps.
        clip_grad_norm: what ``torch.nn.utils.clip_grad_norm_`` limits the gradients' norm to.
        accumulate: so many calls make one update, each with its share of the loss; ``p.grad`` holds the sum in between.
        before_update: called once, while a program is made, with the optimizer's parameters, their gradients in ``.grad``:
            what it computes with them becomes part of the program.
        keep_gradients: ``p.grad`` holds the gradients of the last update until the next call. It costs their memory.
        max_programs: shapes of batches at most.
        name: of its programs.
        backend_wrapper: given the ``torch.compile`` backend that takes what Dynamo captures, returns one to use instead:
            for whoever counts captures.

    Raises:
        UnsupportedStep: when it is called, the step cannot be one program; or at once, the optimizer is none of PyTorch's
            kind, or needs a closure.
        TypeError, ValueError: an argument cannot be used.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"compile_step needs a torch.optim.Optimizer, not {type(optimizer).__name__}")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UnsupportedStep(
            f"{type(optimizer).__name__} evaluates the loss several times in a step (it needs a closure): compile the loss "
            'alone, torch.compile(model, backend="neuron"), and pass the closure to optimizer.step'
        )
    if type(accumulate) is not int or accumulate < 1:
        raise ValueError(f"accumulate is a number of calls, 1 or more, not {accumulate!r}")
    if type(max_programs) is not int or max_programs < 1:
        raise ValueError(f"max_programs is a number of programs, 1 or more, not {max_programs!r}")
    if clip_grad_norm is not None and not clip_grad_norm > 0:
        raise ValueError(f"clip_grad_norm is a norm above zero, not {clip_grad_norm!r}")
    return TrainingStep(
        model,
        loss_fn,
        optimizer,
        clip_grad_norm,
        accumulate,
        before_update,
        keep_gradients,
        max_programs,
        name,
        backend_wrapper,
    )


class TrainingStep:
    """What :func:`compile_step` returns. ``keep_gradients`` and ``optimizer`` may be set between calls."""

    def __init__(
        self,
        model: torch.nn.Module,
        loss_fn: Callable[..., Any] | None,
        optimizer: torch.optim.Optimizer,
        clip_grad_norm: float | None,
        accumulate: int,
        before_update: Callable[[list[Tensor]], Any] | None,
        keep_gradients: bool,
        max_programs: int,
        name: str,
        backend_wrapper: Callable[[Callable[..., Any]], Callable[..., Any]] | None,
    ) -> None:
        _start()
        self.model, self.optimizer = model, optimizer
        self.clip_grad_norm, self.accumulate, self.before_update = clip_grad_norm, accumulate, before_update
        self.keep_gradients, self.max_programs, self.name = keep_gradients, max_programs, name
        self.calls = 0  # since the last update
        self.captured = 0  # shapes of batches
        self.placed: dict[int, Tensor] = {}  # gradients that the last step left to be looked at, by id of the parameter
        self.varying: set[tuple[str, int | None]] = set()  # options that have changed, and are inputs since
        self.constant: set[tuple[str, int | None]] = set()  # options by whose value the optimizer decides
        self.watched: dict[Any, float] = {}  # the numbers among the options when a program was last looked for

        self.recent: weakref.WeakKeyDictionary[Captured, Any] = weakref.WeakKeyDictionary()  # what each ran last
        here = weakref.ref(self)  # Dynamo keeps a backend, too, as long as the loss's code lives

        def make(module: torch.fx.GraphModule, examples: Any) -> Captured:
            owner = here()
            assert owner is not None, "called by its step"
            return owner._backend(module, examples)

        # A frame of this package would be skipped by Dynamo, so that there is none between it and the user's code.
        loss = model if loss_fn is None else functools.partial(loss_fn, model)
        backend = make if backend_wrapper is None else backend_wrapper(make)
        self._loss = torch.compile(loss, backend=backend, fullgraph=True, dynamic=False, recompile_limit=max_programs)

    def __call__(self, *batch: Any, **named: Any) -> Any:
        """One step on `batch`; what the loss function returns, detached.

        Raises:
            UnsupportedStep: it cannot be one program.
            IndexError, RuntimeError...: the data are not what an operator accepts; nothing has changed then.
        """
        if not torch.is_grad_enabled():
            raise RuntimeError(
                "a training step needs gradients, and they are off here (torch.no_grad or inference_mode)"
            )
        try:
            result = self._loss(*batch, **named)
            return result if isinstance(result, (Tensor, tuple)) else result.loss
        except torch._dynamo.exc.FailOnRecompileLimitHit as error:
            raise UnsupportedStep(
                f"compile_step has made programs for {self.captured} shapes of batches, and max_programs is "
                f"{self.max_programs}: pad the batches to a few sizes (torch.neuron.bucketed does), or raise max_programs"
            ) from error
        except torch._dynamo.exc.Unsupported as error:
            raise UnsupportedStep(
                f"the loss cannot be captured as one graph, so the step cannot be one program: {_first_line(error)}. "
                'torch.compile(model, backend="neuron") with the optimizer outside allows graph breaks'
            ) from error

    def _backend(self, module: torch.fx.GraphModule, examples: Any) -> Captured:
        self.captured += 1
        if self.captured == MANY_SHAPES and self.max_programs > MANY_SHAPES:
            warnings.warn(
                f"compile_step makes a program for each shape of batch, and this is number {self.captured}: "
                "torch.neuron.bucketed pads inputs to a few sizes",
                stacklevel=2,
            )
        return Captured(self, module)

    def parameters(self) -> list[Tensor]:
        """The optimizer's, group by group."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def number_paths(self) -> list[Path]:
        """The options that are inputs of the program: learning rates, tensors, and what has changed before."""
        found: list[Path] = []
        for g, group in enumerate(self.optimizer.param_groups):
            for option, value in group.items():
                parts = enumerate(value) if isinstance(value, (tuple, list)) and option != "params" else [(None, value)]
                for place, part in parts if option != "params" else ():
                    is_number = (
                        type(part) is float or (type(part) is int and option == "lr") or isinstance(part, Tensor)
                    )
                    spot = (option, place)
                    chosen = option == "lr" or isinstance(part, Tensor) or spot in self.varying
                    if is_number and chosen and spot not in self.constant:
                        found.append((g, *spot))
        return found

    def options(self) -> list[list[Any]]:
        """Names and values of all options, group by group."""
        return [
            [item for pair in group.items() if pair[0] not in ("params", "lr") for item in pair]
            for group in self.optimizer.param_groups
        ]

    def watch(self, options: list[list[Any]]) -> None:
        """Make inputs of the numbers among the options that are not what they were when this was called last."""
        now = {
            (g, option, place): part
            for g, group in enumerate(options)
            for option, value in zip(group[::2], group[1::2])
            for place, part in (enumerate(value) if isinstance(value, (tuple, list)) else [(None, value)])
            if type(part) is float
        }
        self.varying |= {key[1:] for key, part in now.items() if self.watched.get(key, part) != part}
        self.watched = now


def _first_line(error: Exception) -> str:
    return said_by(error).split(": ", 1)[-1]
