"""Which lines of the workload's own files run: recorded in one untimed step, as evidence for the static scan.

``sys.monitoring`` (Python 3.12 and later) reports a line once and then never again, in every thread, so it costs next to
nothing. Before, ``sys.settrace`` is set in this thread and in threads that ``threading`` starts meanwhile; frames of other
files are entered without a line trace. The backward pass of a step on the CPU runs in the thread that called it, so a
hand-written ``backward`` is seen; Python that a device's own backward thread runs is seen by ``sys.monitoring`` only.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from ..evidence.lines import FileLines, Lines

_TOOL_IDS = (4, 3, 5, 2)  # free ids of sys.monitoring first; 0 and 1 belong to debuggers and coverage
_SHAKEDOWN = Path(__file__).parents[2]
_BUILT_IN = _SHAKEDOWN / "readiness" / "workloads"


class Seen:
    """Lines seen so far under the given folders. :meth:`document` may be asked while recording or after it."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = [root.resolve() for root in roots]
        self.method: str = ""
        self._files: dict[str, tuple[str, str, set[int]]] = {}  # co_filename: relative path, hash, lines
        self._strangers: set[str] = set()
        self._imported: set[str] = set()
        libraries = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
        self._libraries = [Path(path).resolve() for path in libraries if path]

    def lines_of(self, code: CodeType) -> set[int] | None:
        """Where to note lines of `code`; None for files that are not the workload's."""
        name = code.co_filename
        if name in self._strangers:
            return None
        if name not in self._files and not self._meet(name):
            self._strangers.add(name)
            return None
        if code.co_name == "<module>":
            self._imported.add(name)
        return self._files[name][2]

    def _meet(self, name: str) -> bool:
        if not os.path.isabs(name) or not name.endswith(".py"):
            return False  # "<string>", "<frozen importlib>": no file of the workload
        path = Path(name).resolve()
        root = next((root for root in self.roots if path.is_relative_to(root)), None)
        if root is None or any(path.is_relative_to(lib) and not root.is_relative_to(lib) for lib in self._libraries):
            return False
        if path.is_relative_to(_SHAKEDOWN) and not path.is_relative_to(_BUILT_IN):
            return False  # the trial's own code, when the workload lies in the trial's repository
        try:
            content = path.read_bytes()
        except OSError:
            return False
        self._files[name] = (path.relative_to(root).as_posix(), hashlib.sha256(content).hexdigest(), set())
        return True

    def document(self) -> Lines:
        """What was seen, as evidence."""
        files: dict[str, FileLines] = {}
        for name, (relative, digest, lines) in list(self._files.items()):
            if lines:
                files[relative] = FileLines(sha256=digest, imported=name in self._imported, lines=sorted(lines))
        return Lines.model_validate({"method": self.method, "files": files})


@contextmanager
def record(roots: Sequence[Path]) -> Iterator[Seen]:
    """Record the lines that run in files under `roots` (folders) until the context closes.

    A trace function that was set before (a debugger's, a coverage tool's) is put back at the end; it sees nothing
    meanwhile.
    """
    seen = Seen(roots)
    monitoring = getattr(sys, "monitoring", None)
    tool = next((i for i in _TOOL_IDS if monitoring.get_tool(i) is None), None) if monitoring else None
    recorder = _trace(seen) if tool is None else _monitor(seen, monitoring, tool)
    with recorder:
        yield seen


@contextmanager
def _monitor(seen: Seen, monitoring: Any, tool: int) -> Iterator[None]:
    seen.method = "sys.monitoring"

    def on_line(code: CodeType, number: int) -> Any:
        lines = seen.lines_of(code)
        if lines is not None:
            lines.add(number)
        return monitoring.DISABLE  # this line is known now: never report it again

    monitoring.use_tool_id(tool, "shakedown")
    try:
        monitoring.register_callback(tool, monitoring.events.LINE, on_line)
        monitoring.set_events(tool, monitoring.events.LINE)
        monitoring.restart_events()  # lines that an earlier recording has switched off
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.register_callback(tool, monitoring.events.LINE, None)
        monitoring.free_tool_id(tool)


@contextmanager
def _trace(seen: Seen) -> Iterator[None]:
    seen.method = "sys.settrace"
    active = True

    def on_call(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if not active:  # a thread that outlives the recording
            return None
        lines = seen.lines_of(frame.f_code)
        if lines is None:
            return None

        def on_line(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
            if event == "line" and active:
                lines.add(frame.f_lineno)
            return on_line

        return on_line

    before, before_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(on_call)
    threading.settrace(on_call)
    try:
        yield
    finally:
        active = False
        sys.settrace(before)
        threading.settrace(before_threads)
