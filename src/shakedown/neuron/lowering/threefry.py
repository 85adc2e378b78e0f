"""Random bits: Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2,
3", SC 2011), a counter-based generator that is a few shifts and adds an element and therefore fuses into its consumer.

A key is uint32[4]: the words of a 64-bit seed and of a 64-bit offset. One block cipher call under the seed turns the
offset into the key of the operator; under that, block number i gives the bits of elements i and i + half. (JAX's own
partitionable Threefry computes two blocks for what one holds and costs five times as much on the CPU.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..errors import LoweringError
from .common import HALF, Array

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def block(key: tuple[Array, Array], x0: Array, x1: Array) -> tuple[Array, Array]:
    """Threefry-2x32-20 of the counters (x0, x1), elementwise."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    x0, x1 = x0 + schedule[0], x1 + schedule[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = (x1 << np.uint32(distance)) | (x1 >> np.uint32(32 - distance))
            x1 = x1 ^ x0
        x0 = x0 + schedule[(group + 1) % 3]
        x1 = x1 + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return x0, x1


def operator_key(key: Array) -> tuple[Array, Array]:
    """The two words under which the operator with this (seed, offset) draws."""
    return block((key[0], key[1]), key[2], key[3])


def jax_key(key: Array) -> Array:
    """The same as a key of ``jax.random``, for its samplers."""
    return jax.random.wrap_key_data(jnp.stack(operator_key(key)), impl="threefry2x32")


def _blocks(key: Array, count: int, lane: int) -> tuple[Array, Array]:
    index = lax.iota(jnp.uint32, count)
    return block(operator_key(key), index, jnp.full_like(index, lane))


def bits(key: Array, shape: Sequence[int], lane: int = 0) -> Array:
    """Random uint32 of `shape`. Draws of one operator that must be independent take different lanes."""
    size = math.prod(shape)
    words = jnp.concatenate(_blocks(key, -(-size // 2), lane))
    return words[:size].reshape(tuple(shape))


def bits64(key: Array, shape: Sequence[int], lane: int = 0) -> Array:
    """Random uint64 of `shape`."""
    low, high = _blocks(key, math.prod(shape), lane)
    return (low.astype(jnp.uint64) | (high.astype(jnp.uint64) << np.uint64(32))).reshape(tuple(shape))


def digits(dtype: Any) -> int:
    """Bits of the significand of a floating dtype, the implicit one included."""
    return int(jnp.finfo(dtype).nmant) + 1


def uniform(key: Array, shape: Sequence[int], dtype: Any = np.float32, lane: int = 0) -> Array:
    """Multiples of 2**-p in [0, 1), p the significand's bits of `dtype`; half types come back as float32, unrounded."""
    dtype = np.dtype(dtype)
    p = digits(dtype)
    if dtype == np.float64:
        return (bits64(key, shape, lane) >> np.uint64(64 - p)).astype(dtype) * 2.0**-p
    working = np.dtype(np.float32) if dtype in HALF else dtype
    whole = (bits(key, shape, lane) >> np.uint32(32 - p)).astype(jnp.int32)  # signed converts in one instruction
    return whole.astype(working) * working.type(2.0**-p)


def open_uniform(key: Array, shape: Sequence[int], dtype: Any = np.float32, lane: int = 0) -> Array:
    """Evenly spaced in (0, 1), both ends excluded: for logarithms."""
    working = np.dtype(np.float64 if np.dtype(dtype) == np.float64 else np.float32)
    p = digits(working) - 1
    if working == np.float64:
        whole = (bits64(key, shape, lane) >> np.uint64(64 - p)).astype(working)
    else:
        whole = (bits(key, shape, lane) >> np.uint32(32 - p)).astype(jnp.int32).astype(working)
    return (whole + working.type(0.5)) * working.type(2.0**-p)


def normal(key: Array, shape: Sequence[int], dtype: Any = np.float32, lane: int = 0) -> Array:
    """Standard normal values, by inversion of the distribution function."""
    u = open_uniform(key, shape, dtype, lane)
    return lax.erf_inv(u * 2 - 1) * u.dtype.type(math.sqrt(2))


def integers(key: Array, shape: Sequence[int], low: int, span: int, lane: int = 0) -> Array:
    """int64 (modulo 2**64) in [low, low + span), span at most 2**64.

    Raises:
        LoweringError: the span is empty, about which the CPU kernel has something to say.
    """
    if span <= 0:
        raise LoweringError("random integers from an empty range")
    if span <= 1 << 32:
        value = (bits(key, shape, lane).astype(jnp.uint64) * np.uint64(span)) >> np.uint64(32)
    else:
        value = bits64(key, shape, lane)
        if span < 1 << 64:
            value = value % np.uint64(span)
    return (value + np.uint64(low % (1 << 64))).astype(jnp.int64)
