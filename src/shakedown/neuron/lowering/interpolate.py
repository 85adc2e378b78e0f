"""Resampling of one to three spatial dimensions: nearest, linear, cubic, with or without antialiasing, Lanczos; and gradients.

All of them are separable and linear: along each dimension an output is a weighted sum of a few inputs whose places and
weights depend on sizes alone. Those tables are made here with numpy, in the precision that PyTorch's CPU kernels use
(aten/src/ATen/native/UpSample.h and cpu/UpSampleKernel.cpp), and a gradient uses the table turned round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from .common import Array, is_float, opmath
from .registry import lower

Table = tuple[np.ndarray, np.ndarray]  # places (out, taps), weights (out, taps)
MakeTable = Callable[[int, int, bool, float | None, Any], Table]


def _scale(size: int, out: int, align_corners: bool, factor: float | None, dtype: Any) -> Any:
    """Input steps for one output step."""
    kind = np.dtype(dtype).type
    if align_corners:
        return kind(size - 1) / kind(out - 1) if out > 1 else kind(0)
    return kind(1.0 / factor) if factor is not None and factor > 0 else kind(size) / kind(out)


def _nearest(shift: float) -> MakeTable:
    def table(size: int, out: int, align_corners: bool, factor: float | None, dtype: Any) -> Table:
        scale = _scale(size, out, False, factor, np.float32)
        at = np.floor((np.arange(out, dtype=np.float32) + np.float32(shift)) * scale).astype(np.int64)
        return np.minimum(at, size - 1)[:, None], np.ones((out, 1))

    return table


def _source(size: int, out: int, align_corners: bool, factor: float | None, dtype: Any) -> np.ndarray:
    scale = _scale(size, out, align_corners, factor, dtype)
    o = np.arange(out, dtype=dtype)
    half = np.dtype(dtype).type(0.5)
    return o * scale if align_corners else (o + half) * scale - half


def _linear(size: int, out: int, align_corners: bool, factor: float | None, dtype: Any) -> Table:
    at = np.maximum(_source(size, out, align_corners, factor, dtype), 0)
    low = np.minimum(np.floor(at).astype(np.int64), size - 1)
    part = np.clip(at - low, 0, 1)
    return np.stack([low, np.minimum(low + 1, size - 1)], 1), np.stack([1 - part, part], 1)


def _cubic(size: int, out: int, align_corners: bool, factor: float | None, dtype: Any) -> Table:
    """Keys' convolution with a = -0.75 ("Cubic convolution interpolation for digital image processing", 1981)."""
    at = _source(size, out, align_corners, factor, dtype)
    base = np.floor(at).astype(np.int64)
    t = at - base
    weights = [_keys(t + 1, -0.75), _keys(t, -0.75), _keys(1 - t, -0.75), _keys(2 - t, -0.75)]
    return np.clip(base[:, None] + np.arange(-1, 3), 0, size - 1), np.stack(weights, 1)


def _keys(x: np.ndarray, a: float) -> np.ndarray:
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _lanczos(x: np.ndarray) -> np.ndarray:
    """Lanczos' window of half-width 3 over the cardinal sine ("Lanczos-3")."""
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


def _antialiased(filter: Callable[[np.ndarray], np.ndarray], reach: int) -> MakeTable:
    """A filter of half-width `reach` stretched by the scale, as Pillow's resize does."""

    def table(size: int, out: int, align_corners: bool, factor: float | None, dtype: Any) -> Table:
        scale = float(_scale(size, out, align_corners, factor, dtype))
        support, inverse = (reach * scale, 1 / scale) if scale >= 1 else (float(reach), 1.0)
        centre = scale * (np.arange(out) + 0.5)
        first = np.maximum((centre - support + 0.5).astype(np.int64), 0)
        count = np.minimum((centre + support + 0.5).astype(np.int64), size) - first
        taps = np.arange(max(int(count.max(initial=1)), 1))
        weights = filter((taps + first[:, None] - centre[:, None] + 0.5) * inverse)
        weights = np.where(taps < count[:, None], weights, 0)
        total = weights.sum(1, keepdims=True)
        return np.minimum(first[:, None] + taps, size - 1), weights / np.where(total == 0, 1, total)

    return table


def _turned(table: Table, size: int) -> Table:
    """The transpose: for each input, the outputs that use it and with which weights; rows filled up with zeros."""
    places, weights = table
    matrix: list[dict[int, float]] = [{} for _ in range(size)]
    for o, (row, values) in enumerate(zip(places.tolist(), weights.tolist())):
        for i, w in zip(row, values):
            matrix[i][o] = matrix[i].get(o, 0.0) + w
    taps = max([len(m) for m in matrix] + [1])
    back = np.zeros((size, taps), np.int64), np.zeros((size, taps))
    for i, users in enumerate(matrix):
        for t, (o, w) in enumerate(users.items()):
            back[0][i, t], back[1][i, t] = o, w
    return back


