"""Between jagged values and padded dense tensors; kernels of nested tensors that dense tensors reach first."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import torch

from ..errors import LoweringError
from .dynamic import kernel_of_lowering
from .metas import meta
from .registry import composite, lower, overload
from .sort import search

# PyTorch's CPU kernels for these keep sizes on the host and follow no address of the buffer.
for _name in ("_nested_view_from_buffer", "_nested_from_padded"):
    composite(_name)(functools.partial(overload(_name)._op_dk, torch._C.DispatchKey.CPU))


@lower("_jagged_to_padded_dense_forward", static=("padding_value",))
def jagged_to_padded(
    values: jax.Array, offsets: list[jax.Array], max_lengths: list[int], padding_value: float = 0.0
) -> jax.Array:
    """`values` [total, ...] cut at `offsets` [B + 1] into rows of a [B, max length, ...] array, shorter ones padded."""
    if len(offsets) != 1 or len(max_lengths) != 1:
        raise LoweringError("more than one ragged dimension")
    start, end = offsets[0][:-1, None], offsets[0][1:, None]
    place = start + jnp.arange(max_lengths[0], dtype=start.dtype)
    inside = (place < end).reshape(*place.shape, *(1,) * (values.ndim - 1))
    if not values.shape[0]:
        return jnp.full((*place.shape, *values.shape[1:]), padding_value, values.dtype)
    picked = jnp.take(values, jnp.clip(place, 0, values.shape[0] - 1), axis=0)
    return jnp.where(inside, picked, jnp.asarray(padding_value, values.dtype))


@lower("_padded_dense_to_jagged_forward", graph_only=True)
def padded_to_jagged(dense: jax.Array, offsets: list[jax.Array], total_L: int | None = None) -> jax.Array:
    """The rows of `dense` [B, L, ...] that `offsets` [B + 1] counts, one after the other: [total, ...]."""
    if len(offsets) != 1 or total_L is None:
        raise LoweringError("more than one ragged dimension, or a total that only the device knows")
    place = jnp.arange(total_L, dtype=offsets[0].dtype)
    row = jnp.clip(search(offsets[0], place, right=True) - 1, 0, max(dense.shape[0] - 1, 0))
    column = place - offsets[0][row]
    inside = (column < dense.shape[1]).reshape(-1, *(1,) * (dense.ndim - 2))
    if not dense.size:
        return jnp.zeros((total_L, *dense.shape[2:]), dense.dtype)
    return jnp.where(inside, dense[row, jnp.clip(column, 0, dense.shape[1] - 1)], 0)


@meta("_padded_dense_to_jagged_forward")
def padded_to_jagged_meta(dense: torch.Tensor, offsets: list[torch.Tensor], total_L: int | None = None) -> torch.Tensor:
    assert total_L is not None
    return dense.new_empty((total_L, *dense.shape[2:]))


@composite("_padded_dense_to_jagged_forward")
def padded_to_jagged_of_any_total(
    dense: torch.Tensor, offsets: list[torch.Tensor], total_L: int | None = None
) -> torch.Tensor:
    total = int(offsets[0][-1]) if total_L is None else total_L
    return kernel_of_lowering("_padded_dense_to_jagged_forward")(dense, offsets, total)
