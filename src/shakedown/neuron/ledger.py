"""How much the device's storages take: counted as each comes and goes, to the byte, always on.

A storage is counted from the moment a tensor is made on it until the last tensor that refers to it is gone, as a CUDA
allocation is. What adaptive eager records is counted when it is recorded, so every mode gives the same figures.

What counts a storage's end is a tiny object that hangs on the storage. Its ``__del__`` is a C function: the position of an
in-memory file, moved on by the storage's size, is a sum that grows without Python code running. So neither a thread
nor Ctrl-C can come between the reading and the writing of the sum, and nobody's Ctrl-C is lost in a finalizer. The sum
of what was allocated is an ordinary number: CPython switches threads and delivers signals only at calls and jumps
backward, and there is neither between reading and writing it, nor before the object exists that counts it down.
"""

from __future__ import annotations

import functools
import io
import sys
import threading
from collections.abc import Callable
from typing import Any

_sum = io.BytesIO()
freed = _sum.tell  # bytes of all storages that are gone
_add = _sum.seek  # _add(nbytes, 1) moves on from where it is


class Ledger:
    """The sums. ``limit`` is the most that may be allocated, or None; whoever allocates asks :func:`.memory.make_room`."""

    __slots__ = ("allocated", "empty", "limit", "mark", "ooms", "peak", "replays", "retries")

    def __init__(self) -> None:
        self.allocated = 0  # bytes of all storages there ever were
        self.empty = 0  # storages there ever were that need no memory
        self.peak = 0
        self.mark = 0  # while less was allocated in all, the peak cannot have risen: the peak, and what was freed when it was set
        self.limit: int | None = None
        self.retries = self.ooms = 0
        self.replays = False  # what runs now was recorded before, and was counted then


ledger = Ledger()


def now() -> int:
    """Bytes of all storages that live."""
    return ledger.allocated - freed()


def note_peak(more: int = 0) -> None:
    """For a moment, `more` bytes are held besides the storages."""
    gone = freed()
    most = ledger.allocated - gone + more
    if most > ledger.peak:
        ledger.peak, ledger.mark = most, gone + most


def reset_peak() -> None:
    """The peak is what is held now."""
    gone = freed()
    ledger.peak = ledger.allocated - gone
    ledger.mark = gone + ledger.peak


# --- what counts a storage's end ----------------------------------------------------------------------------------------

_lives: dict[int, type] = {}
_lock = threading.RLock()  # who is told of a storage that ends may ask for the figures
_references: dict[int, int] = {}  # of each class, while no object of it lives
_on_free: Callable[[int], None] | None = None


def life_of(nbytes: int) -> type:
    """The class whose objects, one on each storage of `nbytes`, count the storage's end. For whoever keeps it, once."""
    with _lock:
        if nbytes not in _lives:
            _lives[nbytes] = type("Life", (), {"__slots__": (), "__del__": _end(nbytes)})
            _references[nbytes] = _count_references(nbytes)
        _references[nbytes] += 1
        return _lives[nbytes]


def _end(nbytes: int) -> Any:
    """What is called without arguments when a storage of `nbytes` is gone."""
    told = _on_free
    if told is None:
        return staticmethod(functools.partial(_add, nbytes, 1))

    def end() -> None:
        _add(nbytes, 1)
        told(nbytes)

    return staticmethod(end)


def _count_references(nbytes: int) -> int:
    return sys.getrefcount(_lives[nbytes])


def living() -> int:
    """How many storages live. (An object refers to its class.)"""
    with _lock:
        return sum(_count_references(nbytes) - kept for nbytes, kept in _references.items())


def tell_of_frees(hook: Callable[[int], None] | None) -> None:
    """Call `hook` with the size of each storage that ends, whenever and in whichever thread that is; None: no more."""
    global _on_free
    with _lock:
        _on_free = hook
        for nbytes, life in _lives.items():
            life.__del__ = _end(nbytes)  # type: ignore[attr-defined]
