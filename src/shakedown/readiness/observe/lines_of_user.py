"""Which line of the workload an operator comes from, found on the Python stack while the operator runs.

The autograd engine calls the operators of a backward pass from its own thread, where no frame is the user's. There the
line is that of the forward operation: PyTorch's anomaly mode keeps it with each node of the graph. Lines are looked up in
one step that no timing uses.
"""

from __future__ import annotations

import itertools
import re
import site
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import shakedown

_FILE = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+)', re.MULTILINE)


def _libraries() -> list[str]:
    paths = sysconfig.get_paths()
    found = {paths[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")} | set(site.getsitepackages())
    found |= {str(Path(torch.__file__).parent), str(Path(shakedown.__file__).parent)}
    return sorted(str(Path(p).resolve()) for p in found)


class Lines:
    """Finds lines in files under `roots`: those of the workload.

    A file belongs to the root or library that is nearest above it, so that an environment inside the workload's folder is
    not the workload's, and a built-in workload is not the trial's. `standing` names, for a phase, what to say where no
    frame is the workload's: the optimizer that it builds, for instance.
    """

    def __init__(self, roots: Sequence[Path], standing: Mapping[str, str] | None = None) -> None:
        self._roots = [str(root.resolve()) for root in roots]
        self._above = [(p, False) for p in _libraries()] + [(p, True) for p in self._roots]
        self._above.sort(key=lambda pair: (-len(pair[0]), not pair[1]))
        self._known: dict[str, str | None] = {}
        self._standing = dict(standing or {})

    def name(self, file: str) -> str | None:
        """`file` as the workload's owner calls it, or None where it is not the workload's."""
        if file not in self._known:
            self._known[file] = self._name(file)
        return self._known[file]

    def _name(self, file: str) -> str | None:
        if file.startswith("<"):
            return None
        path = Path(file).resolve()
        for above, own in self._above:
            if path.is_relative_to(above):
                return path.relative_to(above).as_posix() if own else None
        return None

    def now(self, phase: str) -> str:
        """The workload's line that runs now in this thread, ``file:number``; empty where none can be told."""
        node = torch._C._current_autograd_node()  # private: PyTorch tells no other way which node is running
        found, captured = self.on_stack()
        if not found and node is not None:
            found, captured = self.of_node(node), True
        if found:
            return f"backward of {found}" if captured and node is not None else found
        return "" if node is not None else self._standing.get(phase, "")

    def on_stack(self) -> tuple[str, bool]:
        """The innermost line that is the workload's, and whether it was captured earlier, as a line of a graph is.

        The search ends at the trial's own frames, since what called the trial is not the workload, and where the engine
        was entered, since on the CPU it runs in the thread that called ``backward()``.
        """
        frame = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            # Code that FX made of a graph, run operator by operator; or one node of a graph, between two programs.
            if file.startswith("<eval_with_key>") or frame.f_code.co_name == "run_node":
                found = self._of_graph(frame)
                if found:
                    return found, True
            name = self.name(file)
            if name is not None:
                return f"{name}:{frame.f_lineno}", False
            if file in _TRIAL or frame.f_code.co_name == "_engine_run_backward":
                break
            frame = frame.f_back  # type: ignore[assignment]
        return "", False

    def _of_graph(self, frame: FrameType) -> str:
        """The line that the node which `frame` runs was captured from; empty where FX keeps no such map (it is private)."""
        for name in ("node", "n"):
            if isinstance(node := frame.f_locals.get(name), torch.fx.Node):
                return self._in_text(node.stack_trace or "")
        module = frame.f_locals.get("self")
        if not isinstance(module, torch.fx.GraphModule):
            return ""
        number = (getattr(module, "_lineno_map", None) or {}).get(frame.f_lineno - frame.f_code.co_firstlineno)
        if number is None:
            return ""
        node = next(itertools.islice(module.graph.nodes, number, None), None)
        return self._in_text(getattr(node, "stack_trace", None) or "")

    def _in_text(self, text: str) -> str:
        """The innermost of the workload's lines in a formatted stack."""
        for match in reversed(list(_FILE.finditer(text))):
            name = self.name(match["file"])
            if name is not None:
                return f"{name}:{match['line']}"
        return ""

    def of_node(self, node: Any) -> str:
        """The workload's line whose forward operation made `node`; empty for nodes of leaves, which nothing made."""
        seen = 0
        while node is not None and seen < 16:  # a node made in a backward pass has the node that made it as parent
            found = self._in_text("".join(node.metadata.get("traceback_", ())))
            if found:
                return found
            node, seen = node.metadata.get("parent_"), seen + 1
        return ""


_READINESS = Path(__file__).resolve().parent.parent
_TRIAL = {str(path) for name in ("candidate", "step", "operators_used") if (path := _READINESS / f"{name}.py")}


@contextmanager
def kept_with_graph() -> Iterator[None]:
    """Have every node of autograd's graph remember the stack that made it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Anomaly Detection has been enabled")
        watching = torch.autograd.set_detect_anomaly(True, check_nan=False)
    with watching:
        yield


def definition(function: Callable[..., Any], roots: Sequence[Path]) -> str:
    """``file:number`` of a function of the workload, for what runs on its behalf without a frame of it."""
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    name = Lines(roots).name(code.co_filename)
    return "" if name is None else f"{name}:{code.co_firstlineno}"
