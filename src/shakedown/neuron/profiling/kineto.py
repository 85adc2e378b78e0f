"""A profile of PyTorch's that also holds the device's events.

Kineto takes events of a device from a C++ profiler, which this device has not. So a profile that asks for the device gets the
class made here: it listens to the device's event stream while the profile runs, and adds what it heard after Kineto has told.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator
from typing import Any

import torch.autograd.profiler as torch_profiler
from torch.autograd import DeviceType, ProfilerActivity

from .. import log
from . import chrome, functions
from .clock import MARKER
from .neuron_config import NeuronConfig
from .session import Session

_NEEDED = ("_start_trace", "_parse_kineto_results", "_ensure_function_events", "export_chrome_trace", "export_stacks")


def trouble(what: str, error: BaseException) -> None:
    """Say once that the device's events are missing, and why."""
    log.warn_once(
        f"torch.profiler: {what} without the events of device neuron, which do not fit torch {torch_profiler.torch.__version__} "
        f"({type(error).__name__}: {error})",
        key=f"profiler {what}",
        stacklevel=4,
    )


def attach(profile: Any) -> None:
    """Make `profile`, a new ``torch.autograd.profiler.profile``, one that holds the device's events."""
    kind: Any = type(profile)
    missing = [name for name in _NEEDED if not callable(getattr(kind, name, None))]
    if missing:
        raise AttributeError(f"{kind.__name__} has no {', '.join(missing)}")
    profile.__class__ = _with_device(kind)


@functools.cache
def _with_device(kind: Any) -> Any:
    return type(kind.__name__, (_WithDevice, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})


class _Readable:
    """Kineto's results without our marks, and without names that are no text.

    (PyTorch notes the name of a Python function in memory that it does not own: where the function is gone by the end, as a
    module that could not be imported is, its name is arbitrary bytes, and reading it raises.)
    """

    def __init__(self, results: Any) -> None:
        self._results = results
        self.spans: list[tuple[int, int]] = []
        self._events = list(self._sorted_out())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)

    def events(self) -> list[Any]:
        return self._events

    def _sorted_out(self) -> Iterator[Any]:
        for event in self._results.events():
            try:
                name = event.name()
            except UnicodeDecodeError:
                continue
            if name == MARKER:
                self.spans.append((event.start_ns(), event.end_ns()))
            else:
                yield event


_AProfile: Any = object  # the class that it goes before, for who reads types


class _WithDevice(_AProfile):
    """Goes before ``torch.autograd.profiler.profile`` in the classes of a profile."""

    _session: Session | None = None
    _placed: functions.Placed | None = None

    def _start_trace(self: Any) -> None:
        # Profiles look for an optional module when the first range is entered; not while Python functions are being recorded.
        look = getattr(torch_profiler, "_maybe_cupti_monitor", None)
        if self.with_stack and look is not None:
            look()
        super()._start_trace()
        given = self.experimental_config
        config = given if isinstance(given, NeuronConfig) else None
        self._session = Session(config, with_stack=self.with_stack, memory=self.profile_memory)
        self._session.start()

    def __exit__(self: Any, *error: Any) -> Any:
        session = self._session if self.enabled else None
        if session is None:
            return super().__exit__(*error)
        late: Exception | None = None
        try:
            try:
                session.finish()
            except Exception as problem:  # an operator that failed on the device: the profile must end all the same
                late = problem
            session.stop()
        finally:
            answer = super().__exit__(*error)
        if late is not None:
            raise late
        return answer

    def toggle_collection_dynamic(self: Any, enabled: bool, activities: Iterable[Any]) -> Any:
        chosen = set(activities)
        if self._session is not None and ProfilerActivity.PrivateUse1 in chosen:
            self._session.paused = not enabled
            chosen.discard(ProfilerActivity.PrivateUse1)
        return super().toggle_collection_dynamic(enabled, chosen) if chosen else None

    def _parse_kineto_results(self: Any, result: Any, *rest: Any, **more: Any) -> Any:
        if self._session is None:
            return super()._parse_kineto_results(result, *rest, **more)
        readable = _Readable(result)
        parsed = super()._parse_kineto_results(readable, *rest, **more)
        self._session.set_clock(readable.spans)
        try:
            before = list(parsed)
            self._placed = functions.add(parsed, self._session, result.trace_start_ns(), self.use_device)
        except (AttributeError, TypeError) as error:
            trouble("tables", error)
            return before
        return parsed

    def _ensure_function_events(self: Any) -> None:
        super()._ensure_function_events()
        placed, self._placed = self._placed, None
        if placed is not None:
            placed.join(self._function_events)

    def export_chrome_trace(self: Any, path: str, *rest: Any, **more: Any) -> Any:
        answer = super().export_chrome_trace(path, *rest, **more)
        if self._session is not None:
            try:
                chrome.add(path, self._session, self.use_device)
            except (ValueError, json.JSONDecodeError) as error:
                trouble("a trace file", error)
        return answer

    def export_stacks(self: Any, path: str, metric: str = "self_cpu_time_total") -> Any:
        """Without the device's events that an operator caused: their time is the operator's already."""
        self._ensure_function_events()
        found = self._function_events
        kept = [e for e in found if e.device_type == DeviceType.CPU or not e.linked_correlation_id]
        self._function_events = torch_profiler.EventList(kept, use_device=self.use_device)
        try:
            return super().export_stacks(path, metric)
        finally:
            self._function_events = found
