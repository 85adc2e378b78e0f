"""Ctrl-C while a program runs that consumes its inputs: it waits until the results are in place.

Python raises KeyboardInterrupt as soon as the call returns, before its results have a name. Inputs that were consumed would
then be lost, and with them a model's weights.
"""

from __future__ import annotations

import signal
import threading
from typing import Any


class HeldBack:
    """Context manager: an interruption inside it comes at its end. Only the main thread ever gets one."""

    __slots__ = ("_came", "_handler")

    def __init__(self) -> None:
        self._came = False
        self._handler: Any = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):  # not ignored, nor left to the system
                self._handler = handler
                signal.signal(signal.SIGINT, self._note)

    def _note(self, *_: Any) -> None:
        self._came = True

    def __exit__(self, *exc: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            if self._came:
                signal.raise_signal(signal.SIGINT)
