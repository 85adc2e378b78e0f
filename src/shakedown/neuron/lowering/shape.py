"""Operators that move elements about: joining, flipping, repeating, padding, cutting into patches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..views import View
from .checks import extreme, require_fits
from .common import Array, cast, number_as, opmath
from .registry import lower


def transposed(forward: Callable[[Array], Array], like: Array | jax.ShapeDtypeStruct, grad: Array) -> Array:
    """The gradient of the linear function `forward` at an input of the sizes of `like`, in float32 for half types."""
    wide = opmath(grad.dtype)
    if grad.size == 0 or math.prod(like.shape) == 0:
        return jnp.zeros(like.shape, wide)
    shape = jax.ShapeDtypeStruct(like.shape, wide)
    return jax.linear_transpose(forward, shape)(grad.astype(wide))[0]


@lower("cat", takes_outputs=True)
def cat(tensors: list[Array], dim: int = 0, outputs: tuple[View, ...] = ()) -> Array:
    # An empty vector joins tensors of any sizes, for history's sake.
    ndim = len(outputs[0].size)
    parts = [cast(t, outputs[0].dtype) for t in tensors if t.ndim == ndim and (t.shape != (0,) or ndim == 1)]
    return lax.concatenate(parts, dim % ndim) if parts else cast(tensors[0], outputs[0].dtype)


@lower("stack", "_stack", takes_outputs=True)
def stack(tensors: list[Array], dim: int = 0, outputs: tuple[View, ...] = ()) -> Array:
    return jnp.stack([cast(t, outputs[0].dtype) for t in tensors], dim % len(outputs[0].size))


@lower("flip")
def flip(self: Array, dims: list[int]) -> Array:
    return lax.rev(self, [d % self.ndim for d in dims]) if self.ndim else self


@lower("roll")
def roll(self: Array, shifts: list[int], dims: Any = ()) -> Array:
    if not dims:
        return jnp.roll(self.reshape(-1), shifts[0]).reshape(self.shape)
    return jnp.roll(self, tuple(shifts), tuple(dims))


@lower("repeat")
def repeat(self: Array, repeats: list[int]) -> Array:
    return jnp.tile(self, tuple(repeats)) if repeats else self


def _band(self: Array) -> Array:
    """column - row of each element of the last two dimensions."""
    shape = self.shape[-2:]
    return lax.broadcasted_iota(jnp.int32, shape, 1) - lax.broadcasted_iota(jnp.int32, shape, 0)


@lower("tril")
def tril(self: Array, diagonal: int = 0) -> Array:
    return jnp.where(_band(self) <= diagonal, self, jnp.zeros((), self.dtype))


@lower("triu")
def triu(self: Array, diagonal: int = 0) -> Array:
    return jnp.where(_band(self) >= diagonal, self, jnp.zeros((), self.dtype))


@lower("block_diag", takes_outputs=True)
def block_diag(tensors: list[Array], outputs: tuple[View, ...]) -> Array:
    width = outputs[0].size[1]
    zero = cast(jnp.zeros((), bool), outputs[0].dtype)
    rows, left = [], 0
    for tensor in tensors:
        block = cast(jnp.atleast_2d(tensor), outputs[0].dtype)
        rows.append(lax.pad(block, zero, ((0, 0, 0), (left, width - left - block.shape[1], 0))))
        left += block.shape[1]
    return lax.concatenate(rows, 0)


@lower("pixel_shuffle")
def pixel_shuffle(self: Array, upscale_factor: int) -> Array:
    *batch, channels, height, width = self.shape
    r, n = upscale_factor, len(batch)
    x = self.reshape(*batch, channels // (r * r), r, r, height, width)
    x = x.transpose(*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return x.reshape(*batch, channels // (r * r), height * r, width * r)


@lower("pixel_unshuffle")
def pixel_unshuffle(self: Array, downscale_factor: int) -> Array:
    *batch, channels, height, width = self.shape
    r, n = downscale_factor, len(batch)
    x = self.reshape(*batch, channels, height // r, r, width // r, r)
    x = x.transpose(*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return x.reshape(*batch, channels * r * r, height // r, width // r)


@lower("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(self: Array, groups: int) -> Array:
    batch, channels, *rest = self.shape
    x = self.reshape(batch, groups, channels // groups, *rest)
    return jnp.swapaxes(x, 1, 2).reshape(self.shape)


@lower("_chunk_cat", takes_outputs=True)
def _chunk_cat(tensors: list[Array], dim: int, num_chunks: int, outputs: tuple[View, ...]) -> Array:
    parts = []
    for tensor in tensors:
        axis = dim % tensor.ndim
        length = tensor.shape[axis]
        each = -(-length // num_chunks)
        widths = [(0, each * num_chunks - length if d == axis else 0) for d in range(tensor.ndim)]
        filled = jnp.pad(cast(tensor, outputs[0].dtype), widths)
        parts.append(filled.reshape(*tensor.shape[:axis], num_chunks, -1))
    return lax.concatenate(parts, parts[0].ndim - 1)


# --- padding ----------------------------------------------------------------------------------


def _pairs(pad: Any, ndim: int) -> list[tuple[int, int]]:
    """PyTorch's padding list (last dimension first) as (before, after) of each dimension."""
    given = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    return [(0, 0)] * (ndim - len(given)) + given[::-1]


