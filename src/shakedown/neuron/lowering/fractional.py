"""Fractional max pooling (Graham, "Fractional max-pooling", 2014): windows whose places a random number decides.

The numbers are an argument, one for each plane and dimension; the windows of a dimension of `size` elements begin at
``int((i + u) * alpha) - int(u * alpha)`` with ``alpha = (size - kernel) / (out - 1)``, the last one at ``size - kernel``
(ATen/native/FractionalMaxPooling.h). The first of equal maxima wins, and the last NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from .common import Array, is_float, opmath
from .metas import meta
from .registry import lower


def _starts(u: Array, size: int, out: int, kernel: int) -> Array:
    """First elements of the windows of each plane, (P, out), with the rounding of the dtype of `u` (P,)."""
    last = jnp.full((u.shape[0], 1), size - kernel, jnp.int32)
    if out == 1:
        return last
    u = u[:, None]
    alpha = jnp.asarray(size - kernel, u.dtype) / jnp.asarray(out - 1, u.dtype)
    i = jnp.arange(out - 1).astype(u.dtype)
    begin = lax.convert_element_type((i + u) * alpha, jnp.int32) - lax.convert_element_type(u * alpha, jnp.int32)
    return jnp.concatenate([begin, last], axis=1)


def _fractional_max_pool_nd(rank: int) -> Any:
    # In two dimensions the first number is of the width, in three of the depth.
    order = (1, 0) if rank == 2 else (0, 1, 2)

    def fractional_max_pool(
        self: Array, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Array
    ) -> tuple[Array, Array]:
        """(maxima, their flat indices over the pooled dimensions)."""
        size = self.shape[-rank:]
        batch = self.shape[0] if self.ndim == rank + 2 else 1
        planes = math.prod(self.shape[:-rank])
        samples = random_samples[:batch].reshape(planes, rank)
        index = jnp.zeros((planes, *[1] * (2 * rank)), jnp.int32)
        for d, (n, out, kernel) in enumerate(zip(size, output_size, kernel_size)):
            place = _starts(samples[:, order[d]], n, out, kernel)[:, :, None] + jnp.arange(kernel)
            shape = [planes] + [1] * (2 * rank)
            shape[1 + d], shape[1 + rank + d] = out, kernel
            index = index * n + place.reshape(shape)
        index = index.reshape(planes, math.prod(output_size), math.prod(kernel_size))
        flat = self.reshape(planes, math.prod(size))
        values = jnp.take_along_axis(flat, index.reshape(planes, math.prod(index.shape[1:])), axis=1).reshape(
            index.shape
        )
        chosen = jnp.argmax(values, axis=-1, keepdims=True)
        if is_float(values.dtype):
            bad = jnp.isnan(values)
            last_bad = values.shape[-1] - 1 - jnp.argmax(bad[..., ::-1], axis=-1, keepdims=True)
            chosen = jnp.where(bad.any(axis=-1, keepdims=True), last_bad, chosen)
        shape = [*self.shape[:-rank], *output_size]
        return tuple(jnp.take_along_axis(a, chosen, axis=-1).reshape(shape) for a in (values, index))

    return fractional_max_pool


def _fractional_max_pool_nd_backward(rank: int) -> Any:
    def fractional_max_pool_backward(
        grad_output: Array, self: Array, kernel_size: Sequence[int], output_size: Sequence[int], indices: Array
    ) -> Array:
        planes = math.prod(self.shape[:-rank])
        windows = math.prod(output_size)
        grad = grad_output.reshape(planes, windows).astype(opmath(grad_output.dtype))
        zeros = jnp.zeros((planes, math.prod(self.shape[-rank:])), grad.dtype)
        return zeros.at[jnp.arange(planes)[:, None], indices.reshape(planes, windows)].add(grad).reshape(self.shape)

    return fractional_max_pool_backward


@meta("fractional_max_pool3d_backward")
def _backward_meta(grad_output: torch.Tensor, self: torch.Tensor, *rest: Any) -> torch.Tensor:
    return torch.empty_like(self, memory_format=torch.contiguous_format)


for _rank in (2, 3):
    lower(f"fractional_max_pool{_rank}d")(_fractional_max_pool_nd(_rank))
    lower(f"fractional_max_pool{_rank}d_backward")(_fractional_max_pool_nd_backward(_rank))
