"""Sums, means and maxima of bags of embeddings, and their gradients.

Bag b holds the indices from ``offsets[b]`` to ``offsets[b + 1]``; an index equal to `padding_idx` counts as absent. As in
PyTorch's native kernels for other devices than the CPU, ``offset2bag`` (the bag of each index) is always filled in.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from ..errors import LoweringError
from ..views import View
from .checks import require, require_index
from .common import Array, opmath
from .registry import lower

_SUM, _MEAN, _MAX = 0, 1, 2


def _bags(offsets: Array, count: int) -> Array:
    """The bag of each of `count` indices. Of bags that begin together, all but the last are empty."""
    return jnp.searchsorted(offsets, lax.iota(offsets.dtype, count), side="right") - 1


def _maxima(values: Array, present: Array, bag: Array, bags: int) -> tuple[Array, Array]:
    """(largest value of each bag and column, or 0; the place it came from, or -1). NaN wins only where it comes first."""
    count = values.shape[0]
    place = lax.iota(jnp.int32, count)

    def first_place(where: Array) -> Array:
        outside = jnp.int32(count)
        at = jnp.where(where, place.reshape(-1, *[1] * (where.ndim - 1)), outside)
        return jax.ops.segment_min(at, bag, bags, indices_are_sorted=True)

    first = place == first_place(present)[bag]
    rank = jnp.where(jnp.isnan(values), jnp.where(first[:, None], jnp.inf, -jnp.inf), values)
    rank = jnp.where(present[:, None], rank, -jnp.inf)
    best = jax.ops.segment_max(rank, bag, bags, indices_are_sorted=True)
    chosen = first_place(present[:, None] & (rank == best[bag]))
    found = chosen < count
    value = jnp.take_along_axis(values, jnp.where(found, chosen, 0), axis=0) if count else jnp.zeros(best.shape)
    return jnp.where(found, value, 0), jnp.where(found, chosen, -1)


@lower("_embedding_bag", "_embedding_bag_forward_only", takes_outputs=True)
def _embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
    *,
    outputs: Sequence[View],
) -> tuple[Array, Array, Array, Array]:
    """(bags (B, D), bag of each index (N,), sizes of bags, chosen indices (B, D) of maxima) of `weight` (W, D)."""
    bags = outputs[0].size[0]
    require_index(indices, weight.shape[0], error=RuntimeError)
    if offsets.shape[0]:
        require(offsets[0] == 0, RuntimeError, "offsets do not begin with 0")
        require(offsets[-1] <= indices.shape[0], RuntimeError, "the last offset is past the indices")
    bag = _bags(offsets, indices.shape[0])
    present = (indices != padding_idx) & (bag < bags)
    sizes = jnp.zeros(bags, jnp.int64).at[bag].add(present, mode="drop")
    values = jnp.take(weight, indices, axis=0, mode="clip")
    chosen = jnp.zeros(outputs[3].size, jnp.int64)
    if mode == _MAX:
        result, place = _maxima(values, present, bag, bags)
        if indices.shape[0]:
            chosen = jnp.where(place < 0, 0, jnp.take(indices, jnp.maximum(place, 0)))
    else:
        values = values.astype(opmath(weight.dtype))
        if per_sample_weights is not None:
            values = values * per_sample_weights[:, None].astype(values.dtype)
        values = jnp.where(present[:, None], values, 0)
        result = jnp.zeros((bags, weight.shape[1]), values.dtype).at[bag].add(values, mode="drop")
        if mode == _MEAN:
            result = result / jnp.maximum(sizes, 1)[:, None].astype(result.dtype)
    extra = outputs[2].size[0] - bags  # with include_last_offset, sizes have an entry for the end too
    return result, bag, jnp.pad(sizes, (0, extra)), chosen


def _gradient(
    grad: Array,
    indices: Array,
    bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Array | None,
    padding_idx: int,
) -> Array:
    grad = grad.astype(opmath(grad.dtype))
    bags, width = grad.shape
    result = jnp.zeros((num_weights, width), grad.dtype)
    if mode == _MAX:
        filled = (bag_size[:bags] > 0)[:, None]
        return result.at[maximum_indices, jnp.arange(width)].add(jnp.where(filled, grad, 0))
    if bags == 0:
        return result
    if mode == _MEAN:
        grad = grad / jnp.maximum(bag_size[:bags], 1)[:, None].astype(grad.dtype)
    values = jnp.take(grad, bag, axis=0, mode="fill", fill_value=0)
    if per_sample_weights is not None:
        values = values * per_sample_weights[:, None].astype(values.dtype)
    if scale_grad_by_freq:  # by the frequency of the index itself, where the CPU kernel mistakes one for another
        uses = jnp.zeros(num_weights, values.dtype).at[indices].add(1)
        values = values / uses[indices][:, None]
    return result.at[indices].add(jnp.where((indices != padding_idx)[:, None], values, 0))


@lower("_embedding_bag_dense_backward")
def _embedding_bag_dense_backward(
    grad: Array,
    indices: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
) -> Array:
    """Gradient with respect to the weight, (num_weights, D)."""
    return _gradient(
        grad,
        indices,
        offset2bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@lower("_embedding_bag_backward")
def _embedding_bag_backward(
    grad: Array,
    indices: Array,
    offsets: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
) -> Array:
    if sparse:
        raise LoweringError("a sparse gradient")
    bag = offset2bag if offset2bag.shape == indices.shape else _bags(offsets, indices.shape[0])
    return _gradient(
        grad,
        indices,
        bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@lower("_embedding_bag_per_sample_weights_backward")
def _embedding_bag_per_sample_weights_backward(
    grad: Array,
    weight: Array,
    indices: Array,
    offsets: Array,
    offset2bag: Array,
    mode: int,
    padding_idx: int = -1,
) -> Array:
    """Gradient with respect to the weight of each index, (N,)."""
    bag = offset2bag if offset2bag.shape == indices.shape else _bags(offsets, indices.shape[0])
    wide = opmath(grad.dtype)
    rows = jnp.take(grad, bag, axis=0, mode="fill", fill_value=0).astype(wide)
    dots = (rows * jnp.take(weight, indices, axis=0, mode="clip").astype(wide)).sum(axis=1)
    return jnp.where(indices != padding_idx, dots, 0)
