"""Reductions: sums, extremes, moments, norms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..views import View
from .checks import require
from .common import (
    Array,
    canonical_dims,
    cast,
    is_complex,
    is_float,
    is_integral,
    number_as,
    opmath,
    quotient,
    to_numpy,
    to_torch,
)
from .registry import lower


def _terms(x: Array, dtype: torch.dtype | None) -> Array:
    """`x` in the type that sums and products run in: `dtype` if given, int64 for integers, float32 for halves."""
    target = to_numpy(dtype) if dtype is not None else np.dtype(np.int64) if is_integral(x.dtype) else x.dtype
    return cast(x, to_torch(opmath(target)))


def _sum(x: Array, axes: tuple[int, ...], keepdim: bool) -> Array:
    return jnp.any(x, axes, keepdims=keepdim) if x.dtype == bool else jnp.sum(x, axes, dtype=x.dtype, keepdims=keepdim)


@lower("sum", "sum.dim_IntList")
def total(self: Array, dim: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Array:
    return _sum(_terms(self, dtype), canonical_dims(dim, self.ndim), keepdim)


@lower("nansum")
def nansum(self: Array, dim: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Array:
    if is_float(self.dtype):
        self = jnp.where(jnp.isnan(self), jnp.zeros((), self.dtype), self)
    return total(self, dim, keepdim, dtype)


@lower("mean", "mean.dim")
def mean(self: Array, dim: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Array:
    terms, axes = _terms(self, dtype), canonical_dims(dim, self.ndim)
    count = math.prod(self.shape[a] for a in axes)
    return quotient(_sum(terms, axes, keepdim), count)


@lower("prod", "prod.dim_int")
def prod(self: Array, dim: int | None = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Array:
    terms, axes = _terms(self, dtype), canonical_dims(dim, self.ndim)
    if terms.dtype == bool:
        return jnp.all(terms, axes, keepdims=keepdim)
    return jnp.prod(terms, axes, dtype=terms.dtype, keepdims=keepdim)


@lower("trace")
def trace(self: Array) -> Array:
    terms = _terms(self, None)
    count = min(self.shape)
    diagonal = jnp.arange(count)
    return jnp.sum(terms[diagonal, diagonal], dtype=terms.dtype)


@lower("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(self: Array, dim: Any = None) -> Array:
    return jnp.sum(self != 0, canonical_dims(dim, self.ndim), dtype=jnp.int64)


@lower("any", "any.dim", "any.dims")
def any_of(self: Array, dim: Any = None, keepdim: bool = False) -> Array:
    # An empty list of dimensions (unlike none at all) reduces nothing.
    axes = () if isinstance(dim, (list, tuple)) and not dim else canonical_dims(dim, self.ndim)
    return jnp.any(self != 0, axes, keepdims=keepdim)


@lower("all", "all.dim", "all.dims")
def all_of(self: Array, dim: Any = None, keepdim: bool = False) -> Array:
    axes = () if isinstance(dim, (list, tuple)) and not dim else canonical_dims(dim, self.ndim)
    return jnp.all(self != 0, axes, keepdims=keepdim)


# --- extremes -----------------------------------------------------------------------------------------------


@lower("amax")
def amax(self: Array, dim: Any = (), keepdim: bool = False) -> Array:
    return jnp.max(self, canonical_dims(dim, self.ndim), keepdims=keepdim)


@lower("amin")
def amin(self: Array, dim: Any = (), keepdim: bool = False) -> Array:
    return jnp.min(self, canonical_dims(dim, self.ndim), keepdims=keepdim)


@lower("max")
def max_of_all(self: Array) -> Array:
    return jnp.max(self)


@lower("min")
def min_of_all(self: Array) -> Array:
    return jnp.min(self)


@lower("aminmax")
def aminmax(self: Array, dim: int | None = None, keepdim: bool = False) -> tuple[Array, Array]:
    axes = canonical_dims(dim, self.ndim)
    return jnp.min(self, axes, keepdims=keepdim), jnp.max(self, axes, keepdims=keepdim)


def _position(self: Array, extreme: Array, axis: int) -> Array:
    """Index along `axis` of the first element equal to `extreme` (which keeps its dimension), or of the first NaN.

    Two plain reductions: XLA's own argmax compares pairs, which the CPU runs several times slower.
    """
    hit = self == extreme
    if is_float(self.dtype):
        hit = hit | jnp.isnan(self)
    length = self.shape[axis]
    index = lax.broadcasted_iota(jnp.int32, self.shape, axis)
    found = jnp.min(jnp.where(hit, index, length), axis, keepdims=True, initial=length)
    return found.astype(jnp.int64)


def _extreme_with_index(
    name: str, reduce: Callable[..., Array], self: Array, dim: int, keepdim: bool
) -> tuple[Array, Array]:
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    axis = dim % self.ndim
    if self.shape[axis] == 0:
        raise IndexError(f"{name}(): Expected reduction dim {axis} to have non-zero size.")
    value = reduce(self, axis, keepdims=True)
    index = _position(self, value, axis)
    return (value, index) if keepdim else (jnp.squeeze(value, axis), jnp.squeeze(index, axis))


@lower("max.dim")
def max_dim(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return _extreme_with_index("max", jnp.max, self, dim, keepdim)


@lower("min.dim")
def min_dim(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return _extreme_with_index("min", jnp.min, self, dim, keepdim)


def _arg(name: str, reduce: Callable[..., Array], self: Array, dim: int | None, keepdim: bool) -> Array:
    if dim is not None:
        return _extreme_with_index(name, reduce, self, dim, keepdim)[1]
    index = _extreme_with_index(name, reduce, self.reshape(-1), 0, False)[1]
    return index.reshape((1,) * self.ndim) if keepdim else index


@lower("argmax")
def argmax(self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return _arg("argmax", jnp.max, self, dim, keepdim)


@lower("argmin")
def argmin(self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return _arg("argmin", jnp.min, self, dim, keepdim)


# --- moments ------------------------------------------------------------------------------------------------


def _moments(self: Array, dim: Any, correction: Any, keepdim: bool) -> tuple[Array, Array]:
    """(variance, mean) over `dim`, in two passes."""
    x, axes = _terms(self, None), canonical_dims(dim, self.ndim)
    count = math.prod(self.shape[a] for a in axes)
    real = x.real.dtype
    center = quotient(jnp.sum(x, axes, keepdims=True), count)
    off = x - center
    squares = off.real * off.real + off.imag * off.imag if is_complex(x.dtype) else off * off
    # PyTorch divides by no less than zero, in double, whatever the correction.
    freedom = jnp.maximum(count - number_as(1 if correction is None else correction, jnp.float64), 0.0)
    variance = quotient(jnp.sum(squares, axes, keepdims=keepdim), freedom.astype(real))
    return variance, center if keepdim else jnp.squeeze(center, axes)


@lower("var.correction")
def var(self: Array, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Array:
    return _moments(self, dim, correction, keepdim)[0]


@lower("std.correction")
def std(self: Array, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Array:
    return jnp.sqrt(_moments(self, dim, correction, keepdim)[0])


@lower("var_mean.correction")
def var_mean(self: Array, dim: Any = None, correction: Any = None, keepdim: bool = False) -> tuple[Array, Array]:
    return _moments(self, dim, correction, keepdim)


@lower("std_mean.correction")
def std_mean(self: Array, dim: Any = None, correction: Any = None, keepdim: bool = False) -> tuple[Array, Array]:
    variance, center = _moments(self, dim, correction, keepdim)
    return jnp.sqrt(variance), center


@lower("logsumexp")
def logsumexp(self: Array, dim: Any, keepdim: bool = False) -> Array:
    if is_integral(self.dtype):
        self = self.astype(to_numpy(torch.get_default_dtype()))
    x, axes = _terms(self, None), canonical_dims(dim, self.ndim)
    top = jnp.max(x.real, axes, keepdims=True, initial=-jnp.inf)
    top = lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
    total = jnp.log(jnp.sum(jnp.exp(x - top), axes, keepdims=keepdim))
    return total + (top if keepdim else jnp.squeeze(top, axes))


# --- norms --------------------------------------------------------------------------------------------------


def _norm(self: Array, order: Any, axes: tuple[int, ...], keepdim: bool, dtype: torch.dtype | None) -> Array:
    """The vector norm of Python number `order` over `axes`, accumulated in `dtype` (or float32 for halves)."""
    order = 2.0 if order is None else float(order)
    x = _terms(self, dtype)
    if order == 2.0:
        squares = x.real * x.real + x.imag * x.imag if is_complex(x.dtype) else x * x
        return jnp.sqrt(jnp.sum(squares, axes, keepdims=keepdim))
    size = jnp.abs(x)
    if math.isinf(order):
        empty = math.prod(self.shape[a] for a in axes) == 0
        if order > 0:
            return jnp.max(size, axes, keepdims=keepdim, initial=0 if empty else None)
        return jnp.min(size, axes, keepdims=keepdim, initial=jnp.inf if empty else None)
    if order == 0.0:
        return jnp.sum(size != 0, axes, dtype=size.dtype, keepdims=keepdim)
    if order == 1.0:
        return jnp.sum(size, axes, keepdims=keepdim)
    return jnp.sum(size**order, axes, keepdims=keepdim) ** (1.0 / order)


@lower("linalg_vector_norm", static=("ord",))
def linalg_vector_norm(
    self: Array, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Array:
    return _norm(self, ord, canonical_dims(dim, self.ndim), keepdim, dtype)


@lower("norm.Scalar", static=("p",))
def norm(self: Array, p: Any = 2) -> Array:
    return _norm(self, p, tuple(range(self.ndim)), False, None)


@lower("norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", static=("p",))
def norm_dim(self: Array, p: Any, dim: Any, keepdim: bool = False, dtype: torch.dtype | None = None) -> Array:
    return _norm(self, p, canonical_dims(dim, self.ndim), keepdim, dtype)


@lower("norm.ScalarOpt_dtype", static=("p",))
def norm_dtype(self: Array, p: Any, dtype: torch.dtype) -> Array:
    return _norm(self, p, tuple(range(self.ndim)), False, dtype)


@lower("renorm", static=("p",), refuses={"p": lambda v: v <= 0, "maxnorm": lambda v: v < 0})
def renorm(self: Array, p: Any, dim: int, maxnorm: Any) -> Array:
    axes = tuple(d for d in range(self.ndim) if d != dim % self.ndim)
    size = _norm(self, p, axes, True, None)
    limit = number_as(maxnorm, size.dtype)
    factor = jnp.where(size > limit, limit / (size + 1e-7), jnp.ones((), size.dtype))
    return _terms(self, None) * factor


@lower("histc")
def histc(self: Array, bins: int = 100, min: Any = 0, max: Any = 0) -> Array:
    x = self.reshape(-1)
    # Integers are binned exactly, as accelerators do; PyTorch's CPU kernel refuses them.
    # Half types are binned in their own arithmetic, as there: which bin is next to an edge depends on it.
    wide = np.dtype(np.int64) if is_integral(x.dtype) else x.dtype
    x = x.astype(wide)
    low, high = number_as(min, wide), number_as(max, wide)
    require(low <= high, RuntimeError, "histc with max below min")
    if x.size:
        whole = low == high
        low, high = jnp.where(whole, jnp.min(x), low), jnp.where(whole, jnp.max(x), high)
    if is_float(wide):
        require(jnp.isfinite(low) & jnp.isfinite(high), RuntimeError, "histc of a range that is not finite")
    low, high = jnp.where(low == high, low - 1, low), jnp.where(low == high, high + 1, high)
    inside = (x >= low) & (x <= high)
    offset = jnp.where(inside, x - low, 0)
    if is_integral(wide):
        slot = offset * bins // (high - low)
    else:
        slot = (offset * bins / (high - low)).astype(jnp.int64)
    slot = jnp.where(inside, jnp.minimum(slot, bins - 1), bins)
    return jnp.zeros((bins,), jnp.int64).at[slot].add(1, mode="drop")


# --- distances ----------------------------------------------------------------------------------------------


def _distance_gradient(grad: Array, off: Array, order: float, distance: Array) -> Array:
    """Gradient of the `order`-norm `distance` of the differences `off` (last dimension) by them, times `grad`."""
    zero = jnp.zeros((), off.dtype)
    if order == 0.0:
        return jnp.zeros(off.shape, off.dtype)
    if order == 1.0:
        return grad * jnp.sign(off)
    if math.isinf(order):
        return grad * jnp.sign(off) * (jnp.abs(off) == distance)
    safe = jnp.where(distance == 0, jnp.ones((), off.dtype), distance)
    if order == 2.0:
        return jnp.where(distance == 0, zero, grad * off / safe)
    size = jnp.where(off == 0, jnp.ones((), off.dtype), jnp.abs(off))
    slope = jnp.sign(off) * size ** (order - 1.0) * grad / safe ** (order - 1.0)
    return jnp.where((distance == 0) | (off == 0), zero, slope)


@lower("_cdist_forward", static=("p",))
def _cdist_forward(x1: Array, x2: Array, p: float, compute_mode: int | None) -> Array:
    off = _terms(x1, None)[..., :, None, :] - _terms(x2, None)[..., None, :, :]
    return _norm(off, p, (off.ndim - 1,), False, None)


@lower("_cdist_backward", static=("p",), takes_outputs=True)
def _cdist_backward(grad: Array, x1: Array, x2: Array, p: float, cdist: Array, outputs: tuple[View, ...]) -> Array:
    if grad.size == 0 or x1.size == 0 or x2.size == 0:
        return jnp.zeros(outputs[0].size, x1.dtype)
    first = _terms(x1, None)[..., :, None, :]
    off = first - _terms(x2, None)[..., None, :, :]
    slope = _distance_gradient(_terms(grad, None)[..., None], off, float(p), _terms(cdist, None)[..., None])
    return jnp.sum(slope, -2)


def _pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(count, 1)


@lower("_pdist_forward", static=("p",))
def _pdist_forward(self: Array, p: float = 2.0) -> Array:
    rows, columns = _pairs(self.shape[0])
    x = _terms(self, None)
    return _norm(x[rows] - x[columns], p, (1,), False, None)


@lower("_pdist_backward", static=("p",))
def _pdist_backward(grad: Array, self: Array, p: float, pdist: Array) -> Array:
    rows, columns = _pairs(self.shape[0])
    x = _terms(self, None)
    off = x[rows] - x[columns]
    slope = _distance_gradient(_terms(grad, None)[:, None], off, float(p), _terms(pdist, None)[:, None])
    return jnp.zeros(x.shape, x.dtype).at[rows].add(slope).at[columns].add(-slope)
