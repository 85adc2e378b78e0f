"""``NeuronProfiler``: a trace handler of ``torch.profiler``, and a context manager of its own. TorchNeuron's names."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from .neuron_config import ALL_KINDS, KINDS, NeuronConfig, ProfileMode, cores_of


class NeuronProfiler:
    """Profile the device and PyTorch together.

    Either a handler, ``torch.profiler.profile(..., on_trace_ready=NeuronProfiler(config).export_trace)``, or

        with NeuronProfiler(neuron_output_dir="./output"):
            step()

    which writes ``pytorch_trace.json``, and ``framework_mapping_<time>.json``: each event of the device with the operator that
    caused it, where both were profiled.

    Args:
        pytorch_activities: as for ``torch.profiler.profile`` (None: CPU and PrivateUse1); or a :class:`NeuronConfig`.
        record_shapes: keep the sizes of operators' inputs.
        pytorch_trace_file: where PyTorch's trace goes (None: ``pytorch_trace.json`` in `neuron_output_dir`).
        neuron_output_dir: directory of what is written, made if need be.
        event_filters: ``{"nc": [0, (2, 5)], "types": ["execute", "transfer"]}``: the cores (numbers, inclusive ranges) and
            the kinds of events to keep. Kinds are those of docs/profiler.md, or names of :class:`ProfileMode`.

    Raises:
        ValueError: a filter that does not exist, or cannot be read.
    """

    def __init__(
        self,
        pytorch_activities: Iterable[Any] | NeuronConfig | None = None,
        record_shapes: bool = False,
        pytorch_trace_file: str | os.PathLike[str] | None = None,
        neuron_output_dir: str | os.PathLike[str] = "./output",
        event_filters: dict[str, Any] | None = None,
    ) -> None:
        if isinstance(pytorch_activities, NeuronConfig):
            self.config, self._activities = pytorch_activities, None
            self.output_dir = self.config.profile_output_dir
        else:
            self.config, self._activities = NeuronConfig(), pytorch_activities
            self.output_dir = Path(neuron_output_dir)
        if event_filters is not None:
            _filter(self.config, event_filters)
        self._record_shapes = record_shapes
        self._trace_file = None if pytorch_trace_file is None else Path(pytorch_trace_file)
        self.profiler: Any = None  # the torch.profiler.profile of the last or the current run
        self._active = self._both = False

    def export_trace(self, profiler: Any) -> Path:
        """Write the trace of `profiler`, a ``torch.profiler.profile``, into the output directory. Returns its path."""
        self.output_dir.mkdir(parents=True, exist_ok=True)
        path = self.output_dir / f"{socket.gethostname()}_{os.getpid()}.{time.time_ns()}.pt.trace.json"
        profiler.export_chrome_trace(str(path))
        return path

    def start(self) -> None:
        """Begin. Raises RuntimeError: it has begun already."""
        if self._active:
            raise RuntimeError("NeuronProfiler is already active: stop() it first")
        import torch.profiler as torch_profiler

        activity = torch_profiler.ProfilerActivity
        self._activities = [activity.CPU, activity.PrivateUse1] if self._activities is None else list(self._activities)
        self.profiler = torch_profiler.profile(
            activities=self._activities, record_shapes=self._record_shapes, experimental_config=self.config
        )
        self.profiler.start()
        self._both = {activity.CPU, activity.PrivateUse1} <= self.profiler.activities
        self._active = True

    def stop(self) -> None:
        """End, and write the files. Raises RuntimeError: it has not begun."""
        if not self._active:
            raise RuntimeError("NeuronProfiler is not active: start() it first")
        self._active = False
        self.profiler.stop()
        self.output_dir.mkdir(parents=True, exist_ok=True)
        path = self._trace_file or self.output_dir / "pytorch_trace.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.profiler.export_chrome_trace(str(path))
        if self._both:
            from .mapping import rows

            target = self.output_dir / f"framework_mapping_{time.time_ns()}.json"
            partial = target.with_suffix(".partial")
            partial.write_text(json.dumps({"events": rows(self.profiler)}, indent=1))
            partial.replace(target)

    def __enter__(self) -> NeuronProfiler:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _filter(config: NeuronConfig, filters: dict[str, Any]) -> None:
    unknown = sorted(set(filters) - {"nc", "types"})
    if unknown:
        raise ValueError(f"event_filters: there is no filter {unknown[0]!r}; choose among 'nc', 'types'")
    if "nc" in filters:
        config.cores = _cores(filters["nc"])
    if "types" in filters:
        config.kinds = _kinds(filters["types"])


def _cores(given: Any) -> frozenset[int]:
    if isinstance(given, str):
        return cores_of(given)
    found: set[int] = set()
    for item in [given] if isinstance(given, (int, tuple)) else given:
        try:
            first, last = (item, item) if isinstance(item, int) else item
            found.update(range(first, last + 1))
        except (TypeError, ValueError):
            raise ValueError(f"event_filters['nc']: {item!r} is neither a core nor a range of two") from None
    return frozenset(found)


def _kinds(given: Any) -> frozenset[str]:
    found: set[str] = set()
    for item in [given] if isinstance(given, (str, ProfileMode)) else given:
        name = item.value if isinstance(item, ProfileMode) else str(item).lower()
        if name in ALL_KINDS:
            found.add(name)
        elif any(name == mode.value for mode in KINDS):
            found |= KINDS[ProfileMode(name)]
        else:
            raise ValueError(
                f"event_filters['types']: there is no {item!r}; choose among {', '.join(sorted(ALL_KINDS))}"
            )
    return frozenset(found)
