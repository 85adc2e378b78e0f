"""Softmax in its variants, forward and backward."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .common import Array, opmath, to_numpy
from .registry import lower


def _wide(x: Array) -> Array:
    return x.astype(opmath(x.dtype))


def _along(x: Array, dim: int) -> int | None:
    """The axis of `dim`; None (all of them) where there is no dimension."""
    return dim if x.ndim else None


@lower("_softmax")
def _softmax(self: Array, dim: int, half_to_float: bool) -> Array:
    return jax.nn.softmax(_wide(self), axis=_along(self, dim))


@lower("_log_softmax")
def _log_softmax(self: Array, dim: int, half_to_float: bool) -> Array:
    return jax.nn.log_softmax(_wide(self), axis=_along(self, dim))


@lower("_safe_softmax")
def _safe_softmax(self: Array, dim: int, dtype: Any = None) -> Array:
    """Softmax that gives zeros, not NaN, for a row of -inf."""
    x = _wide(self if dtype is None else self.astype(to_numpy(dtype)))
    axis = _along(self, dim)
    empty = (x == -jnp.inf).all(axis=axis, keepdims=True)
    return jnp.where(empty, 0, jax.nn.softmax(x, axis=axis))


@lower("_softmax_backward_data")
def _softmax_backward_data(grad_output: Array, output: Array, dim: int, input_dtype: Any) -> Array:
    grad, y = _wide(grad_output), _wide(output)
    product = grad * y
    return product - y * product.sum(axis=_along(grad, dim), keepdims=True)


@lower("_log_softmax_backward_data")
def _log_softmax_backward_data(grad_output: Array, output: Array, dim: int, input_dtype: Any) -> Array:
    grad, y = _wide(grad_output), _wide(output)
    return grad - jnp.exp(y) * grad.sum(axis=_along(grad, dim), keepdims=True)


@lower("_masked_softmax")
def _masked_softmax(self: Array, mask: Array, dim: int | None = None, mask_type: int | None = None) -> Array:
    """Softmax without the elements where `mask` is True; zeros in a row without any other.

    `mask_type` 0 is a mask of [L, L] for scores of [B, H, L, L], 1 a mask of [B, L], 2 one of the scores' own sizes.
    """
    axis = -1 if dim is None else dim
    if mask.shape != self.shape:
        mask = mask[:, None, None, :] if mask_type == 1 else mask
    mask = jnp.broadcast_to(mask, self.shape)
    x = jnp.where(mask, -jnp.inf, _wide(self))
    empty = mask.all(axis=_along(self, axis), keepdims=True)
    return jnp.where(empty, 0, jax.nn.softmax(x, axis=_along(self, axis)))


@lower("_masked_softmax_backward")
def _masked_softmax_backward(grad_output: Array, output: Array, mask: Array, dim: int | None = None) -> Array:
    grad, y = _wide(grad_output), _wide(output)
    axis = _along(grad, -1 if dim is None else dim)
    mask = jnp.broadcast_to(mask, grad.shape)
    product = jnp.where(mask, 0, grad * y)
    return jnp.where(mask, 0, product - y * product.sum(axis=axis, keepdims=True))
