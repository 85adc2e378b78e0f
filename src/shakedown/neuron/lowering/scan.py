"""Cumulative operators along one dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from .common import Array, cast, is_complex, is_float, is_integral, opmath, to_numpy, to_torch
from .registry import lower


def prefix_sum(x: Array, axis: int = 0) -> Array:
    """Sums of all elements up to and including each one along `axis`."""
    return lax.cumsum(x, axis)


def _accumulated(scan: Callable[..., Array], self: Array, dim: int, dtype: torch.dtype | None) -> Array:
    target = to_numpy(dtype) if dtype is not None else np.dtype(np.int64) if is_integral(self.dtype) else self.dtype
    x = cast(self, to_torch(opmath(target)))
    if x.ndim == 0 or x.size == 0:
        return x
    if x.dtype == bool:
        return scan(x.astype(jnp.int32), dim % x.ndim) != 0
    return scan(x, dim % x.ndim)


@lower("cumsum")
def cumsum(self: Array, dim: int, dtype: torch.dtype | None = None) -> Array:
    return _accumulated(lax.cumsum, self, dim, dtype)


@lower("cumprod")
def cumprod(self: Array, dim: int, dtype: torch.dtype | None = None) -> Array:
    def scan(x: Array, axis: int) -> Array:
        # In double precision, as ATen's CPU kernel: a product may leave float32's range and come back.
        return (
            lax.cumprod(x.astype(np.float64), axis).astype(x.dtype) if x.dtype == np.float32 else lax.cumprod(x, axis)
        )

    return _accumulated(scan, self, dim, dtype)


def _running_extreme(self: Array, dim: int, scan: Callable[..., Array]) -> tuple[Array, Array]:
    """Running extreme and its index; of equal elements the last wins, and a NaN beats everything."""
    if self.ndim == 0 or self.size == 0:
        return self, jnp.zeros(self.shape, jnp.int64)
    axis = dim % self.ndim
    x = self.astype(jnp.uint8) if self.dtype == np.bool_ else self
    value = scan(x, axis)
    # An element that equals the extreme so far is where it was met last, until the next such element.
    met = x == value
    if is_float(x.dtype):
        met = met | jnp.isnan(x)
    index = lax.cummax(jnp.where(met, lax.broadcasted_iota(jnp.int32, x.shape, axis), 0), axis)
    return value, index.astype(jnp.int64)


@lower("cummax")
def cummax(self: Array, dim: int) -> tuple[Array, Array]:
    return _running_extreme(self, dim, lax.cummax)


@lower("cummin")
def cummin(self: Array, dim: int) -> tuple[Array, Array]:
    return _running_extreme(self, dim, lax.cummin)


def _log_add(a: Array, b: Array) -> Array:
    """log(exp(a) + exp(b)), with the larger real part taken out."""
    if not is_complex(a.dtype):
        return jnp.logaddexp(a, b)
    a_first = a.real >= b.real
    high, low = jnp.where(a_first, a, b), jnp.where(a_first, b, a)
    # Two elements of minus infinity are exp's zeros: their difference would be NaN.
    return jnp.where(jnp.isneginf(low.real), high, high + jnp.log1p(jnp.exp(low - high)))


@lower("logcumsumexp", "_logcumsumexp")
def logcumsumexp(self: Array, dim: int) -> Any:
    if self.ndim == 0 or self.size == 0:
        return self
    # In double precision: gradients take exp of differences of these sums, which may be thousands of units apart.
    x = self.astype(jnp.complex128 if is_complex(self.dtype) else jnp.float64)
    return lax.associative_scan(_log_add, x, axis=dim % x.ndim)
