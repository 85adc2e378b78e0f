"""What the trial's evidence costs: a step that is observed and whose tensors are kept, against the same step left alone.

Both are steps of the same model on the device, in turns. Observed means what the trial does in a step that it judges:
operators and phases counted, and outputs, loss, gradients, weights and optimizer state copied to the host.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from shakedown.readiness import snapshot, targets, workload
from shakedown.readiness.observe import numerics, paths
from shakedown.readiness.step import Stepper

from .measure import compare
from .rows import Row, compared

_CASE = workload.Case(2, 32)
_LIMIT = 1.5


def _alone(name: str) -> AbstractContextManager[None]:
    return nullcontext()


def sides(stepper: Stepper, batch: dict[str, Tensor]) -> tuple[Callable[[], numerics.Capture], Callable[[], None]]:
    """The observed step and the plain one; each returns when its work is complete."""
    target = targets.get("neuron")
    observer = paths.recorder(target)

    def observed() -> numerics.Capture:
        capture = numerics.Capture()

        def keep(outputs: dict[str, Tensor], loss: Tensor | None) -> None:
            for name, value in outputs.items():
                capture.keep(1, "output", name, value)
            if loss is not None:
                capture.keep(1, "loss", "loss", loss)
            capture.gradients(1, stepper.model)

        with observer.step():
            stepper.step(batch, observer.phase, keep)
            targets.wait(target)
        capture.weights(1, stepper.model, stepper.optimizer)
        return capture

    def plain() -> None:
        stepper.step(batch, _alone)
        targets.wait(target)

    return observed, plain


def trained(folder: Path, compiled: bool) -> tuple[Stepper, dict[str, Tensor]]:
    """The trial's own decoder on the device, at the start of its training, and a batch of it."""
    target = targets.get("neuron")
    loaded = workload.load(workload.resolve("decoder"))
    snapshot.create(loaded, [_CASE], 1, folder)
    restored = snapshot.restore(loaded, folder, torch.float32)
    stepper = Stepper(loaded, restored, targets.open_device(target), folder)
    if compiled:
        stepper.forward = torch.compile(loaded.forward, backend=target.backend, dynamic=False)
    stepper.reset()
    return stepper, restored.batches[str(_CASE)][0]


def overhead() -> Iterator[Row]:
    for compiled in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            observed, plain = sides(*trained(Path(folder) / "snapshot", compiled))
            found = compare(observed, plain, repeats=5, blocks=11, warmup=6)
            capture = observed()
            mode = "compiled" if compiled else "eager"
            yield compared(
                f"evidence: {mode} step of the trial's decoder ({_CASE}), observed and kept",
                "the same step left alone",
                _LIMIT,
                found,
                tensors=len(capture.tensors),
                bytes=sum(value.numel() * value.element_size() for value in capture.tensors.values()),
            )
