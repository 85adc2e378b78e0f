"""Random streams of the device: counter-based, so a state is two numbers and the CPU generator is never disturbed.

Each random operator takes one key made of (seed, offset) and moves the offset on by one; a captured graph takes as many as
it has random operators. So the same seed and the same sequence of random operators give the same values in every mode.
The module's functions are those of the device's default stream; a ``torch.Generator`` of the device has a stream of its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .generator import Generator

_MASK = (1 << 64) - 1
_lock = threading.Lock()


class Stream:
    """A sequence of keys, at ``offset`` in the stream of ``seed``; both are taken modulo 2**64."""

    __slots__ = ("offset", "seed")

    def __init__(self, seed: int, offset: int = 0) -> None:
        self.seed, self.offset = int(seed) & _MASK, int(offset) & _MASK

    def start(self, seed: int) -> None:
        """Go to the beginning of the stream of `seed`."""
        self.place(seed, 0)

    def place(self, seed: int, offset: int) -> None:
        with _lock:
            self.seed, self.offset = int(seed) & _MASK, int(offset) & _MASK

    def to_bytes(self) -> bytes:
        """16 bytes: the seed and the offset, little-endian."""
        with _lock:
            return self.seed.to_bytes(8, "little") + self.offset.to_bytes(8, "little")

    def from_bytes(self, raw: bytes) -> None:
        """Restore :meth:`to_bytes`; 8 bytes mean a seed with offset 0. Raises RuntimeError for any other length."""
        if len(raw) not in (8, 16):
            raise RuntimeError(f"RNG state must be 16 bytes (seed and offset) or 8 (seed alone), got {len(raw)}")
        self.place(int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:] or b"\0", "little"))

    def next_key(self, count: int = 1) -> np.ndarray:
        """A fresh key for one random operator: uint32[4], the words of (seed, offset).

        With `count`, the first of so many keys in a row, whose offsets differ by one.
        """
        with _lock:
            key = np.array([self.seed, self.offset], dtype=np.uint64)
            self.offset = (self.offset + count) & _MASK
        return key.view(np.uint32)


def give_back(generator: object | None, count: int = 1) -> None:
    """The last key, of `count` in a row, was not used. (A CPU generator cannot go back.)"""
    ours = None if generator is None else of_address.get(generator._cdata)  # type: ignore[attr-defined]
    if generator is None or ours is not None:
        stream = default if ours is None else ours.stream
        stream.place(stream.seed, stream.offset - count)


def from_system() -> int:
    """A seed that nobody can predict: 64 bits of the operating system."""
    return int.from_bytes(os.urandom(8), "little")


default = Stream(from_system())
to_bytes, from_bytes, next_key, seed = default.to_bytes, default.from_bytes, default.next_key, default.start


def state() -> tuple[int, int]:
    """(seed, offset) of the default stream."""
    return default.seed, default.offset


def example_key() -> np.ndarray:
    """What a key looks like, for whoever lowers a program without running it; the stream stays where it is."""
    return np.zeros(4, dtype=np.uint32)


# The device's generators by the address of what PyTorch's C++ keeps of them: a kernel is handed another wrapper around that.
# An entry goes when its generator dies, before its address can be anybody else's.
of_address: weakref.WeakValueDictionary[int, Generator] = weakref.WeakValueDictionary()


def key_from_generator(generator: object) -> np.ndarray:
    """A key drawn from the ``torch.Generator`` that was given to an operator.

    From one of the device, its stream's next; a CPU generator moves on as it would for four 64-bit draws.
    """
    ours = of_address.get(generator._cdata)  # type: ignore[attr-defined]
    if ours is not None:
        return ours.stream.next_key()
    import torch

    words = torch.randint(0, 1 << 32, (4,), generator=generator, dtype=torch.int64)
    return words.numpy().astype(np.uint32)
