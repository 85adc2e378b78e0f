"""The lines of the script that named CUDA: where, what stood there, what became of it, how often."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from dataclasses import asdict
from types import FrameType
from typing import Any

import torch

from .job import Outcome, Place

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_HERE = os.path.dirname(__file__) + os.sep
_STANDARD = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})
_TOOLS = ("typing_extensions.py",)  # wraps deprecated classes of PyTorch, and calls them
_ranks: dict[str, int] = {}
_lock = threading.Lock()
_counts: dict[Place, int] = {}


def _rank(file: str) -> int:
    """0: the script's own code; 1: an installed library; 2: PyTorch, Python or this package."""
    found = _ranks.get(file)
    if found is None:
        if file in ("<stdin>", "<string>"):  # python -, python -c
            found = 0
        elif file.startswith((_TORCH, _OURS, "<")) or os.path.basename(file) in _TOOLS:
            found = 2
        elif file.startswith(_LIBRARIES):
            found = 1
        else:
            found = 2 if file.startswith(_STANDARD) else 0
        _ranks[file] = found
    return found


def is_script(file: str) -> bool:
    """Whether `file` is the script's own code, and not a library's, PyTorch's or Python's."""
    return _rank(file) == 0


def is_ours(file: str) -> bool:
    """Whether `file` belongs to ``shakedown exec``."""
    return file.startswith(_HERE)


def _lines(frame: FrameType | None) -> list[tuple[str, int]]:
    """File and line of the frames from the innermost on. What Dynamo evaluates while it reads a function is that function's."""
    lines: list[tuple[str, int]] = []
    while frame is not None:
        code = frame.f_code
        if code.co_name == "run" and frame.f_globals.get("__name__") == "torch._dynamo.symbolic_convert":
            context = torch._guards.TracingContext.try_get()
            if context is not None:
                stack = torch._guards.TracingContext.extract_stack()
                return lines + [(one.filename, one.lineno or 0) for one in reversed(stack)]
        file = code.co_filename
        if file == "<string>" and frame.f_globals.get("__name__") != "__main__":
            file = "<generated>"  # such as a dataclass's constructor; python -c has the same name
        lines.append((file, frame.f_lineno))
        frame = frame.f_back
    return lines


def asked_by_torch(depth: int = 2) -> bool:
    """Whether the caller's caller is PyTorch's own code, which is told the truth about CUDA."""
    frame = sys._getframe(depth)
    name = str(frame.f_globals.get("__name__", ""))
    # Dynamo evaluates questions that the code it reads would ask; those are not PyTorch's own.
    return (name == "torch" or name.startswith("torch.")) and not name.startswith("torch._dynamo.variables")


def note(call: str, became: str, outcome: Outcome = "redirected", rule: str = "") -> None:
    """Count one more use of CUDA, at the innermost line of the script's own code, or of a library where there is none."""
    where, via = _where(_lines(sys._getframe(1)))
    file, line = where or ("", 0)
    place = Place(file, line, call, became, outcome, rule, library=bool(file) and _rank(file) == 1, via=via)
    with _lock:
        _counts[place] = _counts.get(place, 0) + 1


def _where(lines: list[tuple[str, int]]) -> tuple[tuple[str, int] | None, str]:
    """The line to list, and the library's that named CUDA for it."""
    named = next((one for one in lines if _rank(one[0]) < 2), None)
    own = next((one for one in lines if _rank(one[0]) == 0), None)
    if named is None or own is None or named is own:
        return named, ""
    file = next((named[0].removeprefix(root) for root in _LIBRARIES if named[0].startswith(root)), named[0])
    return own, f"{file}:{named[1]}"


def rows() -> list[dict[str, Any]]:
    """All places as plain values, by file and line."""
    with _lock:
        found = list(_counts.items())
    return [asdict(place) | {"count": count} for place, count in sorted(found, key=lambda one: _order(one[0]))]


def _order(place: Place) -> tuple[bool, str, int, str]:
    return place.library, place.file, place.line, place.call


def forget() -> None:
    """A forked process counts its own."""
    global _lock
    _lock = threading.Lock()
    _counts.clear()
