"""Reductions of consecutive segments of one dimension, given by their lengths or offsets, and their gradients.

``data`` is (O, n, I): outer dimensions in which the segments differ, the reduced dimension, and inner ones in which they do
not. A segment's number is found for each element, and the reduction is a scatter (aten/src/ATen/native/SegmentReduce.cpp).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import LoweringError
from .checks import require
from .common import Array, number_as, opmath
from .registry import lower

_NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}


class _Segments(NamedTuple):
    """``number`` (O * n,) of each element, ``total`` where it is in none; ``length`` (O * S,) of each of ``total``."""

    number: Array
    length: Array
    total: int


def _segments(lengths: Array | None, offsets: Array | None, size: int) -> tuple[_Segments, int]:
    """The segments, and which dimension they divide."""
    given = lengths if lengths is not None else offsets
    if given is None:
        raise LoweringError("neither lengths nor offsets")
    rows = given.reshape(-1, given.shape[-1]).astype(jnp.int64)
    if lengths is not None:
        end = jnp.cumsum(rows, axis=1)
        start = end - rows
    else:
        start, end = rows[:, :-1], rows[:, 1:]
    outer, each = end.shape
    index = jnp.arange(size)
    place = jax.vmap(lambda row: jnp.searchsorted(row, index, side="right"))(end)
    inside = (place < each) & (index >= jnp.take_along_axis(start, jnp.minimum(place, each - 1), axis=1))
    number = jnp.where(inside, place + each * jnp.arange(outer)[:, None], outer * each)
    return _Segments(number.reshape(-1), (end - start).reshape(-1), outer * each), given.ndim - 1


def _rows(x: Array, axis: int) -> Array:
    """(O * n, I) of an array whose dimension `axis` is the reduced one (or the one of segments)."""
    return x.reshape(math.prod(x.shape[: axis + 1]), math.prod(x.shape[axis + 1 :])).astype(opmath(x.dtype))


def _reduced(values: Array, at: _Segments, start: Array, how: str) -> Array:
    """`start` combined with the elements of each segment: (O * S, I)."""
    combined = jnp.full((at.total, values.shape[1]), start, values.dtype).at[at.number]
    if how == "max":
        return combined.max(values, mode="drop")
    if how == "min":
        return combined.min(values, mode="drop")
    return combined.multiply(values, mode="drop") if how == "prod" else combined.add(values, mode="drop")


@lower("segment_reduce")
def segment_reduce(
    data: Array,
    reduce: str,
    *,
    lengths: Array | None = None,
    indices: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Array:
    """`data` with its dimension `axis` reduced to one element a segment; NaN is the mean of an empty one."""
    if reduce not in _NEUTRAL or indices is not None or data.size == 0:
        raise LoweringError(f"reduce={reduce!r}, or indices, or no data")
    axis %= data.ndim
    at, axis = _segments(lengths, offsets, data.shape[axis])
    require(at.length >= 0, RuntimeError, "a segment of negative length")
    if not unsafe and lengths is not None:
        require(lengths.sum(axis=-1) == data.shape[axis], RuntimeError, "lengths that do not add up to the dimension")
    values = _rows(data, axis)
    start = number_as(_NEUTRAL[reduce] if initial is None else initial, values.dtype)
    result = _reduced(values, at, start, reduce)
    if reduce == "mean":
        length = at.length[:, None]
        empty = jnp.nan if initial is None else result
        result = jnp.where(length > 0, result / jnp.maximum(length, 1).astype(result.dtype), empty)
    return result.reshape(*data.shape[:axis], -1, *data.shape[axis + 1 :])


@lower("_segment_reduce_backward")
def segment_reduce_backward(
    grad: Array,
    output: Array,
    data: Array,
    reduce: str,
    *,
    lengths: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    initial: Any = None,
) -> Array:
    """Gradient with respect to `data`.

    Of several equal extremes each gets the gradient, divided by their number where it is positive: what PyTorch does.
    """
    if reduce not in _NEUTRAL:
        raise LoweringError(f"reduce={reduce!r}")
    at, axis = _segments(lengths, offsets, data.shape[axis % data.ndim])
    values, result = _rows(data, axis), _rows(output, axis)
    number = jnp.minimum(at.number, at.total - 1)
    own = _rows(grad, axis)[number]
    zero = jnp.zeros((), values.dtype)
    if reduce == "mean":
        own = own / jnp.maximum(at.length, 1)[number][:, None].astype(own.dtype)
    elif reduce in ("max", "min"):
        hit = jnp.isnan(values) | (values == result[number])
        hits = _reduced(hit.astype(values.dtype), at, zero, "sum")[number]
        own = jnp.where(hit, jnp.where((hits > 1) & (own > 0), own / hits, own), 0)
    elif reduce == "prod":
        start = number_as(1.0 if initial is None else initial, values.dtype)
        own = own * _product_of_others(values, result, at, number, start)
    return jnp.where((at.number < at.total)[:, None], own, 0).reshape(data.shape)


def _product_of_others(values: Array, result: Array, at: _Segments, number: Array, start: Array) -> Array:
    """The product of `start` and a segment's other elements, without dividing by zero or NaN."""
    zero = jnp.zeros((), values.dtype)

    def without(odd: Array) -> Array:
        rest = _reduced(jnp.where(odd, 1, values), at, start, "prod")[number]
        several = _reduced(odd.astype(values.dtype), at, zero, "sum")[number] > 1
        return jnp.where(several, rest * values, rest)

    is_zero, is_nan = values == 0, jnp.isnan(values)
    usual = result[number] / jnp.where(is_zero | is_nan, 1, values)
    return jnp.where(is_zero, without(is_zero), jnp.where(is_nan, without(is_nan), usual))
