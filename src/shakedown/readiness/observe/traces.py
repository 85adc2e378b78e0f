"""A profile of a few steps as a trace file: the embedded device's own events, or PyTorch's profiler elsewhere.

Both give one file in Chrome's trace format with a track of steps and a track of phases. Profiling slows what it looks at,
so it has a process of its own.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from .. import evidence, targets
from ..evidence.traces import Trace
from ..targets import Target
from . import memory
from .paths import DeviceEvents, Recorder

STEP, PHASE, COMPILE = "shakedown.step", "shakedown.phase", "shakedown.compile"  # categories in every trace
_TRACKS = ("steps", "phases", "compile", "execute", "transfer", "fallback", "synchronize", "flush", "other")
_PROCESS = 1  # of the tracks in a device's own trace; PyTorch's profiler numbers its own from the operating system's
_OURS = 999_999_999  # of our tracks in a trace of PyTorch's profiler: above what Linux gives out (2**22)

Span = Callable[[str], AbstractContextManager[Any]]
Row = dict[str, Any]


class Tracer:
    """Profiles steps of one case. :meth:`run`, then :meth:`write`."""

    def __init__(self, target: Target, recorder: Recorder) -> None:
        self._target, self._recorder = target, recorder
        self._rows: list[Row] = []
        self._memory = memory.Watch(target)
        self._steps = 0
        self._annotate: Callable[[str], AbstractContextManager[Any]] | None = None
        self.source = (
            "the device's event stream"
            if isinstance(recorder, DeviceEvents)
            else "torch.profiler, with phases and compilations added"
        )

    def run(self, step: Callable[[Span], object], later: int = 3) -> None:
        """Profile the first step, which compiles, and `later` ones. `step` does one, opening the span that it is given for
        each phase; reading the loss in it (phase ``logging``) is what shows as post-processing.
        """
        with ExitStack() as stack:
            stack.enter_context(self._compilations())
            if isinstance(self._recorder, DeviceEvents):
                stack.enter_context(self._recorder.events.subscribe(self._happened))
            else:
                stack.enter_context(self._profiled())
            with self._memory.measure("first step"):
                self._step("first", step)
            with self._memory.measure("later steps"):
                for _ in range(later):
                    self._step("later", step)

    def write(self, root: Path, cell: str, case: str) -> Trace:
        """Write ``traces/<cell>/<case>.json`` and the document about it, and return that."""
        file = f"traces/{cell}/{case}.json"
        rows = [*_names(self._rows), *self._rows]
        data = json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}, separators=(",", ":")).encode()
        evidence.write_atomic(root / file, data)
        made = Trace(
            cell=cell,
            case=case,
            source=self.source,
            steps=self._steps,
            events=len(self._rows),
            file=file,
            sha256=evidence.sha256(root / file),
            nbytes=len(data),
            memory=self._memory.document(),
        )
        evidence.write(made, root / "evidence" / cell / f"{case}.trace.json")
        return made

    # --- spans ----------------------------------------------------------------------------------------------------------

    def _step(self, name: str, step: Callable[[Span], object]) -> None:
        targets.wait(self._target)
        self._steps += 1
        with self._span(STEP, name, "steps"):
            step(self._phase)
            targets.wait(self._target)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        with self._recorder.phase(name), self._span(PHASE, name, "phases"):
            yield

    @contextmanager
    def _span(self, category: str, name: str, track: str) -> Iterator[None]:
        if self._annotate is not None:
            with self._annotate(f"{category}:{name}"):
                yield
            return
        start_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            self._add(category, name, track, start_ns, time.perf_counter_ns() - start_ns)

    def _add(self, category: str, name: str, track: str, start_ns: int, duration_ns: int, **more: Any) -> None:
        self._rows.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "ts": start_ns / 1e3,
                "dur": duration_ns / 1e3,
                "pid": _PROCESS,
                "tid": _TRACKS.index(track if track in _TRACKS else "other"),
            }
            | ({"args": more} if more else {})
        )

    @contextmanager
    def _compilations(self) -> Iterator[None]:
        """Time what Dynamo and the backend spend on compiling; the device's own events do not see graph capture."""
        handler = torch._dynamo.callback.callback_handler
        began: list[int] = []

        def start(arguments: Any) -> None:
            began.append(time.perf_counter_ns())

        def end(arguments: Any) -> None:
            start_ns = began.pop()
            self._add(COMPILE, "torch.compile", "compile", start_ns, time.perf_counter_ns() - start_ns)

        handler.register_start_callback(start)
        handler.register_end_callback(end)
        try:
            yield
        finally:
            handler.remove_start_callback(start)
            handler.remove_end_callback(end)

    # --- the device's own events ----------------------------------------------------------------------------------------

    def _happened(self, event: Any) -> None:
        more = {"phase": event.phase, "detail": event.detail, "bytes": event.nbytes}
        self._add(
            event.kind,
            event.name,
            event.kind,
            event.start_ns or time.perf_counter_ns(),
            event.duration_ns,
            **{name: value for name, value in more.items() if value},
        )

    # --- PyTorch's profiler ---------------------------------------------------------------------------------------------

    @contextmanager
    def _profiled(self) -> Iterator[None]:
        activities = torch.profiler.supported_activities()
        self._annotate = torch.profiler.record_function
        with torch.profiler.profile(activities=activities) as profile:
            zero_ns = time.perf_counter_ns()
            with torch.profiler.record_function("shakedown.zero"):
                pass
            yield
        self._annotate = None
        compilations, self._rows = self._rows, []
        with tempfile.TemporaryDirectory() as folder:
            exported = Path(folder, "trace.json")
            profile.export_chrome_trace(str(exported))
            rows: list[Row] = json.loads(exported.read_text())["traceEvents"]
        # The profiler has a clock of its own; a span of which both clocks know the start ties them together.
        zero = next(row["ts"] for row in rows if row.get("name") == "shakedown.zero")
        for row in rows:
            category, found, name = str(row.get("name", "")).partition(":")
            if found and category in (STEP, PHASE) and row.get("cat") == "user_annotation":
                row |= {"cat": category, "name": name}
        for row in compilations:
            row |= {"ts": row["ts"] - zero_ns / 1e3 + zero, "pid": _OURS}
        self._rows = rows + compilations


def _names(rows: list[Row]) -> list[Row]:
    """Names of our processes and tracks; the profiler has named its own."""
    made: list[Row] = []
    for process, name in ((_PROCESS, "device"), (_OURS, "torch.compile")):
        tracks = sorted({row["tid"] for row in rows if row.get("pid") == process and row.get("ph") == "X"})
        if tracks:
            made.append({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}})
        made += [
            {"ph": "M", "name": "thread_name", "pid": process, "tid": track, "args": {"name": _TRACKS[track]}}
            for track in tracks
        ]
    return made
