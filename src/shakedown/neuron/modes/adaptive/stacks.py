"""The line of the user's program that an operator comes from."""

from __future__ import annotations

import os
import sys

import torch

from ... import __file__ as _device_init

_NOT_THE_USERS = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(_device_init) + os.sep)


def line_of_caller() -> str | None:
    """``file:line in function`` of the innermost frame that is neither PyTorch's nor ours.

    None in the backward pass: the autograd engine calls from a thread of its own, on which there is no such frame.
    """
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_NOT_THE_USERS) and not name.startswith("<frozen"):
            return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return None