def _apply(x: Array, axis: int, table: Table) -> Array:
    places, weights = table
    if places.shape[1] == 1 and (weights == 1).all():
        return jnp.take(x, places[:, 0], axis=axis)
    taken = jnp.take(x, places, axis=axis)
    factors = weights.astype(x.dtype).reshape(*weights.shape, *([1] * (x.ndim - axis - 1)))
    return jnp.where(factors != 0, taken * factors, 0).sum(axis=axis + 1)


def _apply_bytes(x: Array, axis: int, table: Table) -> Array:
    """As :func:`_apply`, for bytes: weights in fixed point, with as many bits as an int16 gives the largest of them.

    PyTorch has this from Pillow (aten/src/ATen/native/cpu/UpSampleKernel.cpp, ``compute_index_ranges_int16_weights``):
    places that coincide at the border count once, and each dimension's results are bytes again.
    """
    places, weights = table
    weights = np.where((places[:, :, None] == places[:, None, :]), weights[:, None, :], 0.0).sum(2)
    first = np.array([[p not in row[:i] for i, p in enumerate(row)] for row in places.tolist()]).reshape(places.shape)
    weights = np.where(first, weights, 0.0)
    largest = weights.max(initial=0.0)
    bits = next(b for b in range(23) if b == 22 or int(0.5 + largest * (1 << (b + 1))) >= 1 << 15)
    scaled = weights * (1 << bits)
    fixed = np.where(scaled < 0, scaled - 0.5, scaled + 0.5).astype(np.int32)
    taken = jnp.take(x, places, axis=axis).astype(jnp.int32)
    total = (taken * fixed.reshape(*fixed.shape, *([1] * (x.ndim - axis - 1)))).sum(axis + 1, dtype=jnp.int32)
    return jnp.clip((total + ((1 << bits) >> 1)) >> bits, 0, 255).astype(x.dtype)


def _register(name: str, rank: int, make: MakeTable, *, aligns: bool) -> None:
    """Lowerings of ``name`` and ``name_backward`` over `rank` dimensions."""
    letters = ("",) if rank == 1 else tuple(f"_{c}" for c in "dhw"[3 - rank :])
    factors = tuple(f"scales{letter}" for letter in letters)

    def read(rest: Sequence[Any], named: dict[str, Any]) -> tuple[bool, list[float | None]]:
        values = list(rest)
        align = bool(values.pop(0) if values else named.get("align_corners", False)) if aligns else False
        given = dict(zip(factors, values)) | {n: named[n] for n in factors if n in named}
        return align, [given.get(n) for n in factors]

    def forward(self: Array, output_size: Sequence[int], *rest: Any, **named: Any) -> Array:
        align, scales = read(rest, named)
        exact = make in _NEAREST
        if rank == 2 and not exact and self.dtype == np.uint8:
            for axis, out, factor in ((3, output_size[1], scales[1]), (2, output_size[0], scales[0])):
                self = _apply_bytes(self, axis, make(self.shape[axis], out, align, factor, np.float64))
            return self
        x = self if exact else self.astype(opmath(self.dtype) if is_float(self.dtype) else np.float32)
        for axis, (out, factor) in enumerate(zip(output_size, scales), 2):
            x = _apply(x, axis, make(x.shape[axis], out, align, factor, np.dtype(x.dtype) if not exact else np.float32))
        if not exact and not is_float(self.dtype):
            info = jnp.iinfo(self.dtype)
            x = jnp.clip(jnp.round(x), info.min, info.max)
        return x

    def backward(
        grad_output: Array, output_size: Sequence[int], input_size: Sequence[int], *rest: Any, **named: Any
    ) -> Array:
        align, scales = read(rest, named)
        grad = grad_output.astype(opmath(grad_output.dtype))
        for axis, (size, out, factor) in enumerate(zip(input_size[2:], output_size, scales), 2):
            grad = _apply(grad, axis, _turned(make(size, out, align, factor, np.dtype(grad.dtype)), size))
        return grad

    lower(name, static=factors)(forward)
    lower(f"{name}_backward", static=factors)(backward)


_floor, _exact = _nearest(0.0), _nearest(0.5)
_NEAREST = (_floor, _exact)
for _rank in (1, 2, 3):
    _register(f"upsample_nearest{_rank}d", _rank, _floor, aligns=False)
    _register(f"_upsample_nearest_exact{_rank}d", _rank, _exact, aligns=False)
_register("upsample_linear1d", 1, _linear, aligns=True)
_register("upsample_bilinear2d", 2, _linear, aligns=True)
_register("upsample_trilinear3d", 3, _linear, aligns=True)
_register("upsample_bicubic2d", 2, _cubic, aligns=True)
_register("_upsample_bilinear2d_aa", 2, _antialiased(_triangle, 1), aligns=True)
_register("_upsample_bicubic2d_aa", 2, _antialiased(lambda x: _keys(x, -0.5), 2), aligns=True)
if hasattr(torch.ops.aten, "_upsample_lanczos2d_aa"):  # newer than some releases that the device loads on
    _register("_upsample_lanczos2d_aa", 2, _antialiased(_lanczos, 3), aligns=True)
