"""Sorting, order statistics, and search in sorted sequences."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..errors import LoweringError
from .checks import require_index
from .common import Array, computation, is_float, number_as
from .registry import lower

_SIGNED = {1: jnp.int8, 2: jnp.int16, 4: jnp.int32, 8: jnp.int64}


def _rank_key(x: Array) -> Array:
    """Signed integers that order as PyTorch orders `x`: NaN above everything, -0.0 equal to 0.0."""
    if x.dtype == bool:
        return x.astype(jnp.int8)
    signed = _SIGNED[x.dtype.itemsize]
    if not is_float(x.dtype):
        if np.issubdtype(x.dtype, np.unsignedinteger):
            lowest = jnp.asarray(np.iinfo(signed).min, signed)
            return lax.bitcast_convert_type(x, signed) ^ lowest
        return x
    x = jnp.where(x == 0, jnp.zeros((), x.dtype), jnp.where(jnp.isnan(x), jnp.asarray(np.nan, x.dtype), x))
    bits = lax.bitcast_convert_type(x, signed)
    # Below zero, the magnitude's bits count the other way.
    return jnp.where(bits < 0, bits ^ jnp.asarray(np.iinfo(signed).max, signed), bits)


def order(x: Array, axis: int, descending: bool = False) -> Array:
    """int64 positions that sort `x` along `axis`; equal elements keep their order."""
    key = _rank_key(x)
    if descending:
        key = ~key
    index = lax.broadcasted_iota(jnp.int64, x.shape, axis)
    if key.dtype.itemsize <= 4:
        # Key and position packed in one integer: a plain integer sort, which the CPU runs several times faster than
        # a sort of pairs, and stable by construction.
        packed = (key.astype(jnp.int64) << 32) | index
        return lax.sort(packed, dimension=axis, is_stable=False) & 0xFFFFFFFF
    return lax.sort((key, index), dimension=axis, num_keys=1, is_stable=True)[1]


def along(x: Array, index: Array, axis: int) -> Array:
    """``x`` at `index` along `axis`; the other dimensions agree, and the index is known to be inside."""
    return jnp.take_along_axis(x, index, axis, mode="promise_in_bounds")


def _sorted(x: Array, axis: int, descending: bool = False) -> tuple[Array, Array]:
    index = order(x, axis, descending)
    return along(x, index, axis), index


@lower("sort", "sort.stable")
def sort(self: Array, dim: int = -1, descending: bool = False, stable: bool | None = None) -> tuple[Array, Array]:
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    return _sorted(self, dim % self.ndim, descending)


@lower("topk")
def topk(self: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    if self.ndim == 0:
        return (self, jnp.zeros((), jnp.int64)) if k else (self[None][:0], jnp.zeros((0,), jnp.int64))
    axis = dim % self.ndim
    if not is_float(self.dtype) or self.dtype.itemsize > 4:
        index = lax.slice_in_dim(order(self, axis, largest), 0, k, axis=axis)
        return along(self, index, axis), index
    # XLA has a selection for float32, which holds the half types exactly. It tells NaNs and zeros by their sign.
    x = jnp.moveaxis(self.astype(jnp.float32), axis, -1)
    x = jnp.where(jnp.isnan(x), jnp.asarray(np.nan if largest else -np.nan, x.dtype), (x if largest else -x) + 0.0)
    index = jnp.moveaxis(lax.top_k(x, k)[1], -1, axis).astype(jnp.int64)
    return along(self, index, axis), index


# --- order statistics ---------------------------------------------------------------------------------------


def _pick(x: Array, positions: Array, axis: int, keepdim: bool, by: Array) -> tuple[Array, Array]:
    """Value and index of the element at `positions` (size 1 along `axis`) of the order `by`."""
    index = along(by, positions.astype(jnp.int64), axis)
    value = along(x, index, axis)
    return (value, index) if keepdim else (jnp.squeeze(value, axis), jnp.squeeze(index, axis))


@lower("kthvalue")
def kthvalue(self: Array, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    axis = dim % self.ndim
    one = [1 if d == axis else n for d, n in enumerate(self.shape)]
    return _pick(self, jnp.full(one, k - 1), axis, keepdim, order(self, axis))


def _median(x: Array, dim: int, keepdim: bool, skip_nan: bool) -> tuple[Array, Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    axis = dim % x.ndim
    length = x.shape[axis]
    if length == 0:
        raise LoweringError("the median of nothing")  # which the CPU kernel refuses
    nans = jnp.sum(jnp.isnan(x), axis, keepdims=True) if is_float(x.dtype) else jnp.zeros((), jnp.int64)
    if skip_nan:
        position = jnp.maximum(length - nans - 1, 0) // 2
    else:  # NaNs come last in the order: the first of them is the median when there is any
        position = jnp.where(nans > 0, length - nans, (length - 1) // 2)
    one = [1 if d == axis else n for d, n in enumerate(x.shape)]
    return _pick(x, jnp.broadcast_to(position, one), axis, keepdim, order(x, axis))


@lower("median.dim")
def median_dim(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return _median(self, dim, keepdim, False)


@lower("nanmedian.dim")
def nanmedian_dim(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return _median(self, dim, keepdim, True)


@lower("median")
def median(self: Array) -> Array:
    return _median(self.reshape(-1), 0, False, False)[0] if self.size else jnp.asarray(np.nan)


@lower("nanmedian")
def nanmedian(self: Array) -> Array:
    return _median(self.reshape(-1), 0, False, True)[0] if self.size else jnp.asarray(np.nan)


@lower("mode")
def mode(self: Array, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    """The most frequent value, the smallest of several; with the index of its last occurrence."""
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    axis = dim % self.ndim
    if self.shape[axis] == 0:
        raise LoweringError("the mode of nothing")
    if self.size == 0:
        shape = [1 if d == axis else n for d, n in enumerate(self.shape) if keepdim or d != axis]
        return jnp.zeros(shape, self.dtype), jnp.zeros(shape, jnp.int64)
    value, index = _sorted(self, axis)
    length = self.shape[axis]
    place = lax.broadcasted_iota(jnp.int64, value.shape, axis)
    before = lax.slice_in_dim(value, 0, length - 1, axis=axis)
    after = lax.slice_in_dim(value, 1, length, axis=axis)
    first = lax.pad(before != after, True, [(int(d == axis), 0, 0) for d in range(value.ndim)])
    start = lax.cummax(jnp.where(first, place, 0), axis)
    run = place - start  # elements of the run before this one: largest at the end of the longest run
    longest = jnp.max(run, axis, keepdims=True)
    end = jnp.min(jnp.where(run == longest, place, length), axis, keepdims=True)
    return _pick(self, end, axis, keepdim, index)


# --- search -------------------------------------------------------------------------------------------------

_COUNT_LIMIT = 64  # up to this many boundaries, comparing with all of them beats a search


def search(boundaries: Array, values: Array, right: bool) -> Array:
    """Where `values` would be put in the last dimension of the sorted `boundaries`, before equals or (`right`) after.

    Leading dimensions agree, or `boundaries` has one dimension. NaN goes to the end, as in PyTorch.
    """
    length = boundaries.shape[-1]

    def below(b: Array) -> Array:
        return ~(b > values) if right else ~(b >= values)

    if length <= _COUNT_LIMIT:
        found = jnp.zeros(values.shape, jnp.int64)
        if length:
            table = boundaries if boundaries.ndim == 1 else boundaries[..., None, :]
            each = values[..., None]
            found = jnp.sum(~(table > each) if right else ~(table >= each), -1, dtype=jnp.int64)
        return found

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = jnp.minimum((low + high) // 2, length - 1)
        if boundaries.ndim == 1:
            probe = jnp.take(boundaries, middle, mode="clip")
        else:
            probe = along(boundaries, middle, boundaries.ndim - 1)
        up = below(probe) & (low < high)
        return jnp.where(up, middle + 1, low), jnp.where(up, high, jnp.minimum(middle, high))

    start = (jnp.zeros(values.shape, jnp.int64), jnp.full(values.shape, length, jnp.int64))
    return lax.fori_loop(0, length.bit_length(), halve, start)[0]


@lower("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    sorted_sequence: Array,
    self: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Array:
    if sorter is not None:
        require_index(sorter, sorted_sequence.shape[-1], error=RuntimeError)
        sorted_sequence = along(sorted_sequence, sorter, sorted_sequence.ndim - 1)
    _, (boundaries, values) = computation(sorted_sequence, self)
    return search(boundaries, values, right or side == "right")


@lower("bucketize.Tensor", "bucketize.Scalar")
def bucketize(self: Any, boundaries: Array, out_int32: bool = False, right: bool = False) -> Array:
    if boundaries.ndim != 1:
        raise LoweringError(f"boundaries of {boundaries.ndim} dimensions")
    _, (values, edges) = computation(self, boundaries)
    return search(edges, values, right)


@lower("isin.Tensor_Tensor")
def isin(elements: Array, test_elements: Array, assume_unique: bool = False, invert: bool = False) -> Array:
    _, (x, wanted) = computation(elements, test_elements)
    wanted = wanted.reshape(-1)
    if wanted.shape[0] <= _COUNT_LIMIT:
        found = jnp.any(x[..., None] == wanted, -1)
    else:
        wanted = along(wanted, order(wanted, 0), 0)
        place = jnp.minimum(search(wanted, x, False), wanted.shape[0] - 1)
        found = jnp.take(wanted, place, mode="clip") == x
    return ~found if invert else found


@lower("isin.Tensor_Scalar")
def isin_scalar(elements: Array, test_element: Any, assume_unique: bool = False, invert: bool = False) -> Array:
    _, (x, wanted) = computation(elements, test_element)
    return x != wanted if invert else x == wanted


@lower("isin.Scalar_Tensor")
def isin_of_scalar(element: Any, test_elements: Array, assume_unique: bool = False, invert: bool = False) -> Array:
    return isin(number_as(element, jnp.asarray(element).dtype), test_elements, assume_unique, invert)
