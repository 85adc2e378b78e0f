"""Views as computations, for graphs; their copying forms; and writes into a view of a tensor, as functions.

In eager mode a view is metadata over the same storage, and PyTorch's own kernels serve it: what is registered here as
``graph_only`` never runs there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from .. import views
from ..buffer import contiguous_stride
from ..views import View
from .common import Array, is_complex
from .registry import lower
from .shape import windows


def _view(*names: str, **flags: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a view for graphs, and its ``_copy`` form, where PyTorch has one, for all modes."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            lower(name, graph_only=True, **flags)(fn)
            base, dot, which = name.partition(".")
            if hasattr(torch.ops.aten, f"{base}_copy"):
                lower(f"{base}_copy{dot}{which}", **flags)(fn)
        return fn

    return register


# --- the same elements under other sizes ------------------------------------------------------


@_view("view", takes_outputs=True)
def view(self: Array, size: Any, outputs: tuple[View, ...]) -> Array:
    return self.reshape(outputs[0].size)  # the output's sizes have no -1 left


lower("_unsafe_view", "_reshape_alias", "_reshape_copy", takes_outputs=True, graph_only=True)(
    lambda self, size, stride=None, *, outputs: self.reshape(outputs[0].size)
)


@_view("alias", "detach")
def alias(self: Array) -> Array:
    return self


lower("lift", "lift_fresh", graph_only=True)(alias)
lower("lift_fresh_copy")(alias)


@_view("permute")
def permute(self: Array, dims: list[int]) -> Array:
    return self.transpose([d % self.ndim for d in dims]) if self.ndim else self


@_view("transpose.int")
def transpose(self: Array, dim0: int, dim1: int) -> Array:
    return jnp.swapaxes(self, dim0, dim1) if self.ndim else self


@_view("t")
def t(self: Array) -> Array:
    return self.T


@_view("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(self: Array, dim: Any = None) -> Array:
    dims = range(self.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return jnp.squeeze(self, tuple({d % self.ndim for d in dims if self.shape[d] == 1})) if self.ndim else self


@_view("unsqueeze")
def unsqueeze(self: Array, dim: int) -> Array:
    return jnp.expand_dims(self, dim)


@_view("expand", takes_outputs=True)
def expand(self: Array, size: Any, implicit: bool = False, *, outputs: tuple[View, ...]) -> Array:
    return jnp.broadcast_to(self, outputs[0].size)


# --- some of the elements ---------------------------------------------------------------------


def _bounds(length: int, start: int | None, end: int | None, step: int) -> tuple[int, int]:
    first, last, _ = slice(start, end, step).indices(length)
    return first, max(first, last)


@_view("slice.Tensor")
def slice_(self: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    first, last = _bounds(self.shape[dim], start, end, step)
    return lax.slice_in_dim(self, first, last, step, axis=dim)


@lower("narrow_copy")
def narrow_copy(self: Array, dim: int, start: int, length: int) -> Array:
    start = start + self.shape[dim] if start < 0 else start
    return lax.slice_in_dim(self, start, start + length, axis=dim)


@_view("select.int")
def select(self: Array, dim: int, index: int) -> Array:
    return lax.index_in_dim(self, index, dim, keepdims=False)


@_view("split.Tensor")
def split(self: Array, split_size: int, dim: int = 0) -> list[Array]:
    length = self.shape[dim]
    if split_size == 0:
        return [self]
    return [
        lax.slice_in_dim(self, at, min(at + split_size, length), axis=dim)
        for at in range(0, max(length, 1), split_size)
    ]


@_view("split_with_sizes")
def split_with_sizes(self: Array, split_sizes: list[int], dim: int = 0) -> list[Array]:
    parts, at = [], 0
    for size in split_sizes:
        parts.append(lax.slice_in_dim(self, at, at + size, axis=dim))
        at += size
    return parts


lower("unsafe_split.Tensor")(split)
lower("unsafe_split_with_sizes")(split_with_sizes)


@_view("unbind.int")
def unbind(self: Array, dim: int = 0) -> list[Array]:
    return [lax.index_in_dim(self, i, dim, keepdims=False) for i in range(self.shape[dim])]


@_view("diagonal")
def diagonal(self: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    x = jnp.moveaxis(self, (dim1, dim2), (-2, -1))
    rows, columns = x.shape[-2:]
    top, left = max(-offset, 0), max(offset, 0)
    length = max(min(rows - top, columns - left), 0)
    if length == 0:
        return jnp.zeros((*x.shape[:-2], 0), x.dtype)
    square = x[..., top : top + length, left : left + length]
    # In a flattened square the diagonal is every (length + 1)-th element: a strided slice instead of a gather.
    return square.reshape(*x.shape[:-2], length * length)[..., :: length + 1]


@_view("unfold")
def unfold(self: Array, dimension: int, size: int, step: int) -> Array:
    return windows(self, dimension % max(self.ndim, 1), size, step)


@lower("as_strided_scatter", takes_outputs=True, graph_only=True)
def as_strided_scatter(
    self: Array, src: Array, size: Any, stride: Any, storage_offset: int | None = None, *, outputs: tuple[View, ...]
) -> Array:
    """The strides count in the memory of `self`, whose layout the result keeps."""
    layout = outputs[0]
    wanted = View(layout.dtype, tuple(size), tuple(stride), storage_offset or 0)
    return views.read(views.write(views.pack(self, layout), wanted, src), layout)


# --- the same bits under another dtype --------------------------------------------------------


@_view("view.dtype", takes_outputs=True)
def view_dtype(self: Array, dtype: torch.dtype, outputs: tuple[View, ...]) -> Array:
    return views.read(self.reshape(-1), View(dtype, outputs[0].size, contiguous_stride(outputs[0].size)))


@_view("view_as_real")
def view_as_real(self: Array) -> Array:
    return jnp.stack([self.real, self.imag], -1)


@_view("view_as_complex")
def view_as_complex(self: Array) -> Array:
    if self.dtype == jnp.float16:
        self = self.astype(jnp.float32)
    return lax.complex(self[..., 0], self[..., 1])


@_view("_conj")
def _conj(self: Array) -> Array:
    self = jnp.asarray(self)  # a graph may hold a number here
    return jnp.conj(self) if is_complex(self.dtype) else self


@_view("_neg_view")
def _neg_view(self: Array) -> Array:
    return -self


# --- writing into a view, as a function -------------------------------------------------------


@lower("slice_scatter")
def slice_scatter(
    self: Array, src: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    axis = dim % self.ndim
    first, last = _bounds(self.shape[axis], start, end, step)
    src = src.astype(self.dtype)
    if first >= last:
        return self
    if step == 1:
        return lax.dynamic_update_slice_in_dim(self, src, first, axis)
    return self.at[(slice(None),) * axis + (slice(first, last, step),)].set(src)


@lower("slice_inverse", graph_only=True)
def slice_inverse(
    self: Array, src: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    return slice_scatter(src, self, dim, start, end, step)


@lower("select_scatter")
def select_scatter(self: Array, src: Array, dim: int, index: int) -> Array:
    axis = dim % self.ndim
    row = jnp.expand_dims(src.astype(self.dtype), axis)
    return lax.dynamic_update_slice_in_dim(self, row, index % self.shape[axis], axis)


def _embedded(values: Array, sizes: Any, offset: int, dim1: int, dim2: int) -> tuple[Array, Array]:
    """(zeros of `sizes` with `values` on the diagonal, mask of that diagonal)."""
    ndim = len(sizes)
    dim1, dim2 = dim1 % ndim, dim2 % ndim
    shape = tuple(sizes)
    on = lax.broadcasted_iota(jnp.int32, shape, dim2) - lax.broadcasted_iota(jnp.int32, shape, dim1) == offset
    rows, top = shape[dim1], max(-offset, 0)
    # Spread the values along the rows: each row below `top` then holds its own element, which the mask picks.
    pad = [(0, 0, 0)] * (values.ndim - 1) + [(top, rows - top - values.shape[-1], 0)]
    column = lax.pad(values, jnp.zeros((), values.dtype), pad)
    spread = jnp.moveaxis(jnp.expand_dims(column, -1), (-2, -1), (dim1, dim2))
    return jnp.where(on, spread, jnp.zeros((), values.dtype)), on


@lower("diagonal_scatter")
def diagonal_scatter(self: Array, src: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    if src.size == 0:
        return self
    full, on = _embedded(src.astype(self.dtype), self.shape, offset, dim1, dim2)
    return jnp.where(on, full, self)


@lower("diagonal_backward")
def diagonal_backward(grad_output: Array, input_sizes: Any, offset: int, dim1: int, dim2: int) -> Array:
    if grad_output.size == 0:
        return jnp.zeros(tuple(input_sizes), grad_output.dtype)
    return _embedded(grad_output, input_sizes, offset, dim1, dim2)[0]


@lower("diag_embed", takes_outputs=True)
def diag_embed(self: Array, offset: int = 0, dim1: int = -2, dim2: int = -1, outputs: tuple[View, ...] = ()) -> Array:
    return diagonal_backward(self, outputs[0].size, offset, dim1, dim2)


@lower("slice_backward")
def slice_backward(grad_output: Array, input_sizes: Any, dim: int, start: int, end: int, step: int) -> Array:
    axis = dim % len(input_sizes)
    first, last = _bounds(input_sizes[axis], start, end, step)
    if first >= last:
        return jnp.zeros(tuple(input_sizes), grad_output.dtype)
    count = grad_output.shape[axis]
    after = input_sizes[axis] - first - ((count - 1) * step + 1)
    pad = [(first, after, step - 1) if d == axis else (0, 0, 0) for d in range(grad_output.ndim)]
    return lax.pad(grad_output, jnp.zeros((), grad_output.dtype), pad)


@lower("select_backward")
def select_backward(grad_output: Array, input_sizes: Any, dim: int, index: int) -> Array:
    axis = dim % len(input_sizes)
    at = index % input_sizes[axis]
    row = jnp.expand_dims(grad_output, axis)
    pad = [(at, input_sizes[axis] - at - 1, 0) if d == axis else (0, 0, 0) for d in range(row.ndim)]
    return lax.pad(row, jnp.zeros((), row.dtype), pad)
