"""Where operators ran, by phase. The only file that knows the device's observation API.

The embedded device counts executed and fallen-back operators, compilations and transfers itself. Other targets are seen
through a dispatch mode, which counts the operators that PyTorch sends to the device and cannot see a fallback behind
it; the evidence says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from ..evidence import PathRow
from ..targets import Target


class DeviceEvents:
    """The embedded device's own event stream. Counting is always on there, so it may stay on during timed steps."""

    source = "the device's event stream"
    free = True

    def __init__(self) -> None:
        import shakedown.neuron as sn

        self.events: Any = sn.events

    def phase(self, name: str) -> Any:
        """Attribute what happens inside to `name`."""
        return self.events.phase(name)

    @contextmanager
    def step(self) -> Iterator[list[PathRow]]:
        """Count one step; the list is filled when the context closes."""
        rows: list[PathRow] = []
        self.events.clear()
        yield rows
        rows += [PathRow.model_validate(row) for row in self.events.snapshot()]

    def compiles(self) -> int | None:
        """Programs compiled or loaded since the last step began."""
        return sum(row["count"] for row in self.events.snapshot() if row["kind"] == "compile")


class _Counting(TorchDispatchMode):
    """Counts the operators that reach the dispatcher, under the phase of the moment."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = ""
        self.counts: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func).replace(".", "::", 1), self.phase] += 1
        return func(*args, **(kwargs or {}))


class DispatchCounts:
    """Any other target. Counting slows every operator, so it is on in one observed step and never in a timed one."""

    source = "operators counted at PyTorch's dispatcher; a fallback behind it cannot be seen on this target"
    free = False

    def __init__(self) -> None:
        self._mode: _Counting | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Attribute what happens inside to `name`, when a step is being observed."""
        if self._mode is not None:
            self._mode.phase = name
        yield

    @contextmanager
    def step(self) -> Iterator[list[PathRow]]:
        """Count one step; the list is filled when the context closes."""
        rows: list[PathRow] = []
        with _Counting() as self._mode:
            yield rows
        rows += [
            PathRow(kind="execute", name=name, phase=phase, count=count)
            for (name, phase), count in self._mode.counts.items()
        ]
        self._mode = None

    def compiles(self) -> int | None:
        """Not known here."""
        return None


Recorder = DeviceEvents | DispatchCounts


def register_embedded_device() -> None:
    """``import torch`` does this where the package is installed; a source tree has no entry point."""
    import shakedown.neuron  # noqa: F401


def recorder(target: Target) -> Recorder:
    """The best observer that `target` offers."""
    import torch

    module = getattr(getattr(torch, "neuron", None), "__name__", "")
    if target.name == "neuron" and module.startswith("shakedown."):
        return DeviceEvents()
    return DispatchCounts()
