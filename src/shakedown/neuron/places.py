"""Where in the user's program an operator was called: Python frames that are neither PyTorch's nor the device's."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__)
_NOT_THE_USERS = (
    _TORCH,
    _HERE + os.sep,
    os.path.join(os.path.dirname(_HERE), "exec") + os.sep,
)  # exec: its redirections
_MOST = 20  # frames
_BETWEEN = " < "


def line_of_caller() -> str | None:
    """``file:line in function`` of the innermost frame of the user's.

    None in the backward pass: the autograd engine calls from a thread of its own, on which there is no such frame.
    """
    found = _frames(1)
    return found[0] if found else None


def stack_of_caller() -> str | None:
    """The user's frames as :func:`line_of_caller` gives them, the innermost first, with `` < `` between; at most 20."""
    return _BETWEEN.join(_frames(_MOST)) or None


def innermost(stack: str | None) -> str | None:
    """The first line of what :func:`stack_of_caller` gives."""
    return None if stack is None else stack.partition(_BETWEEN)[0]


def _frames(most: int) -> list[str]:
    found: list[str] = []
    frame: Any = sys._getframe(2)
    while frame is not None and len(found) < most:
        name = frame.f_code.co_filename
        if not name.startswith(_NOT_THE_USERS) and not name.startswith("<frozen"):
            found.append(f"{name}:{frame.f_lineno} in {frame.f_code.co_name}")
        frame = frame.f_back
    return found


def line_of_node(node: torch.fx.Node) -> str:
    """``file.py:12 (y = torch.take(x, i))``: the innermost line outside PyTorch that a captured graph's node comes from."""
    found = re.findall(r'File "([^"]+)", line (\d+).*\n\s*(.*)', node.meta.get("stack_trace") or "")
    for file, line, code in reversed(found):
        if not file.startswith(_TORCH):
            return f"{file}:{line}" + (f" ({code.strip()})" if code.strip() else "")
    return ""
