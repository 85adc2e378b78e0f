"""Histograms with edges, of one dimension and of several (aten/src/ATen/native/Histogram.cpp says what they hold).

An element belongs to the last bin whose left edge it reaches; the right end belongs to the last bin. Elements outside, and
NaN, are in none. Bins given as numbers divide the range, or what the data spans, into equal parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import torch

from .checks import require
from .common import Array, number_as, opmath
from .create import _even_steps
from .metas import meta
from .registry import lower

Tensor: TypeAlias = torch.Tensor


# --- on arrays --------------------------------------------------------------------------------------------------------


def _edges(points: Array, bins: Sequence[int], limits: Sequence[Any] | None) -> list[Array]:
    """Evenly spaced edges for each column of `points` (M, N), `limits` being (low, high) of one column after the other."""
    dtype = points.dtype
    found = []
    for d, count in enumerate(bins):
        if limits is not None:
            low, high = (number_as(v, jnp.float64) for v in limits[2 * d : 2 * d + 2])
        elif points.shape[0]:
            low, high = (f(points[:, d]).astype(jnp.float64) for f in (jnp.min, jnp.max))
        else:
            low, high = jnp.float64(0), jnp.float64(1)
        require(jnp.isfinite(low) & jnp.isfinite(high), RuntimeError, "histogram of a range that is not finite")
        require(low <= high, RuntimeError, "histogram with max below min")
        spread = jnp.where(low == high, 0.5, 0.0)
        found.append(_even_steps(low - spread, high + spread, count + 1, dtype, opmath(dtype)).astype(dtype))
    return found


def _counts(points: Array, edges: Sequence[Array], weight: Array | None, density: bool) -> Array:
    """How many of `points` (M, N), or which weight of them, each box holds."""
    shape = [e.shape[0] - 1 for e in edges]
    inside, box = jnp.ones(points.shape[0], bool), jnp.zeros(points.shape[0], jnp.int64)
    for d, edge in enumerate(edges):
        x = points[:, d]
        inside = inside & (x >= edge[0]) & (x <= edge[-1])
        box = box * shape[d] + jnp.clip(jnp.searchsorted(edge, x, side="right") - 1, 0, shape[d] - 1)
    size = math.prod(shape)
    each = jnp.ones((), opmath(points.dtype)) if weight is None else weight.reshape(-1)
    total = jnp.zeros(size, opmath(points.dtype)).at[jnp.where(inside, box, size)].add(each, mode="drop")
    total = total.reshape(shape)
    if density:
        total = total / total.sum()
        for d, edge in enumerate(edges):
            total = total / jnp.diff(edge).reshape([-1 if e == d else 1 for e in range(len(edges))])
    return total


def _columns(self: Array) -> Array:
    return self.reshape(-1, self.shape[-1])


# --- sizes and what PyTorch refuses -----------------------------------------------------------------------------------


def _refuse_unless(holds: bool) -> None:
    """Sizes or dtypes that do not fit: whoever plans the call asks the CPU kernel, which says what is wrong."""
    if not holds:
        raise RuntimeError("arguments of a histogram that do not fit")


def _check(self: Tensor, sizes: Sequence[int], weight: Tensor | None, span: Any, *, given: bool) -> None:
    _refuse_unless(self.dtype in (torch.float32, torch.float64) or (given and self.is_floating_point()))
    _refuse_unless(self.dim() >= 2 and len(sizes) == self.shape[-1] and all(n > 0 for n in sizes))
    _refuse_unless(span is None or len(span) == 2 * self.shape[-1])
    if weight is not None:
        _refuse_unless(weight.dtype == self.dtype and (weight.shape or (1,)) == self.shape[:-1])


def _flat(self: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return self.reshape(-1, 1), None if weight is None else weight.reshape(-1)


@meta("histogram.bin_ct")
def _histogram_meta(
    self: Tensor, bins: int = 100, *, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    points, weights = _flat(self, weight)
    _check(points, [bins], weights, range, given=range is not None)
    return self.new_empty(bins), self.new_empty(bins + 1)


@meta("histogram.bins_tensor")
def _histogram_of_edges_meta(
    self: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    points, weights = _flat(self, weight)
    _refuse_unless(bins.dim() == 1 and bins.dtype == self.dtype)
    _check(points, [bins.shape[0] - 1], weights, None, given=True)
    return self.new_empty(bins.shape[0] - 1), torch.empty_like(bins, memory_format=torch.contiguous_format)


@meta("_histogramdd_bin_edges")
def _histogramdd_edges_meta(
    self: Tensor, bins: Sequence[int], *, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> list[Tensor]:
    _check(self, bins, weight, range, given=range is not None)
    return [self.new_empty(n + 1) for n in bins]


@meta("_histogramdd_from_bin_cts")
def _histogramdd_meta(
    self: Tensor, bins: Sequence[int], *, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    _check(self, bins, weight, range, given=range is not None)
    return self.new_empty(list(bins))


@meta("_histogramdd_from_bin_tensors")
def _histogramdd_of_edges_meta(
    self: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    _refuse_unless(all(b.dim() == 1 and b.dtype == self.dtype for b in bins))
    sizes = [b.shape[0] - 1 for b in bins]
    _check(self, sizes, weight, None, given=True)
    return self.new_empty(sizes)


# --- lowerings --------------------------------------------------------------------------------------------------------


@lower("histogram.bin_ct")
def histogram(
    self: Array, bins: int = 100, *, range: Any = None, weight: Array | None = None, density: bool = False
) -> tuple[Array, Array]:
    """(counts (bins,), edges (bins + 1,))."""
    points = self.reshape(-1, 1)
    edges = _edges(points, [bins], range)
    return _counts(points, edges, weight, density), edges[0]


@lower("histogram.bins_tensor")
def histogram_of_edges(
    self: Array, bins: Array, *, weight: Array | None = None, density: bool = False
) -> tuple[Array, Array]:
    return _counts(self.reshape(-1, 1), [bins], weight, density), bins


@lower("_histogramdd_bin_edges")
def histogramdd_edges(self: Array, bins: Sequence[int], *, range: Any = None, **_: Any) -> list[Array]:
    """One array of edges for each number in `bins`."""
    return _edges(_columns(self), bins, range)


@lower("_histogramdd_from_bin_cts")
def histogramdd(
    self: Array, bins: Sequence[int], *, range: Any = None, weight: Array | None = None, density: bool = False
) -> Array:
    """Counts, of the sizes `bins`."""
    points = _columns(self)
    return _counts(points, _edges(points, bins, range), weight, density)


@lower("_histogramdd_from_bin_tensors")
def histogramdd_of_edges(
    self: Array, bins: Sequence[Array], *, weight: Array | None = None, density: bool = False
) -> Array:
    return _counts(_columns(self), bins, weight, density)
