"""Where in the user's program something was caused: cheap to take while a profile runs, written out when it is read."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import CodeType
from typing import Any, TypeAlias

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
        self._skips: dict[CodeType, bool] = {}

    def take(self) -> Frames:
        """The user's frames of the calling thread. The backward pass has none: the autograd engine's threads run it."""
        found: list[tuple[CodeType, int]] = []
        skips, frame = self._skips, sys._getframe(1)
        while frame is not None and len(found) < _MOST:
            code = frame.f_code
            skip = skips.get(code)
            if skip is None:
                skip = skips[code] = _skipped(frame)
            if not skip:
                found.append((code, frame.f_lineno))
            frame = frame.f_back  # type: ignore[assignment]
        return tuple(found)


def _skipped(frame: Any) -> bool:
    name = frame.f_code.co_filename
    if name.startswith("<"):  # generated, unless somebody typed it
        return frame.f_globals.get("__name__") != "__main__"
    return bool(name.startswith(_OTHERS))


def written(frames: Frames) -> list[str]:
    """As PyTorch writes stacks: ``file(line): function``, the innermost first."""
    return [f"{code.co_filename}({line}): {code.co_name}" for code, line in frames]
