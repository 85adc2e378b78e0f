"""Reading and writing at positions that are data: gather and scatter, indexing by tensors, embeddings.

A position outside its dimension is an unmet demand (:mod:`.checks`); within the program it reads an element at the edge,
and writes nothing. Negative positions count from the end where PyTorch says so.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..errors import LoweringError
from .checks import extreme, require, require_fits, require_index
from .common import Array, cast, is_float, is_integral, number_as, opmath, to_torch
from .reduce import _norm
from .registry import lower
from .scan import prefix_sum

_INSIDE = lax.GatherScatterMode.PROMISE_IN_BOUNDS  # XLA clamps what it gathers and skips what it would scatter outside


def _axis(dim: int, x: Array) -> int:
    return dim % max(x.ndim, 1)


def _take(x: Array, index: Array, axis: int) -> Array:
    """Slices of `x` at `index` along `axis`; the dimensions of `index` take the place of `axis`."""
    return jnp.take(x, index, axis, mode="clip")


# --- one position per element -----------------------------------------------------------------


@lower("gather")
def gather(self: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    if index.size == 0:
        return jnp.zeros(index.shape, self.dtype)
    require_index(index, self.shape[_axis(dim, self)] if self.ndim else 1, error=RuntimeError)
    if self.ndim == 0:
        return jnp.broadcast_to(self, index.shape)
    axis = _axis(dim, self)
    if index.ndim == 0:
        index = index[None]
        return gather(self, axis, index)[0]
    # The index may be smaller than the tensor in the other dimensions; then it addresses a corner of it.
    stops = [n if d == axis else index.shape[d] for d, n in enumerate(self.shape)]
    corner = lax.slice(self, [0] * self.ndim, stops)
    index = jnp.clip(index, 0, max(self.shape[axis] - 1, 0))
    return jnp.take_along_axis(corner, index, axis, mode="promise_in_bounds")


_COMBINE = {
    "set": lax.scatter,
    "sum": lax.scatter_add,
    "prod": lax.scatter_mul,
    "amax": lax.scatter_max,
    "amin": lax.scatter_min,
}


def _scattered(x: Array, axis: int, index: Array, updates: Array, how: str) -> Array:
    """`x` combined with `updates` at `index` along `axis`; all three have as many dimensions."""
    if index.size == 0:
        return x
    stops = [n if d == axis else index.shape[d] for d, n in enumerate(x.shape)]
    corner = x if stops == list(x.shape) else lax.slice(x, [0] * x.ndim, stops)
    updates = lax.slice(updates, [0] * x.ndim, index.shape)
    batch = tuple(d for d in range(x.ndim) if d != axis)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(),
        inserted_window_dims=(axis,),
        scatter_dims_to_operand_dims=(axis,),
        operand_batching_dims=batch,
        scatter_indices_batching_dims=batch,
    )
    corner = _COMBINE[how](corner, index[..., None], updates, numbers, mode=_INSIDE)
    if stops == list(x.shape):
        return corner
    return lax.dynamic_update_slice(x, corner, [0] * x.ndim)


def _logical(how: str) -> str:
    """For booleans, a sum is an `or` and a product an `and`."""
    return {"sum": "amax", "prod": "amin"}.get(how, how)


def _identity(how: str, dtype: Any) -> Any:
    if how in ("sum", "mean"):
        return 0
    if how == "prod":
        return 1
    if is_float(dtype):
        return -np.inf if how == "amax" else np.inf
    return np.iinfo(dtype).min if how == "amax" else np.iinfo(dtype).max


def _reduced(
    x: Array, axis: int, index: Array, updates: Array, how: str, include_self: bool, scatter: Any = _scattered
) -> Array:
    """Scatter with a reduction. Half types accumulate in float32; without `include_self`, what is hit starts afresh."""
    logical = x.dtype == np.bool_
    if logical:
        x, updates, how = x.astype(jnp.uint8), updates.astype(jnp.uint8), _logical(how)
    wide = opmath(x.dtype)
    x, updates = x.astype(wide), updates.astype(wide)
    if how == "mean":
        ones = jnp.ones(updates.shape, wide)
        count = scatter(jnp.full(x.shape, int(include_self), wide), axis, index, ones, "sum")
        start = x if include_self else jnp.where(count > 0, jnp.zeros((), wide), x)
        total = scatter(start, axis, index, updates, "sum")
        count = jnp.maximum(count, 1)
        return total // count if is_integral(wide) else total / count
    if not include_self:
        hit = scatter(jnp.zeros(x.shape, jnp.uint8), axis, index, jnp.ones(updates.shape, jnp.uint8), "set")
        x = jnp.where(hit > 0, jnp.asarray(_identity(how, wide), wide), x)
    result = scatter(x, axis, index, updates, how)
    return result != 0 if logical else result


def _as_vectors(self: Array, dim: int, index: Array, src: Array) -> tuple[Array, int, Array, Array]:
    """Arguments of a scatter with 0-d tensors made one-dimensional."""
    x, index = jnp.atleast_1d(self), jnp.atleast_1d(index)
    require_index(index, x.shape[dim % x.ndim], error=RuntimeError)
    return x, dim % x.ndim, index, jnp.atleast_1d(src)


def _spread(value: Any, self: Array, index: Array) -> Array:
    """The number `value` as a source of a scatter into `self`."""
    require_fits(value, self.dtype)
    return jnp.broadcast_to(number_as(value, self.dtype), index.shape)


@lower("scatter.src")
def scatter(self: Array, dim: int, index: Array, src: Array) -> Array:
    x, axis, index, updates = _as_vectors(self, dim, index, src)
    return _scattered(x, axis, index, updates.astype(x.dtype), "set").reshape(self.shape)


@lower("scatter.value", static={"value": extreme})
def scatter_of_a_number(self: Array, dim: int, index: Array, value: Any) -> Array:
    return scatter(self, dim, index, _spread(value, self, index))


_LEGACY = {"add": "sum", "multiply": "prod"}


@lower("scatter.reduce")
def scatter_with(self: Array, dim: int, index: Array, src: Array, reduce: str) -> Array:
    x, axis, index, updates = _as_vectors(self, dim, index, src)
    return _reduced(x, axis, index, updates, _LEGACY[reduce], True).reshape(self.shape)


@lower("scatter.value_reduce")
def scatter_with_a_number(self: Array, dim: int, index: Array, value: Any, reduce: str) -> Array:
    return scatter_with(self, dim, index, _spread(value, self, index), reduce)


@lower("scatter_add")
def scatter_add(self: Array, dim: int, index: Array, src: Array) -> Array:
    x, axis, index, updates = _as_vectors(self, dim, index, src)
    return _reduced(x, axis, index, updates, "sum", True).reshape(self.shape)


@lower("scatter_reduce.two")
def scatter_reduce(self: Array, dim: int, index: Array, src: Array, reduce: str, include_self: bool = True) -> Array:
    x, axis, index, updates = _as_vectors(self, dim, index, src)
    return _reduced(x, axis, index, updates, reduce, include_self).reshape(self.shape)


# --- one position per slice -------------------------------------------------------------------


@lower("index_select")
def index_select(self: Array, dim: int, index: Array) -> Array:
    require_index(index, self.shape[_axis(dim, self)] if self.ndim else 1)
    if self.ndim == 0:
        return jnp.broadcast_to(self, (1,) if index.ndim else ()).reshape(self.shape)
    return _take(self, index.reshape(-1), _axis(dim, self))


def _slices(x: Array, axis: int, index: Array, updates: Array, how: str) -> Array:
    """`x` combined with slices `updates` at the vector `index` along `axis`."""
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(d for d in range(x.ndim) if d != axis),
        inserted_window_dims=(axis,),
        scatter_dims_to_operand_dims=(axis,),
    )
    return _COMBINE[how](x, index[:, None], updates, numbers, mode=_INSIDE)


def _as_slices(self: Array, dim: int, index: Array, source: Array) -> tuple[Array, int, Array, Array]:
    x, index = jnp.atleast_1d(self), index.reshape(-1)
    axis = dim % x.ndim
    require_index(index, x.shape[axis])
    shape = [index.shape[0] if d == axis else n for d, n in enumerate(x.shape)]
    return x, axis, index, source.reshape(shape)


@lower("index_add")
def index_add(self: Array, dim: int, index: Array, source: Array, alpha: Any = 1) -> Array:
    if source.dtype == bool:
        updates = source & (number_as(alpha, jnp.bool_))
    else:
        updates = source.astype(opmath(source.dtype))
        updates = updates * number_as(alpha, updates.dtype)
    x, axis, index, updates = _as_slices(self, dim, index, updates)
    return _reduced(x, axis, index, updates, "sum", True, _slices).reshape(self.shape)


@lower("index_copy")
def index_copy(self: Array, dim: int, index: Array, source: Array) -> Array:
    x, axis, index, updates = _as_slices(self, dim, index, source)
    return _slices(x, axis, index, updates, "set").reshape(self.shape)


@lower("index_fill.int_Scalar", static={"value": extreme})
@lower("index_fill.int_Tensor")
def index_fill(self: Array, dim: int, index: Array, value: Any) -> Array:
    require_fits(value, self.dtype)
    x, index = jnp.atleast_1d(self), index.reshape(-1)
    axis = dim % x.ndim
    require_index(index, x.shape[axis], wraps=True)
    index = jnp.where(index < 0, index + x.shape[axis], index)
    shape = [index.shape[0] if d == axis else n for d, n in enumerate(x.shape)]
    return _slices(x, axis, index, jnp.broadcast_to(number_as(value, x.dtype), shape), "set").reshape(self.shape)


@lower("index_reduce")
def index_reduce(self: Array, dim: int, index: Array, source: Array, reduce: str, include_self: bool = True) -> Array:
    x, axis, index, updates = _as_slices(self, dim, index, source)
    return _reduced(x, axis, index, updates, reduce, include_self, _slices).reshape(self.shape)


# --- positions in the flattened tensor --------------------------------------------------------


def _wrapped(index: Array, length: int) -> Array:
    return jnp.where(index < 0, index + length, index)


@lower("take")
def take(self: Array, index: Array) -> Array:
    if index.size == 0:
        return jnp.zeros(index.shape, self.dtype)
    require_index(index, self.size, wraps=True)
    return _take(self.reshape(-1), _wrapped(index, self.size), 0)


@lower("put")
def put(self: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    if index.size != source.size:
        raise LoweringError("as many places as values")  # which only the CPU kernel asks for
    require_index(index, self.size, wraps=True)
    flat, index = self.reshape(-1), _wrapped(index.reshape(-1), self.size)
    how = "sum" if accumulate else "set"
    if not accumulate:
        return _scattered(flat, 0, index, source.reshape(-1), how).reshape(self.shape)
    return _reduced(flat, 0, index, source.reshape(-1), how, True).reshape(self.shape)


@lower("masked_scatter")
def masked_scatter(self: Array, mask: Array, source: Array) -> Array:
    if mask.dtype != bool:
        raise LoweringError(f"a mask of {mask.dtype}")
    shape = jnp.broadcast_shapes(self.shape, mask.shape)
    x, flat = jnp.broadcast_to(self, shape), jnp.broadcast_to(mask, shape).reshape(-1)
    require(jnp.sum(flat) <= source.size, RuntimeError, "masked_scatter with fewer values than the mask has places")
    if source.size == 0:
        return x
    number = prefix_sum(flat.astype(jnp.int32)) - 1 if flat.shape[0] else flat.astype(jnp.int32)
    taken = _take(source.reshape(-1), number, 0).reshape(shape)
    return jnp.where(flat.reshape(shape), taken, x)


@lower("masked_scatter_backward")
def masked_scatter_backward(grad_output: Array, mask: Array, sizes: list[int]) -> Array:
    shape = jnp.broadcast_shapes(grad_output.shape, mask.shape)
    grad, flat = jnp.broadcast_to(grad_output, shape).reshape(-1), jnp.broadcast_to(mask, shape).reshape(-1)
    length = math.prod(sizes)
    out = jnp.zeros((length,), grad.dtype)
    if length and flat.shape[0]:
        number = jnp.where(flat, prefix_sum(flat.astype(jnp.int32)) - 1, length)
        out = out.at[number].set(grad, mode="drop")
    return out.reshape(sizes)


@lower("nonzero_static")
def nonzero_static(self: Array, size: int, fill_value: int = -1) -> Array:
    flat = self.reshape(-1) != 0
    if flat.shape[0] == 0 or size == 0 or self.ndim == 0:
        position, count = jnp.zeros((size,), jnp.int64), jnp.sum(flat)
    else:
        number = jnp.where(flat, prefix_sum(flat.astype(jnp.int32)) - 1, size)
        position = jnp.zeros((size,), jnp.int64)
        position = position.at[number].set(lax.iota(jnp.int64, flat.shape[0]), mode="drop", unique_indices=True)
        count = jnp.sum(flat)
    coordinates, rest = [], position
    for n in reversed(self.shape):
        coordinates.append(rest % max(n, 1))
        rest = rest // max(n, 1)
    if not coordinates:
        return jnp.zeros((size, 0), jnp.int64)
    found = jnp.stack(coordinates[::-1], 1)
    return jnp.where((lax.iota(jnp.int64, size) < count)[:, None], found, fill_value)


# --- indexing by several tensors --------------------------------------------------------------


def _positions(self: Array, indices: list[Array | None]) -> tuple[Any, ...]:
    """`indices` for JAX, which places the indexed dimensions as PyTorch does. Negative ones count from the end."""
    entries: list[Any] = []
    for dim, index in enumerate(indices):
        if index is None:
            entries.append(slice(None))
        elif index.dtype in (np.bool_, np.uint8):
            raise LoweringError("a mask as an index, whose result's sizes depend on its values")
        else:
            entries.append(_wrapped(index, self.shape[dim]))
    return tuple(entries)


def _index(self: Array, indices: list[Array | None]) -> Array:
    entries = _positions(self, indices)
    if self.size == 0:  # nothing can be read: only the sizes of the result are of interest
        shape = jax.eval_shape(lambda x, *e: x.at[_refill(entries, e)].get(mode="fill"), self, *_arrays(entries)).shape
        return jnp.zeros(shape, self.dtype)
    clipped = tuple(e if isinstance(e, slice) else jnp.clip(e, 0, self.shape[d] - 1) for d, e in enumerate(entries))
    return self.at[clipped].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _arrays(entries: tuple[Any, ...]) -> list[Array]:
    return [e for e in entries if not isinstance(e, slice)]


def _refill(entries: tuple[Any, ...], arrays: Any) -> tuple[Any, ...]:
    supply = iter(arrays)
    return tuple(e if isinstance(e, slice) else next(supply) for e in entries)


def _require_positions(self: Array, indices: list[Array | None], values: int = 1) -> None:
    """Demand of each index that it lies in its dimension; nothing when no element is read or written."""
    for size, index in zip(self.shape, indices):
        if index is not None and values and index.dtype not in (np.bool_, np.uint8):
            require_index(index, size, wraps=True)


@lower("index.Tensor", graph_only=True)
def index_tensor(self: Array, indices: list[Array | None]) -> Array:
    result = _index(self, indices)
    _require_positions(self, indices, result.size)
    return result


lower("_unsafe_index.Tensor")(index_tensor)


def _by_mask(self: Array, indices: list[Array | None], values: Array, accumulate: bool) -> Array | None:
    """The result where the only index is a mask and `values` do not vary along it, so that no size depends on data."""
    given = [d for d, index in enumerate(indices) if index is not None]
    mask = indices[given[0]] if len(given) == 1 else None
    if mask is None or mask.dtype != np.bool_:
        return None
    before, after = given[0], self.ndim - given[0] - mask.ndim
    along = values.ndim - after - 1  # the dimension of `values` that runs over the selected elements
    if along >= 0:
        if values.shape[along] != 1:
            return None
        values = values.reshape(values.shape[:along] + (1,) * mask.ndim + values.shape[along + 1 :])
    if accumulate:
        values = self | values if self.dtype == bool else self + values
    return jnp.where(mask.reshape((1,) * before + mask.shape + (1,) * after), values, self)


def _put(self: Array, indices: list[Array | None], values: Any, accumulate: bool) -> Array:
    wide = opmath(self.dtype) if accumulate else self.dtype
    x, values = self.astype(wide), cast(jnp.asarray(values), to_torch(wide))
    masked = _by_mask(x, indices, values, accumulate)
    if masked is not None:
        return masked
    entries = _positions(self, indices)
    if self.size == 0:
        return self
    at = x.at[entries]
    update = at.set if not accumulate else at.max if self.dtype == np.bool_ else at.add
    return update(values, mode="promise_in_bounds", wrap_negative_indices=False)


@lower("index_put", graph_only=True)
def index_put(self: Array, indices: list[Array | None], values: Array, accumulate: bool = False) -> Array:
    _require_positions(self, indices, jnp.size(values))
    return _put(self, indices, values, accumulate)


@lower("_index_put_impl", graph_only=True)
def _index_put_impl(
    self: Array, indices: list[Array | None], values: Array, accumulate: bool = False, unsafe: bool = False
) -> Array:
    _require_positions(self, indices, jnp.size(values))
    return _put(self, indices, values, accumulate)


lower("_unsafe_index_put")(index_put)


@lower("_unsafe_masked_index")
def _unsafe_masked_index(self: Array, mask: Array, indices: list[Array | None], fill: Any) -> Array:
    if self.size == 0:
        return jnp.broadcast_to(number_as(fill, self.dtype), jnp.broadcast_shapes(mask.shape))
    return jnp.where(mask, _index(self, indices), number_as(fill, self.dtype))


@lower("_unsafe_masked_index_put_accumulate")
def _unsafe_masked_index_put_accumulate(self: Array, mask: Array, indices: list[Array | None], values: Array) -> Array:
    if self.size == 0:
        return self
    inside = [i if i is None else jnp.clip(i, -self.shape[d], self.shape[d] - 1) for d, i in enumerate(indices)]
    return _put(self, inside, jnp.where(mask, values, jnp.zeros((), values.dtype)), True)


# --- embeddings -------------------------------------------------------------------------------


@lower("embedding")
def embedding(
    weight: Array, indices: Array, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Array:
    require_index(indices, weight.shape[0])
    return _take(weight, indices, 0)


@lower("embedding_dense_backward")
def embedding_dense_backward(
    grad_output: Array, indices: Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Array:
    rows = indices.reshape(-1)
    width = grad_output.shape[-1]
    grad = grad_output.reshape(-1, width).astype(opmath(grad_output.dtype))
    if scale_grad_by_freq:
        count = jnp.zeros((num_weights,), grad.dtype).at[rows].add(1, mode="promise_in_bounds")
        grad = grad / _take(count, rows, 0)[:, None]
    if padding_idx >= 0:
        rows = jnp.where(rows == padding_idx, num_weights, rows)  # outside: dropped
    return _slices(jnp.zeros((num_weights, width), grad.dtype), 0, rows, grad, "sum")


@lower("embedding_renorm", static=("norm_type",))
def embedding_renorm(self: Array, indices: Array, max_norm: Any, norm_type: Any) -> Array:
    x = self.astype(opmath(self.dtype))
    require_index(indices, self.shape[0], wraps=True)
    indices = _wrapped(indices, self.shape[0])
    used = jnp.zeros((self.shape[0],), bool).at[indices.reshape(-1)].set(True, mode="promise_in_bounds")
    size, limit = _norm(x, norm_type, (1,), False, None), number_as(max_norm, x.dtype)
    factor = jnp.where(used & (size > limit), limit / (size + 1e-7), 1)
    return x * factor[:, None]
