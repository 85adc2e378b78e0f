"""Layer, group, RMS and weight normalisation, forward and backward. Statistics are taken in the opmath type.

Gradient of ``y = (x - mean) * rstd`` over m elements (Ba, Kiros and Hinton 2016, arXiv:1607.06450, appendix)::

    dx = rstd * (dy - mean(dy) - y * mean(dy * y))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from .common import Array, opmath
from .registry import lower


def wide(x: Any, dtype: Any = None) -> Any:
    """`x` in its opmath type, or that of `dtype`; None stays None."""
    return None if x is None else x.astype(opmath(x.dtype if dtype is None else dtype))


def standardise(x: Array, axes: tuple[int, ...], eps: Any) -> tuple[Array, Array, Array]:
    """(x - mean) * rstd, mean, rstd, with the reduced axes kept as size 1."""
    mean = x.mean(axis=axes, keepdims=True)
    centred = x - mean
    rstd = lax.rsqrt((centred * centred).mean(axis=axes, keepdims=True) + jnp.asarray(eps, x.dtype))
    return centred * rstd, mean, rstd


def standardise_grad(dy: Array, y: Array, rstd: Array, axes: tuple[int, ...]) -> Array:
    return rstd * (dy - dy.mean(axis=axes, keepdims=True) - y * (dy * y).mean(axis=axes, keepdims=True))


# --- layer norm -------------------------------------------------------------------------------------------------------


def statistics_dtype(input: torch.Tensor, *parameters: torch.Tensor | None) -> torch.dtype:
    """The dtype in which CPU kernels return mean and 1/std: that of `input`, or of float32 parameters beside a half type."""
    if input.dtype not in (torch.bfloat16, torch.float16):
        return input.dtype
    return next((p.dtype for p in parameters if p is not None), input.dtype)


def _outputs(given: dict[str, Any], outs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Meta kernels give float32 statistics, as accelerators do, or those of the input's dtype."""
    dtype = statistics_dtype(given["input"], given.get("weight"), given.get("bias"))
    return outs[0], outs[1].to(dtype), outs[2].to(dtype)


@lower("native_layer_norm", corrects=_outputs)
def native_layer_norm(
    input: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: Any
) -> tuple[Array, Array, Array]:
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    y, mean, rstd = standardise(wide(input), axes, eps)
    if weight is not None:
        y = y * wide(weight)
    if bias is not None:
        y = y + wide(bias)
    return y, mean, rstd


@lower("native_layer_norm_backward")
def native_layer_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: Sequence[int],
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    first = input.ndim - len(normalized_shape)
    axes, outer = tuple(range(first, input.ndim)), tuple(range(first))
    grad, rstd = wide(grad_out), wide(rstd, input.dtype)
    y = (wide(input) - wide(mean, input.dtype)) * rstd
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        grad_input = standardise_grad(grad if weight is None else grad * wide(weight), y, rstd, axes)
    if output_mask[1] and weight is not None:
        grad_weight = (grad * y).sum(axis=outer)
    if output_mask[2] and bias is not None:
        grad_bias = grad.sum(axis=outer)
    return grad_input, grad_weight, grad_bias


# --- group norm -------------------------------------------------------------------------------------------------------


def _per_channel(x: Array, ndim: int) -> Array:
    return x.reshape(1, -1, *([1] * (ndim - 2)))


@lower("native_group_norm", corrects=_outputs)
def native_group_norm(
    input: Array, weight: Array | None, bias: Array | None, N: int, C: int, HxW: int, group: int, eps: Any
) -> tuple[Array, Array, Array]:
    x = wide(input).reshape(N, group, C // group * HxW)
    y, mean, rstd = standardise(x, (2,), eps)
    y = y.reshape(input.shape)
    if weight is not None:
        y = y * _per_channel(wide(weight), y.ndim)
    if bias is not None:
        y = y + _per_channel(wide(bias), y.ndim)
    return y, mean[..., 0], rstd[..., 0]


@lower("native_group_norm_backward")
def native_group_norm_backward(
    grad_out: Array,
    input: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    sizes = (N, group, C // group, HxW)
    per_group = (N, group, 1, 1)
    grad = wide(grad_out).reshape(sizes)
    rstd = wide(rstd, input.dtype).reshape(per_group)
    y = (wide(input).reshape(sizes) - wide(mean, input.dtype).reshape(per_group)) * rstd
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        dy = grad if weight is None else grad * wide(weight).reshape(1, group, C // group, 1)
        grad_input = standardise_grad(dy, y, rstd, (2, 3)).reshape(input.shape)
    if output_mask[1]:
        grad_weight = (grad * y).sum(axis=(0, 3)).reshape(C)
    if output_mask[2]:
        grad_bias = grad.sum(axis=(0, 3)).reshape(C)
    return grad_input, grad_weight, grad_bias


# --- RMS norm ---------------------------------------------------------------------------------------------------------


@lower("_fused_rms_norm")
def _fused_rms_norm(
    input: Array, normalized_shape: Sequence[int], weight: Array | None, eps: Any
) -> tuple[Array, Array]:
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    x = wide(input)
    if eps is None:
        eps = float(jnp.finfo(input.dtype).eps)
    rstd = lax.rsqrt((x * x).mean(axis=axes, keepdims=True) + jnp.asarray(eps, x.dtype))
    y = x * rstd
    return (y if weight is None else y * wide(weight)), rstd


@lower("_fused_rms_norm_backward")
def _fused_rms_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: Sequence[int],
    rstd: Array,
    weight: Array | None,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None]:
    first = input.ndim - len(normalized_shape)
    axes = tuple(range(first, input.ndim))
    grad, rstd = wide(grad_out), wide(rstd, input.dtype)
    y = wide(input) * rstd
    grad_input = grad_weight = None
    if output_mask[0]:
        dy = grad if weight is None else grad * wide(weight)
        grad_input = rstd * (dy - y * (dy * y).mean(axis=axes, keepdims=True))
    if output_mask[1] and weight is not None:
        grad_weight = (grad * y).sum(axis=tuple(range(first)))
    return grad_input, grad_weight


# --- weight norm ------------------------------------------------------------------------------------------------------


def _others(x: Array, dim: int) -> tuple[int, ...]:
    return tuple(d for d in range(x.ndim) if d != dim % x.ndim)


@lower("_weight_norm_interface")
def _weight_norm_interface(v: Array, g: Array, dim: int = 0) -> tuple[Array, Array]:
    x = wide(v)
    norm = jnp.sqrt((x * x).sum(axis=_others(v, dim), keepdims=True))
    return x * (wide(g) / norm), norm


@lower("_weight_norm_interface_backward")
def _weight_norm_interface_backward(
    grad_w: Array, saved_v: Array, saved_g: Array, saved_norms: Array, dim: int
) -> tuple[Array, Array]:
    """``w = g v / |v|``: Salimans and Kingma 2016, arXiv:1602.07868, equation 3."""
    grad, v, g, norm = (wide(x, grad_w.dtype) for x in (grad_w, saved_v, saved_g, saved_norms))
    grad_g = (grad * v).sum(axis=_others(v, dim), keepdims=True) / norm
    return g / norm * (grad - v * (grad_g / norm)), grad_g
