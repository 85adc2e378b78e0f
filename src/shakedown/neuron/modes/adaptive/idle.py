"""Noticing that no operator has come for a while, so that what is recorded runs while the program is busy elsewhere."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable


class IdleTimer:
    """Calls `act` when `beat` has not changed for `seconds`. Its thread sleeps while `beat` is -1: nothing waits then."""

    def __init__(self, seconds: float, beat: Callable[[], int], act: Callable[[], None]) -> None:
        self._seconds, self._beat, self._act = seconds, beat, act
        self._something = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Something waits now."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="shakedown-adaptive-idle", daemon=True)
            atexit.register(self.stop)
            self._thread.start()
        if not self._something.is_set():
            self._something.set()

    def stop(self) -> None:
        """At exit: an `act` that is under way ends first. A thread that runs programs while Python ends brings it down."""
        self._stopped.set()
        self._something.set()
        if self._thread is not None:
            self._thread.join()

    def forget(self) -> None:
        """In a forked child, where the thread is not."""
        self._thread = None
        self._something = threading.Event()

    def _watch(self) -> None:
        while True:
            self._something.wait()
            before = self._beat()
            if self._stopped.wait(self._seconds):
                return
            now = self._beat()
            if now == -1:
                self._something.clear()
                if self._beat() != -1:  # it came in between
                    self._something.set()
            elif now == before:
                self._act()
