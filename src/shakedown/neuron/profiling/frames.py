"""Where in the user's program something was caused: cheap to take while a profile runs, written out when it is read."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import CodeType, FrameType
from typing import TypeAlias

import torch

Frames: TypeAlias = tuple[tuple[CodeType, int], ...]  # (code, line), the innermost first

_jax = importlib.util.find_spec("jax")  # not imported for its place alone
_OTHERS = tuple(
    os.path.dirname(file) + os.sep
    for file in (torch.__file__, os.path.dirname(__file__), _jax.origin if _jax is not None else None)
    if file is not None
)
_MOST = 32  # frames


class Taker:
    """Takes the stacks of one profile. Frames of PyTorch, JAX and the device are left out."""

    def __init__(self) -> None:
        self._skips: dict[str, bool | None] = {}  # by file

    def take(self) -> Frames:
        """The user's frames of the calling thread. The backward pass has none: the autograd engine's threads run it.

        Without calls in the loop: PyTorch records every call of a function, C functions too, while stacks are wanted.
        """
        found: Frames = ()
        left, skips = _MOST, self._skips
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and left:
            code = frame.f_code
            try:
                skip = skips[code.co_filename]
            except KeyError:
                skip = skips[code.co_filename] = _skipped(code.co_filename)
            if skip is None:
                skip = frame.f_globals.get("__name__") != "__main__"
            if not skip:
                found += ((code, frame.f_lineno),)
                left -= 1
            frame = frame.f_back
        return found


def _skipped(file: str) -> bool | None:
    """None: generated code, or typed by somebody, which the module of a frame tells."""
    return None if file.startswith("<") else file.startswith(_OTHERS)


def written(frames: Frames) -> list[str]:
    """As PyTorch writes stacks: ``file(line): function``, the innermost first."""
    return [f"{code.co_filename}({line}): {code.co_name}" for code, line in frames]
