"""Sliding windows over the trailing dimensions of an array: what pooling and unfolding share.

A window's elements are visited tap by tap. For small kernels the taps are strided slices combined in one loop, which
XLA:CPU vectorises; for large ones the caller uses ``lax.reduce_window``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .common import Array

UNROLLED = 64  # kernels with up to this many taps are written as a sequence of slices


def per_dim(values: Sequence[int] | int, rank: int) -> tuple[int, ...]:
    """`values` for each of `rank` dimensions, where one number may stand for all."""
    if isinstance(values, int):
        return (values,) * rank
    return tuple(values) * rank if len(values) == 1 else tuple(values)


@dataclass(frozen=True)
class Windows:
    """Windows of `kernel` taps over `size`, giving `out` positions; `padding` is what precedes the first element."""

    size: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @staticmethod
    def of(
        size: Sequence[int],
        out: Sequence[int],
        kernel: Sequence[int] | int,
        stride: Sequence[int] | int = (),
        padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
    ) -> Windows:
        rank = len(size)
        each = per_dim(kernel, rank)
        steps = each if not isinstance(stride, int) and not stride else per_dim(stride, rank)
        return Windows(tuple(size), tuple(out), each, steps, per_dim(padding, rank), per_dim(dilation, rank))

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    def tiles(self) -> bool:
        """Whether the windows are blocks side by side that cover the whole input."""
        plain = self.stride == self.kernel and not any(self.padding) and all(d == 1 for d in self.dilation)
        return plain and all(n == o * k for n, o, k in zip(self.size, self.out, self.kernel))

    def _ends(self) -> tuple[tuple[int, int], ...]:
        """Padding below and above each dimension for all windows; the latter is negative where a rest is unused."""
        rows = zip(self.size, self.out, self.kernel, self.stride, self.padding, self.dilation)
        return tuple((p, d * (k - 1) + (o - 1) * s + 1 - p - n) for n, o, k, s, p, d in rows)

    def padded(self, x: Array, fill: Any) -> Array:
        """`x` of (P, *size) with `fill` around it."""
        config = [(0, 0, 0), *((low, high, 0) for low, high in self._ends())]
        return lax.pad(x, jnp.asarray(fill, x.dtype), config)

    def each(self, padded: Array) -> Iterator[tuple[tuple[int, ...], Array]]:
        """(tap, its elements as (P, *out)) in row-major order of the taps."""
        for tap in itertools.product(*map(range, self.kernel)):
            start = [t * d for t, d in zip(tap, self.dilation)]
            limit = [a + (o - 1) * s + 1 for a, o, s in zip(start, self.out, self.stride)]
            yield tap, lax.slice(padded, (0, *start), (padded.shape[0], *limit), (1, *self.stride))

    def sum(self, x: Array) -> Array:
        """Sum of each window: (P, *size) to (P, *out)."""
        if self.taps <= UNROLLED:
            total: Array | None = None
            for _, values in self.each(self.padded(x, 0)):
                total = values if total is None else total + values
            assert total is not None
            return total
        return lax.reduce_window(
            x,
            jnp.zeros((), x.dtype),
            lax.add,
            (1, *self.kernel),
            (1, *self.stride),
            ((0, 0), *self._ends()),
            window_dilation=(1, *self.dilation),
        )

    def spread(self, y: Array) -> Array:
        """The transpose of :meth:`sum`: each element of (P, *out) is added to those of its window, (P, *size)."""
        if self.tiles():
            for axis, k in enumerate(self.kernel, 1):
                y = jnp.repeat(y, k, axis=axis)
            return y
        gaps = [(0, 0, 0)]
        for low, k, d, s, n, o in zip(self.padding, self.kernel, self.dilation, self.stride, self.size, self.out):
            reach = d * (k - 1)
            gaps.append((reach - low, n + low - ((o - 1) * s + 1), s - 1))
        ready = lax.pad(y, jnp.zeros((), y.dtype), gaps)
        unit = (1,) * len(self.size)
        return Windows(ready.shape[1:], self.size, self.kernel, unit, (0,) * len(unit), self.dilation).sum(ready)

    def first(self) -> list[np.ndarray]:
        """For each dimension, where each window's first element inside the input is."""
        found = []
        for o, s, p, d in zip(self.out, self.stride, self.padding, self.dilation):
            start = np.arange(o) * s - p
            found.append(start + np.where(start < 0, -(start // d) * d, 0))
        return found

    def extent(self, *, with_padding: bool) -> list[np.ndarray]:
        """For each dimension, how many elements of each window count: those inside the (padded) input."""
        found = []
        for n, o, k, s, p in zip(self.size, self.out, self.kernel, self.stride, self.padding):
            start = np.arange(o) * s - p
            end = np.minimum(start + k, n + p)
            found.append(end - start if with_padding else np.minimum(end, n) - np.maximum(start, 0))
        return found


def outer(vectors: Sequence[np.ndarray], combine: Any = np.multiply) -> np.ndarray:
    """The vectors combined along as many dimensions: ``outer([a, b])[i, j] == a[i] * b[j]``."""
    total = np.asarray(vectors[0])
    for v in vectors[1:]:
        total = combine(total[..., None], v)
    return total
