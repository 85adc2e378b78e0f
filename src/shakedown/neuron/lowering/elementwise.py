"""Pointwise arithmetic."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from .common import Array, computation, float_computation, number_as
from .registry import lower


@lower("add.Tensor", "add.Scalar")
def add(self: Array, other: Any, alpha: Any = 1) -> Array:
    common, (a, b) = computation(self, other)
    if isinstance(alpha, int) and alpha == 1:
        return jnp.logical_or(a, b) if common == bool else a + b
    return a + number_as(alpha, b.dtype) * b


@lower("mul.Tensor", "mul.Scalar")
def mul(self: Array, other: Any) -> Array:
    _, (a, b) = computation(self, other)
    return a * b


@lower("copy")
def copy(self: Array, src: Array, non_blocking: bool = False) -> Array:
    return jnp.broadcast_to(src, self.shape)


@lower("_to_copy")
def _to_copy(self: Array, **_: Any) -> Array:
    return self


@lower("clone")
def clone(self: Array, memory_format: Any = None) -> Array:
    return self
