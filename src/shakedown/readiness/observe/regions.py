"""How much of a step runs inside compiled graphs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..evidence.graphs import Regions

# The autograd node of a compiled backward pass, in every AOTAutograd backend.
_COMPILED_BACKWARD = "CompiledFunctionBackward"
_ENGINE = "torch::autograd::AccumulateGrad"


class Observed(TorchDispatchMode):
    """A few steps, split into compiled graphs and the rest: operators at the dispatcher, seconds with the device awaited.

    A forward graph calls :meth:`run`. Its backward graph is found by its autograd node, which is there whatever compiler
    made it.
    """

    def __init__(self, wait: Callable[[], None]) -> None:
        super().__init__()
        self._wait = wait
        self._depth = 0
        self._phase = ""
        self._opened: list[float] = []
        self._graph_runs = self._backward_runs = self._engine = 0
        self._inside: Counter[str] = Counter()
        self._outside: Counter[str] = Counter()
        self._seconds: list[float] = []
        self._seconds_inside: list[float] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Without this, PyTorch runs compiled functions as written while any dispatch mode is on."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._phase:
            node = torch._C._current_autograd_node()
            name = node.name() if node is not None else ""
            if self._depth or name == _COMPILED_BACKWARD:
                self._inside[str(func).replace(".", "::", 1)] += 1
            elif name == _ENGINE or (not name and self._phase == "backward"):
                self._engine += 1  # accumulation, and the gradient of the loss by itself
            else:
                self._outside[str(func).replace(".", "::", 1)] += 1
        return func(*args, **(kwargs or {}))

    def begin(self) -> None:
        """A step begins."""
        self._seconds.append(0.0)
        self._seconds_inside.append(0.0)

    @contextmanager
    def span(self, phase: str) -> Iterator[None]:
        """One phase of the step; forward and backward pass count, or the whole where it is one program. No other is compiled."""
        if phase not in ("forward", "backward", "step"):
            yield
            return
        self._wait()
        self._phase = phase
        start = time.perf_counter()
        try:
            yield
            self._wait()
        finally:
            self._seconds[-1] += time.perf_counter() - start
            self._phase = ""

    phase = span  # what other observers of a step call it

    def run(self, compiled: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Run a compiled graph, and be told when its backward graph runs."""
        self._graph_runs += 1
        self._enter()
        self._depth += 1
        try:
            results = compiled(*arguments)
        finally:
            self._depth -= 1
            self._leave()
        nodes = {id(value.grad_fn): value.grad_fn for value in _tensors(results) if value.grad_fn is not None}
        for node in nodes.values():
            if node.name() == _COMPILED_BACKWARD:
                node.register_prehook(lambda gradients: self._enter())
                node.register_hook(lambda inputs, outputs: self._left_backward())
        return results

    def _left_backward(self) -> None:
        self._backward_runs += 1
        self._leave()

    def _enter(self) -> None:
        self._wait()
        self._opened.append(time.perf_counter())

    def _leave(self) -> None:
        self._wait()
        start = self._opened.pop()
        if not self._opened:  # a graph within a graph's own backward pass is part of it
            self._seconds_inside[-1] += time.perf_counter() - start

    def regions(self) -> Regions:
        """What was seen."""
        return Regions(
            steps=len(self._seconds),
            graph_runs=self._graph_runs,
            backward_runs=self._backward_runs,
            inside=self._inside.total(),
            outside=dict(self._outside.most_common()),
            engine=self._engine,
            seconds=self._seconds,
            seconds_inside=self._seconds_inside,
            inside_operators=dict(self._inside.most_common()),
        )


def _tensors(results: Any) -> list[Tensor]:
    if isinstance(results, Tensor):
        return [results]
    return [value for value in results if isinstance(value, Tensor)] if isinstance(results, (list, tuple)) else []
