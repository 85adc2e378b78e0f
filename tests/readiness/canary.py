"""A file outside a record that nobody may open: the kernel tells whether somebody did, in whatever language it was."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pytest

_OPEN, _ACCESS = 0x20, 0x01  # IN_OPEN, IN_ACCESS of inotify(7)


class Canary:
    """Watches the file `path` from now on."""

    def __init__(self, path: Path) -> None:
        if not sys.platform.startswith("linux"):
            pytest.skip("inotify is Linux's")
        self.path = path
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK)
        assert self._descriptor >= 0, os.strerror(ctypes.get_errno())
        watch = libc.inotify_add_watch(self._descriptor, os.fsencode(path), _OPEN | _ACCESS)
        assert watch >= 0, os.strerror(ctypes.get_errno())

    def touched(self) -> bool:
        """Whether the file was opened or read since the last question."""
        try:
            return bool(os.read(self._descriptor, 4096))
        except BlockingIOError:
            return False
