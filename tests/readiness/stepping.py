"""One training step of a small workload, with the phases of the trial, for tests that watch what runs."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from shakedown.readiness import targets
from shakedown.readiness.observe.paths import Recorder


class Training:
    """`module`, a workload, on `target`; each call of :meth:`step` is one step of it."""

    def __init__(
        self, module: ModuleType, target: targets.Target, case: tuple[int, int] = (2, 4), compiled: bool = False
    ):
        torch.manual_seed(0)
        self.target = target
        self.device = targets.open_device(target)
        self.model = module.build_model().eval().to(self.device)
        self.batch = module.make_batch(*case)
        self.optimizer = module.build_optimizer(self.model.parameters())
        self.forward = module.forward
        if compiled:
            self.forward = torch.compile(module.forward, backend=target.backend, dynamic=False)
        self.roots = [Path(str(module.__file__)).parent]

    def step(self, recorder: Recorder | None = None) -> float:
        """One step; returns its loss, read in phase `logging`."""

        def phase(name: str) -> Any:
            return nullcontext() if recorder is None else recorder.phase(name)

        with phase("data"):
            batch = {name: value.to(self.device) for name, value in self.batch.items()}
        with phase("forward"):
            _, loss = self.forward(self.model, batch)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        with phase("logging"):
            value = loss.item()
        targets.wait(self.target)
        return value


def line(module: ModuleType, words: str) -> str:
    """``file:number`` of the line of `module` that holds `words`."""
    path = Path(str(module.__file__))
    numbers = [n for n, text in enumerate(path.read_text().splitlines(), 1) if words in text]
    assert len(numbers) == 1, words
    return f"{path.name}:{numbers[0]}"
