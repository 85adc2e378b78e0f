"""``torch_neuronx.metrics``: what compiling and the caches cost, counted and sampled from the event stream while it is on.

Off unless :func:`set_enabled` or ``TORCH_NEURONX_METRICS_ENABLED`` says otherwise; then nothing listens, and nothing is kept.
Names are TorchNeuron's. What they mean here:

- a look-up in memory is a call of an operator or of a compiled graph: a hit where its program was there, a miss where it had to
  be made; a look-up on disk follows each miss;
- ``CompilationTime`` is in milliseconds, a sample for each program that was compiled; ``MemoryUsage`` in bytes, a sample of the
  sum for each executable that was loaded from disk or stored there.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from . import config, events

_PREFIX = "CompilationCache."
_COUNTERS = tuple(
    f"{_PREFIX}{name}"
    for name in (
        "Evictions",
        "InMemoryHits",
        "InMemoryMisses",
        "PersistentHits",
        "PersistentMisses",
        "TotalCompilations",
    )
)
_TIME, _MEMORY = f"{_PREFIX}CompilationTime", f"{_PREFIX}MemoryUsage"
_METRICS = (_TIME, _MEMORY)
_SAMPLES = 1024  # that are kept of each metric: the latest

_lock = threading.RLock()
_listening: ExitStack | None = None
_counts = dict.fromkeys(_COUNTERS, 0)


class _Metric:
    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.total = 0
        self.accumulator = 0.0
        self.samples: deque[tuple[int, float]] = deque(maxlen=_SAMPLES)

    def add(self, value: float) -> None:
        self.total += 1
        self.accumulator += value
        self.samples.append((time.time_ns(), value))


_metrics = {name: _Metric() for name in _METRICS}
_loaded = 0  # bytes of executables


_begun = False


def begin() -> None:
    """What ``TORCH_NEURONX_METRICS_ENABLED`` says, once in a process: when the module is imported, or the device starts."""
    global _begun
    if not _begun:
        _begun = True
        if config.METRICS():
            set_enabled(True)


def is_enabled() -> bool:
    """Whether counters and metrics are collected."""
    return _listening is not None


def set_enabled(enabled: bool) -> None:
    """Begin to collect, or stop. What was collected stays until it is cleared."""
    global _listening
    with _lock:
        if enabled and _listening is None:
            _listening = ExitStack()
            _listening.enter_context(events.watch(_ran))
            _listening.enter_context(events.subscribe(_happened, executed=False))
        elif not enabled and _listening is not None:
            _listening.close()
            _listening = None


def _ran(tally: events.Tally) -> None:
    if not tally.name.startswith("adaptive::"):  # its members are counted
        with _lock:
            _counts[f"{_PREFIX}InMemoryHits"] += 1


def _happened(event: events.Event) -> None:
    global _loaded
    with _lock:
        if event.kind == "compile":
            _counts[f"{_PREFIX}InMemoryMisses"] += 1
            if not event.name.startswith("adaptive::"):
                _counts[f"{_PREFIX}InMemoryHits"] -= 1  # the call that asked for it counts as one when it has run
            if event.detail == "compiled":
                _counts[f"{_PREFIX}PersistentMisses"] += config.CACHE()
                _counts[f"{_PREFIX}TotalCompilations"] += 1
                _metrics[_TIME].add(event.duration_ns / 1e6)
            else:
                _counts[f"{_PREFIX}PersistentHits"] += 1
        elif event.kind == "cache" and event.name == "evicted":
            _counts[f"{_PREFIX}Evictions"] += 1
        elif event.kind == "cache" and event.name in ("hit", "stored") and event.detail == "executable":
            _loaded += event.nbytes
            _metrics[_MEMORY].add(_loaded)


# --- reading ------------------------------------------------------------------------------------------------------------


def get_counter_names() -> list[str]:
    """All counters, counted or not."""
    return list(_COUNTERS)


def get_counter_value(name: str) -> int | None:
    """How often since the last :func:`clear_counters`; None: there is no such counter."""
    with _lock:
        return max(0, _counts[name]) if name in _counts else None


def get_metric_names() -> list[str]:
    """All metrics, sampled or not."""
    return list(_METRICS)


def get_metric_data(name: str) -> dict[str, Any] | None:
    """``accumulator`` (sum of all values), ``total_samples``, ``repr`` (the sum, for people), and the latest ``samples``.

    Each sample has ``timestamp_ns`` (since 1970) and ``value``. None: there is no such metric.
    """
    with _lock:
        metric = _metrics.get(name)
        if metric is None:
            return None
        return {
            "accumulator": metric.accumulator,
            "total_samples": metric.total,
            "repr": _shown(name, metric.accumulator if name == _TIME else (metric.samples or [(0, 0.0)])[-1][1]),
            "samples": [{"timestamp_ns": when, "value": value} for when, value in metric.samples],
        }


def _shown(name: str, value: float) -> str:
    return f"{value:.3f} ms" if name == _TIME else f"{value / 2**20:.3f} MiB"


def get_compilation_metrics() -> dict[str, Any]:
    """Everything at once: each counter's value and each metric's data, by name."""
    counters = {name: get_counter_value(name) for name in _COUNTERS}
    return counters | {name: get_metric_data(name) for name in _METRICS}


def report() -> str:
    """All counters and metrics as text."""
    return report_filtered(_COUNTERS, _METRICS)


def report_filtered(counter_names: Iterable[str] | None, metric_names: Iterable[str] | None) -> str:
    """The counters and metrics of these names as text; None stands for all, and a name that does not exist is left out."""
    lines = []
    for name in _METRICS if metric_names is None else metric_names:
        data = get_metric_data(name)
        if data is not None:
            values = sorted(s["value"] for s in data["samples"])
            lines += [f"Metric: {name}", f"  TotalSamples: {data['total_samples']}", f"  Accumulator: {data['repr']}"]
            if values:
                at = {
                    p: values[min(len(values) - 1, p * len(values) // 100)] for p in (1, 5, 10, 20, 50, 80, 90, 95, 99)
                }
                lines.append("  Percentiles: " + "; ".join(f"{p}%={_shown(name, v)}" for p, v in at.items()))
    for name in _COUNTERS if counter_names is None else counter_names:
        value = get_counter_value(name)
        if value is not None:
            lines += [f"Counter: {name}", f"  Value: {value}"]
    return "\n".join(lines)


def clear_counters() -> None:
    """Set every counter to 0."""
    with _lock:
        _counts.update(dict.fromkeys(_COUNTERS, 0))


def clear_metrics() -> None:
    """Forget the samples of every metric."""
    with _lock:
        for metric in _metrics.values():
            metric.clear()


def clear_all() -> None:
    """:func:`clear_counters` and :func:`clear_metrics`."""
    clear_counters()
    clear_metrics()