@lower("constant_pad_nd", static={"value": extreme})
def constant_pad_nd(self: Array, pad: list[int], value: Any = 0) -> Array:
    require_fits(value, self.dtype)
    fill = number_as(value, self.dtype)
    return lax.pad(self, fill, [(before, after, 0) for before, after in _pairs(pad, self.ndim)])


def _cropped(x: Array, axis: int, before: int, after: int) -> Array:
    """`x` without what negative padding removes."""
    return lax.slice_in_dim(x, max(-before, 0), x.shape[axis] - max(-after, 0), axis=axis)


def _reflect(x: Array, pad: Any) -> Array:
    for axis, (before, after) in enumerate(_pairs(pad, x.ndim)):
        length, parts = x.shape[axis], [x]
        if before > 0:
            parts.insert(0, lax.rev(lax.slice_in_dim(x, 1, before + 1, axis=axis), (axis,)))
        if after > 0:
            parts.append(lax.rev(lax.slice_in_dim(x, length - 1 - after, length - 1, axis=axis), (axis,)))
        x = lax.concatenate(parts, axis) if len(parts) > 1 else x
        x = _cropped(x, axis, before, after)
    return x


def _replicate(x: Array, pad: Any) -> Array:
    for axis, (before, after) in enumerate(_pairs(pad, x.ndim)):
        length, parts = x.shape[axis], [x]

        def edge(start: int, count: int, x: Array = x, axis: int = axis) -> Array:
            shape = [count if d == axis else n for d, n in enumerate(x.shape)]
            return jnp.broadcast_to(lax.slice_in_dim(x, start, start + 1, axis=axis), shape)

        if before > 0:
            parts.insert(0, edge(0, before))
        if after > 0:
            parts.append(edge(length - 1, after))
        x = lax.concatenate(parts, axis) if len(parts) > 1 else x
        x = _cropped(x, axis, before, after)
    return x


for _name, _fn in (("reflection", _reflect), ("replication", _replicate)):
    for _n in (1, 2, 3):

        def _pad(self: Array, padding: list[int], fn: Callable[..., Array] = _fn) -> Array:
            return fn(self, padding)

        def _pad_backward(grad_output: Array, self: Array, padding: list[int], fn: Callable[..., Array] = _fn) -> Array:
            return transposed(lambda x: fn(x, padding), self, grad_output)

        lower(f"{_name}_pad{_n}d")(_pad)
        lower(f"{_name}_pad{_n}d_backward")(_pad_backward)


# --- patches ----------------------------------------------------------------------------------


def windows(x: Array, axis: int, size: int, step: int) -> Array:
    """The windows of `size` elements, `step` apart, along `axis`; their elements become the last dimension."""
    if x.ndim == 0:
        return jnp.broadcast_to(x, (size,))
    count = (x.shape[axis] - size) // step + 1
    if size == step:
        cut = lax.slice_in_dim(x, 0, count * size, axis=axis)
        return jnp.moveaxis(cut.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :]), axis + 1, -1)
    index = np.arange(count)[:, None] * step + np.arange(size)
    return jnp.moveaxis(jnp.take(x, index, axis, mode="clip"), axis + 1, -1)


@lower("unfold_backward")
def unfold_backward(grad_in: Array, input_sizes: list[int], dim: int, size: int, step: int) -> Array:
    like = jax.ShapeDtypeStruct(tuple(input_sizes), grad_in.dtype)
    axis = dim % max(len(input_sizes), 1)
    return transposed(lambda x: windows(x, axis, size, step), like, grad_in)


def _columns(x: Array, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Array:
    """The patches of `x` [N, C, H, W] as columns [N, C * kernel elements, positions]."""
    x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), (0, 0, 0), *((p, p, 0) for p in padding)))
    batch, channels, *space = x.shape
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, k, d, s in zip(space, kernel, dilation, stride)]
    taps = []
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            start = (0, 0, i * dilation[0], j * dilation[1])
            stop = [b + (n - 1) * s + 1 for b, n, s in zip(start[2:], counts, stride)]
            taps.append(lax.slice(x, start, (batch, channels, *stop), (1, 1, *stride)))
    return jnp.stack(taps, 2).reshape(batch, channels * math.prod(kernel), math.prod(counts))


@lower("im2col")
def im2col(self: Array, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Array:
    x = self if self.ndim == 4 else self[None]
    columns = _columns(x, kernel_size, dilation, padding, stride)
    return columns if self.ndim == 4 else columns[0]


@lower("col2im")
def col2im(self: Array, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Array:
    columns = self if self.ndim == 3 else self[None]
    channels = columns.shape[1] // math.prod(kernel_size)
    like = jax.ShapeDtypeStruct((columns.shape[0], channels, *output_size), columns.dtype)
    image = transposed(lambda x: _columns(x, kernel_size, dilation, padding, stride), like, columns)
    return image if self.ndim == 3 else image[0]
