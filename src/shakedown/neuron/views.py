"""Reading and writing a strided view of a buffer, inside a program.

A buffer is one-dimensional and in storage order. Where the strides allow, reading is reshape, slice, transpose and
broadcast, which XLA folds into the consumer; otherwise it is a gather. Writing is the mirror image. A tensor that covers its
whole storage in row-major order costs a reshape, that is nothing.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import torch

from .buffer import contiguous_stride, storage_nbytes
from .dtypes import is_complex, is_float, is_integral, to_numpy

Array: TypeAlias = jax.Array


@dataclass(frozen=True, slots=True)
class View:
    """Metadata of a tensor over its buffer; strides and offset in elements of `dtype`."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    @staticmethod
    def of(tensor: torch.Tensor) -> View:
        return View(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())

    @property
    def numel(self) -> int:
        return math.prod(self.size)

    def __str__(self) -> str:
        shape = f"{str(self.dtype).removeprefix('torch.')}[{','.join(map(str, self.size))}]"
        if self.offset == 0 and self.stride == contiguous_stride(self.size):
            return shape
        return f"{shape} stride {list(self.stride)} offset {self.offset}"


@dataclass(frozen=True, slots=True)
class _Grid:
    """A view as a box in the buffer reshaped to `radices`: starts[i] <= index[i] < starts[i] + counts[i].

    ``order`` lists the view's dimensions (those with size above 1 and stride above 0) from the largest stride down.
    """

    radices: tuple[int, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def length(self) -> int:
        return math.prod(self.radices)


def _grid(view: View) -> _Grid | None:
    """The box form of `view`, or None when its strides do not nest (a gather is needed then)."""
    order = sorted(
        (d for d, (n, s) in enumerate(zip(view.size, view.stride)) if n > 1 and s != 0), key=lambda d: -view.stride[d]
    )
    steps = [view.stride[d] for d in order]
    if any(a % b for a, b in itertools.pairwise(steps)):
        return None
    radices: list[int] = []
    starts: list[int] = []
    rest = view.offset
    for i, step in enumerate(steps):
        starts.append(rest // step)
        rest %= step
        radices.append(0 if i == 0 else steps[i - 1] // step)
    counts = [view.size[d] for d in order]
    last = steps[-1] if steps else 1
    if last > 1 or not steps:  # a step above one leaves a column to choose; a single element is a box of one
        radices.append(last if steps else 0)
        starts.append(rest)
        counts.append(1)
    if any(start + count > radix for start, count, radix in list(zip(starts, counts, radices))[1:]):
        return None
    radices[0] = starts[0] + counts[0]
    return _Grid(tuple(radices), tuple(starts), tuple(counts), tuple(order))


def _bits_as(flat: Array, dtype: np.dtype[Any]) -> Array:
    """Reinterpret the bytes of a one-dimensional array as `dtype`; surplus bytes at the end are dropped."""
    if flat.dtype == dtype:
        return flat
    if flat.dtype == np.bool_:
        flat = flat.astype(np.uint8)
    if is_complex(flat.dtype):
        flat = jnp.stack([flat.real, flat.imag], axis=-1).reshape(-1)
    if is_complex(dtype):
        part = np.dtype(np.float32 if dtype == np.complex64 else np.float64)
        pairs = _bits_as(flat, part)
        pairs = pairs[: pairs.shape[0] // 2 * 2].reshape(-1, 2)
        return jax.lax.complex(pairs[:, 0], pairs[:, 1])
    target = np.dtype(np.uint8) if dtype == np.bool_ else dtype
    if flat.dtype == target:
        result = flat
    elif flat.dtype.itemsize >= target.itemsize:
        result = jax.lax.bitcast_convert_type(flat, target).reshape(-1)
    else:
        ratio = target.itemsize // flat.dtype.itemsize
        result = jax.lax.bitcast_convert_type(flat[: flat.shape[0] // ratio * ratio].reshape(-1, ratio), target)
    return (result != 0) if dtype == np.bool_ else result


def _in_pairs(view: View) -> View:
    """A complex32 `view` as one of the float16 pairs that its buffer holds."""
    return View(torch.float16, (*view.size, 2), (*(2 * s for s in view.stride), 1), 2 * view.offset)


def _pairs_of(value: Array) -> Array:
    """Complex `value` as float16[..., 2]."""
    return jnp.stack([value.real, value.imag], axis=-1).astype(np.float16)


def _from_pairs(pairs: Array) -> Array:
    wide = pairs.astype(np.float32)
    return jax.lax.complex(wide[..., 0], wide[..., 1])


def cast(value: Array, dtype: torch.dtype) -> Array:
    """`value` converted to `dtype` as PyTorch converts: complex to real keeps the real part, anything but 0 is True."""
    if dtype is torch.complex32:
        return _from_pairs(_pairs_of(value))
    target = to_numpy(dtype)
    if value.dtype == target:
        return jax.lax.convert_element_type(value, target)  # drops weak typing
    if is_complex(value.dtype) and not is_complex(target):
        value = (value != 0) if target == np.bool_ else value.real
    if is_float(value.dtype) and is_integral(target, with_bool=False):
        return _float_to_int(value, target)
    if value.dtype == np.bool_ and not is_integral(target):
        # Not a conversion: XLA would make a product with it a choice, in which 0 * inf and 0 * nan are 0.
        return jnp.where(value, jnp.ones((), target), jnp.zeros((), target))
    return value.astype(target)


def _float_to_int(value: Array, target: np.dtype[Any]) -> Array:
    """Truncation as a C++ cast on x86-64 does it: through int64 for narrow types, the minimum for what does not fit."""
    wide = value.astype(jnp.float64) if value.dtype != np.float64 else value
    inside = (wide >= -(2.0**63)) & (wide < 2.0**63)
    whole = jnp.where(inside, jnp.where(inside, wide, 0.0).astype(jnp.int64), jnp.iinfo(jnp.int64).min)
    if target == np.int32:
        fits = (wide > -(2.0**31) - 1) & (wide < 2.0**31)
        return jnp.where(fits, whole, jnp.iinfo(jnp.int32).min).astype(target)
    return whole.astype(target)


def _indices(view: View) -> Array:
    index = jnp.asarray(view.offset, dtype=jnp.int64)
    for n, s in zip(view.size, view.stride):
        index = index[..., None] + jnp.arange(n, dtype=jnp.int64) * s
    return index


def read(base: Array, view: View) -> Array:
    """The value of `view` over the one-dimensional `base`, with the view's sizes and dtype."""
    if view.dtype is torch.complex32:
        return _from_pairs(read(base, _in_pairs(view)))
    flat = _bits_as(base, to_numpy(view.dtype))
    if view.numel == 0:
        return jnp.zeros(view.size, flat.dtype)
    if view.offset == 0 and flat.shape[0] == view.numel and view.stride == contiguous_stride(view.size):
        return flat.reshape(view.size)
    grid = _grid(view)
    if grid is None:
        return flat[_indices(view)]
    box = _fit(flat, grid.length).reshape(grid.radices)
    box = jax.lax.slice(box, grid.starts, tuple(a + n for a, n in zip(grid.starts, grid.counts)))
    box = box.reshape([view.size[d] for d in grid.order])
    kept = sorted(grid.order)
    box = box.transpose([grid.order.index(d) for d in kept])
    shape = [1] * len(view.size)
    for d in kept:
        shape[d] = view.size[d]
    return jnp.broadcast_to(box.reshape(shape), view.size)


def _fit(flat: Array, length: int) -> Array:
    """`flat` cut or zero-padded to `length` elements. (A box may reach past the last element that the view touches.)"""
    if flat.shape[0] > length:
        return flat[:length]
    if flat.shape[0] < length:
        return jnp.pad(flat, (0, length - flat.shape[0]))
    return flat


def write(base: Array, view: View, value: Array) -> Array:
    """`base` with the elements of `view` replaced by `value` (which has the view's sizes)."""
    if view.dtype is torch.complex32:
        return write(base, _in_pairs(view), _pairs_of(value))
    dtype = to_numpy(view.dtype)
    value = cast(value, view.dtype)
    if view.numel == 0:
        return base
    flat = _bits_as(base, dtype)
    if flat.dtype.itemsize * flat.shape[0] != base.dtype.itemsize * base.shape[0]:
        # The buffer's length is no multiple of the view's item size: write the bytes, so that the tail survives.
        return _bits_as(_write_bytes(base, view, value), base.dtype)
    return _bits_as(_write_same(flat, view, value), base.dtype)


def _write_bytes(base: Array, view: View, value: Array) -> Array:
    item = to_numpy(view.dtype).itemsize
    raw = View(
        torch.uint8,
        (*view.size, item),
        (*(s * item for s in view.stride), 1),
        view.offset * item,
    )
    flat_value = _bits_as(value.reshape(-1), np.dtype(np.uint8)).reshape(raw.size)
    return _write_same(_bits_as(base, np.dtype(np.uint8)), raw, flat_value)


def _write_same(flat: Array, view: View, value: Array) -> Array:
    if view.offset == 0 and flat.shape[0] == view.numel and view.stride == contiguous_stride(view.size):
        return value.reshape(-1)
    grid = None if any(s == 0 and n > 1 for n, s in zip(view.size, view.stride)) else _grid(view)
    if grid is None:
        return flat.at[_indices(view)].set(value)
    dense = value.reshape([view.size[d] for d in sorted(grid.order)])
    dense = dense.transpose([sorted(grid.order).index(d) for d in grid.order]).reshape(grid.counts)
    if grid.counts == grid.radices and grid.length == flat.shape[0]:
        return dense.reshape(-1)
    box = _fit(flat, grid.length).reshape(grid.radices)
    changed = jax.lax.dynamic_update_slice(box, dense, grid.starts).reshape(-1)
    if flat.shape[0] > grid.length:
        return jnp.concatenate([changed, flat[grid.length :]])
    return changed[: flat.shape[0]]


def pack(value: Array, view: View) -> Array:
    """A fresh buffer (offset 0, just the size needed) that holds `value` in the layout of `view`."""
    if view.dtype is torch.complex32:
        return pack(_pairs_of(value), _in_pairs(view))
    dtype = to_numpy(view.dtype)
    length = storage_nbytes(view.dtype, view.size, view.stride) // dtype.itemsize
    if view.stride == contiguous_stride(view.size):
        return cast(value, view.dtype).reshape(-1)
    return write(jnp.zeros((length,), dtype), view, value)
