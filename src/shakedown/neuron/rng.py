"""The device's random stream: counter-based, so a state is two numbers and the CPU generator is never disturbed.

Each random operator takes one key made of (seed, offset) and moves the offset on by one; a captured graph takes as many as
it has random operators. So the same seed and the same sequence of random operators give the same values in every mode.
"""

from __future__ import annotations

import os
import threading

import numpy as np

_MASK = (1 << 64) - 1
_lock = threading.Lock()
_seed = int.from_bytes(os.urandom(8), "little")
_offset = 0


def seed(value: int) -> None:
    """Start the stream of `value` (any Python int, taken modulo 2**64)."""
    global _seed, _offset
    with _lock:
        _seed, _offset = int(value) & _MASK, 0


def seed_from_system() -> None:
    seed(int.from_bytes(os.urandom(8), "little"))


def state() -> tuple[int, int]:
    """(seed, offset)."""
    return _seed, _offset


def to_bytes() -> bytes:
    with _lock:
        return _seed.to_bytes(8, "little") + _offset.to_bytes(8, "little")


def from_bytes(raw: bytes) -> None:
    """Restore :func:`to_bytes`; 8 bytes mean a seed with offset 0. Raises RuntimeError for any other length."""
    global _seed, _offset
    if len(raw) not in (8, 16):
        raise RuntimeError(f"RNG state must be 16 bytes (seed and offset) or 8 (seed alone), got {len(raw)}")
    with _lock:
        _seed = int.from_bytes(raw[:8], "little")
        _offset = int.from_bytes(raw[8:] or b"\0", "little")


def next_key(count: int = 1) -> np.ndarray:
    """A fresh key for one random operator: uint32[4], the words of (seed, offset).

    With `count`, the first of so many keys in a row, whose offsets differ by one.
    """
    global _offset
    with _lock:
        key = np.array([_seed, _offset], dtype=np.uint64)
        _offset = (_offset + count) & _MASK
    return key.view(np.uint32)


def example_key() -> np.ndarray:
    """What a key looks like, for whoever lowers a program without running it; the stream stays where it is."""
    return np.zeros(4, dtype=np.uint32)


def key_from_generator(generator: object) -> np.ndarray:
    """A key drawn from a CPU ``torch.Generator``, which moves on as it would for one 64-bit draw."""
    import torch

    words = torch.randint(0, 1 << 32, (4,), generator=generator, dtype=torch.int64)
    return words.numpy().astype(np.uint32)
