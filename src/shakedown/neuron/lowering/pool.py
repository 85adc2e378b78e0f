"""Maximum and average pooling over one to three dimensions, adaptive forms and gradients included.

Indices of maxima are flat over the pooled dimensions. As on the CPU, the first of equal maxima wins, and the last NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch._prims_common import suggest_memory_format

from ..views import View
from .checks import require_index
from .common import Array, is_float, opmath
from .registry import lower
from .windows import UNROLLED, Windows, outer


def _planes(x: Array, rank: int) -> Array:
    """`x` with all but the last `rank` dimensions flattened into one."""
    return x.reshape(math.prod(x.shape[:-rank]), *x.shape[-rank:])


def _lowest(dtype: Any) -> Any:
    return -jnp.inf if is_float(dtype) else jnp.iinfo(dtype).min


def _flat(size: Sequence[int], places: Sequence[Any]) -> Any:
    index = places[0]
    for n, place in zip(size[1:], places[1:]):
        index = index * n + place
    return index


def _beats(value: Array, best: Array) -> Array:
    return (value > best) | jnp.isnan(value) if is_float(value.dtype) else value > best


# --- maximum ----------------------------------------------------------------------------------------------------------


def _max_pool(x: Array, at: Windows) -> tuple[Array, Array]:
    """(maxima, their flat indices) of (P, *size)."""
    start = np.int32(outer(at.first(), lambda a, b: a)) if len(at.size) == 1 else None
    if start is None:
        grids = np.meshgrid(*at.first(), indexing="ij")
        start = np.int32(_flat(at.size, grids))
    padded = at.padded(x, _lowest(x.dtype))
    shape = (x.shape[0], *at.out)
    best = jnp.full(shape, _lowest(x.dtype), x.dtype)
    where = jnp.broadcast_to(jnp.asarray(start), shape)
    if at.taps <= UNROLLED:
        for tap, value in at.each(padded):
            places = [
                lax.broadcasted_iota(jnp.int32, at.out, d) * s + (t * dil - p)
                for d, (t, s, p, dil) in enumerate(zip(tap, at.stride, at.padding, at.dilation))
            ]
            better = _beats(value, best)
            best = jnp.where(better, value, best)
            where = jnp.where(better, _flat(at.size, places), where)
        return best, where
    own = [lax.broadcasted_iota(jnp.int32, padded.shape[1:], d) - p for d, p in enumerate(at.padding)]
    index = jnp.broadcast_to(_flat(at.size, own), padded.shape)

    def choose(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        # Padding carries an index beyond any other, so that a real element of the lowest value is preferred to it.
        earlier = (a[0] == b[0]) & (b[1] < a[1])
        if is_float(x.dtype):
            better = jnp.where(
                jnp.isnan(a[0]), jnp.isnan(b[0]) & (b[1] > a[1]), jnp.isnan(b[0]) | (b[0] > a[0]) | earlier
            )
        else:
            better = (b[0] > a[0]) | earlier
        return jnp.where(better, b[0], a[0]), jnp.where(better, b[1], a[1])

    last = np.int32(np.iinfo(np.int32).max)
    inside = _inside(own, at.size)
    index = jnp.where(inside, index, last)
    best, where = lax.reduce_window(
        (padded, index),
        (jnp.asarray(_lowest(x.dtype), x.dtype), jnp.asarray(last)),
        choose,
        (1, *at.kernel),
        (1, *at.stride),
        "VALID",
        window_dilation=(1, *at.dilation),
    )
    return best, where


def _inside(places: Sequence[Array], size: Sequence[int]) -> Array:
    found = jnp.ones((), bool)
    for place, n in zip(places, size):
        found = found & (place >= 0) & (place < n)
    return found


def _max_pool_nd(rank: int) -> Any:
    def max_pool(
        self: Array,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        ceil_mode: bool = False,
        *,
        outputs: Sequence[View],
    ) -> tuple[Array, Array]:
        at = Windows.of(self.shape[-rank:], outputs[0].size[-rank:], kernel_size, stride, padding, dilation)
        best, where = _max_pool(_planes(self, rank), at)
        return best.reshape(outputs[0].size), where.reshape(outputs[0].size)

    return max_pool


def _scatter(values: Array, indices: Array, size: Sequence[int], *, add: bool) -> Array:
    """(P, length) values put at flat `indices` of zeros (P, *size)."""
    planes = values.shape[0]
    zeros = jnp.zeros((planes, math.prod(size)), values.dtype)
    target = zeros.at[jnp.arange(planes)[:, None], indices]
    put = target.add(values, mode="drop") if add else target.set(values, mode="drop")
    return put.reshape(planes, *size)


def _max_pool_nd_backward(rank: int) -> Any:
    def max_pool_backward(
        grad_output: Array,
        self: Array,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        indices: Array,
    ) -> Array:
        size = self.shape[-rank:]
        at = Windows.of(size, grad_output.shape[-rank:], kernel_size, stride, padding, dilation)
        grad = _planes(grad_output, rank).astype(opmath(grad_output.dtype))
        where = _planes(indices, rank).astype(jnp.int32)
        if at.tiles():  # each element has one window: compare instead of scattering
            own = _flat(size, [lax.broadcasted_iota(jnp.int32, size, d) for d in range(rank)])
            return jnp.where(at.spread(where) == own, at.spread(grad), 0).reshape(self.shape)
        flat = (grad.shape[0], -1)
        return _scatter(grad.reshape(flat), where.reshape(flat), size, add=True).reshape(self.shape)

    return max_pool_backward


lower("max_pool2d_with_indices", takes_outputs=True)(_max_pool_nd(2))
lower("max_pool3d_with_indices", takes_outputs=True)(_max_pool_nd(3))
lower("max_pool2d_with_indices_backward")(_max_pool_nd_backward(2))
lower("max_pool3d_with_indices_backward")(_max_pool_nd_backward(3))


def _in_format_of_the_input(given: dict[str, Any], out: torch.Tensor) -> torch.Tensor:
    """The meta kernel's output is row-major whatever the input's format."""
    return torch.empty_like(out, memory_format=suggest_memory_format(given["self"]))


@lower("max_unpool2d", takes_outputs=True, corrects=_in_format_of_the_input)
def max_unpool2d(self: Array, indices: Array, output_size: Sequence[int], *, outputs: Sequence[View]) -> Array:
    return _unpool(self, indices, outputs[0].size, 2)


@lower("max_unpool3d", takes_outputs=True)
def max_unpool3d(
    self: Array,
    indices: Array,
    output_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    *,
    outputs: Sequence[View],
) -> Array:
    return _unpool(self, indices, outputs[0].size, 3)


def _unpool(x: Array, indices: Array, size: tuple[int, ...], rank: int) -> Array:
    planes = math.prod(size[:-rank])
    require_index(indices, math.prod(size[-rank:]), error=RuntimeError)
    return _scatter(x.reshape(planes, -1), indices.reshape(planes, -1), size[-rank:], add=False).reshape(size)


# --- average ----------------------------------------------------------------------------------------------------------


def _divisor(at: Windows, count_include_pad: bool, divisor_override: int | None) -> np.ndarray:
    if divisor_override is not None:
        return np.asarray(divisor_override)
    return outer(at.extent(with_padding=count_include_pad))


def _quotient(x: Array, divisor: np.ndarray) -> Array:
    if is_float(x.dtype):
        return x / divisor.astype(x.dtype)
    return lax.div(x, jnp.broadcast_to(jnp.asarray(divisor, x.dtype), x.shape))


def _avg_pool_nd(rank: int) -> Any:
    def avg_pool(
        self: Array,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] | int = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
        *,
        outputs: Sequence[View],
    ) -> Array:
        size = outputs[0].size
        at = Windows.of(self.shape[-rank:], size[-rank:], kernel_size, stride, padding)
        total = at.sum(_planes(self, rank).astype(opmath(self.dtype)))
        return _quotient(total, _divisor(at, count_include_pad, divisor_override)).reshape(size)

    return avg_pool


def _avg_pool_nd_backward(rank: int) -> Any:
    def avg_pool_backward(
        grad_output: Array,
        self: Array,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Array:
        at = Windows.of(self.shape[-rank:], grad_output.shape[-rank:], kernel_size, stride, padding)
        grad = _planes(grad_output, rank).astype(opmath(grad_output.dtype))
        return at.spread(_quotient(grad, _divisor(at, count_include_pad, divisor_override))).reshape(self.shape)

    return avg_pool_backward


lower("avg_pool2d", takes_outputs=True)(_avg_pool_nd(2))
lower("avg_pool3d", takes_outputs=True)(_avg_pool_nd(3))
lower("avg_pool2d_backward")(_avg_pool_nd_backward(2))
lower("avg_pool3d_backward")(_avg_pool_nd_backward(3))


# --- adaptive ---------------------------------------------------------------------------------------------------------


def _adaptive(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of the windows that divide `size` elements into `out`, overlapping where they must."""
    o = np.arange(out)
    return o * size // out, -(-(o + 1) * size // out)


def _members(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The elements of each interval as rows of one length, and which of them are real."""
    longest = int((end - start).max(initial=1))
    index = start[:, None] + np.arange(longest)
    inside = index < end[:, None]
    return np.where(inside, index, 0), inside


def _interval_sum(x: Array, axis: int, start: np.ndarray, end: np.ndarray) -> Array:
    index, inside = _members(start, end)
    taken = jnp.take(x, index, axis=axis)
    mask = inside.reshape(*inside.shape, *([1] * (x.ndim - axis - 1)))
    return jnp.where(mask, taken, 0).sum(axis=axis + 1)


def _covering(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    """For each of `size` elements, the interval of windows that hold it."""
    start, end = _adaptive(size, out)
    i = np.arange(size)
    return np.searchsorted(end, i, side="right"), np.searchsorted(start, i, side="right")


def _adaptive_count(size: Sequence[int], out: Sequence[int]) -> np.ndarray:
    return outer([np.subtract(*_adaptive(n, o)[::-1]) for n, o in zip(size, out)])


@lower("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def _adaptive_avg_pool(self: Array, output_size: Sequence[int]) -> Array:
    rank = len(output_size)
    size = self.shape[-rank:]
    x = _planes(self, rank).astype(opmath(self.dtype))
    if all(o and n % o == 0 for n, o in zip(size, output_size)):
        split = x.reshape(x.shape[0], *(v for n, o in zip(size, output_size) for v in (o, n // o)))
        found = split.mean(axis=tuple(range(2, 2 * rank + 1, 2)))
    else:
        for axis, (n, o) in enumerate(zip(size, output_size), 1):
            x = _interval_sum(x, axis, *_adaptive(n, o))
        found = x / _adaptive_count(size, output_size).astype(x.dtype)
    return found.reshape(*self.shape[:-rank], *output_size)


def _adaptive_avg_pool_nd_backward(rank: int) -> Any:
    def adaptive_avg_pool_backward(grad_output: Array, self: Array) -> Array:
        size, out = self.shape[-rank:], grad_output.shape[-rank:]
        grad = _planes(grad_output, rank).astype(opmath(grad_output.dtype))
        grad = grad / _adaptive_count(size, out).astype(grad.dtype)
        for axis, (n, o) in enumerate(zip(size, out), 1):
            if o and n % o == 0:
                grad = jnp.repeat(grad, n // o, axis=axis)
            else:
                grad = _interval_sum(grad, axis, *_covering(n, o))
        return grad.reshape(self.shape)

    return adaptive_avg_pool_backward


lower("_adaptive_avg_pool2d_backward")(_adaptive_avg_pool_nd_backward(2))
lower("_adaptive_avg_pool3d_backward")(_adaptive_avg_pool_nd_backward(3))


def _interval_max(x: Array, where: Array, axis: int, start: np.ndarray, end: np.ndarray) -> tuple[Array, Array]:
    """Maxima over intervals of `axis` and what `where` says at them."""
    index, inside = _members(start, end)
    mask = inside.reshape(*inside.shape, *([1] * (x.ndim - axis - 1)))
    values = jnp.where(mask, jnp.take(x, index, axis=axis), _lowest(x.dtype))
    places = jnp.take(where, index, axis=axis)
    chosen = jnp.argmax(values, axis=axis + 1, keepdims=True)  # the first maximum, or the first NaN
    if is_float(x.dtype):
        length = values.shape[axis + 1]
        bad = jnp.isnan(values)
        last = length - 1 - jnp.argmax(jnp.flip(bad, axis + 1), axis=axis + 1, keepdims=True)
        chosen = jnp.where(bad.any(axis=axis + 1, keepdims=True), last, chosen)
    pick = jax.tree_util.Partial(jnp.take_along_axis, indices=chosen, axis=axis + 1)
    return pick(values).squeeze(axis + 1), pick(places).squeeze(axis + 1)


@lower("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(self: Array, output_size: Sequence[int]) -> tuple[Array, Array]:
    rank = len(output_size)
    size = self.shape[-rank:]
    x = _planes(self, rank)
    own = _flat(size, [lax.broadcasted_iota(jnp.int32, size, d) for d in range(rank)])
    where = jnp.broadcast_to(own, x.shape)
    # From the last dimension to the first: the order in which equal maxima are then met is row-major.
    for axis in range(rank, 0, -1):
        x, where = _interval_max(x, where, axis, *_adaptive(size[axis - 1], output_size[axis - 1]))
    shape = (*self.shape[:-rank], *output_size)
    return x.reshape(shape), where.reshape(shape)


def _adaptive_max_pool_nd_backward(rank: int) -> Any:
    def adaptive_max_pool_backward(grad_output: Array, self: Array, indices: Array) -> Array:
        planes = math.prod(self.shape[:-rank])
        grad = grad_output.reshape(planes, -1).astype(opmath(grad_output.dtype))
        return _scatter(grad, indices.reshape(planes, -1), self.shape[-rank:], add=True).reshape(self.shape)

    return adaptive_max_pool_backward


lower("adaptive_max_pool2d_backward")(_adaptive_max_pool_nd_backward(2))
lower("adaptive_max_pool3d_backward")(_adaptive_max_pool_nd_backward(3))
