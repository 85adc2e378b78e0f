"""Convolutions of one to three spatial dimensions, transposed ones included, and their gradients.

Half types are convolved in float32. Gradients are the transposes of the forward convolution in each argument, as JAX
derives them: each is one convolution, and only those asked for are in the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..errors import LoweringError
from .common import Array, opmath
from .registry import lower


def _convolve(
    x: Array,
    w: Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    """`x` is (N, C, *space); `w` is (Cout, C / groups, *kernel), or (C, Cout / groups, *kernel) when transposed."""
    rank = x.ndim - 2
    stride, padding, dilation, extra = (_per_dim(v, rank) for v in (stride, padding, dilation, output_padding))
    letters = "DHW"[3 - rank :]
    numbers = (f"NC{letters}", f"OI{letters}", f"NC{letters}")
    precision = lax.Precision.HIGHEST
    if not transposed:
        return lax.conv_general_dilated(
            x,
            w,
            stride,
            [(p, p) for p in padding],
            rhs_dilation=dilation,
            dimension_numbers=numbers,
            feature_group_count=groups,
            precision=precision,
        )
    # The gradient of a convolution in its input: spread the input by the stride, convolve with the mirrored kernel.
    kernel = w.shape[2:]
    inner = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).swapaxes(1, 2)
    mirrored = jnp.flip(inner.reshape(groups * w.shape[1], w.shape[0] // groups, *kernel), range(2, 2 + rank))
    reach = [d * (k - 1) for d, k in zip(dilation, kernel)]
    return lax.conv_general_dilated(
        x,
        mirrored,
        (1,) * rank,
        [(r - p, r - p + e) for r, p, e in zip(reach, padding, extra)],
        lhs_dilation=stride,
        rhs_dilation=dilation,
        dimension_numbers=numbers,
        feature_group_count=groups,
        precision=precision,
    )


def _per_dim(values: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(values) * rank if len(values) == 1 else tuple(values)


def _wide(x: Array) -> Array:
    return x.astype(opmath(x.dtype))


@lower("convolution", "convolution_overrideable")
def convolution(
    input: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    if input.dtype != weight.dtype or (bias is not None and bias.dtype != input.dtype):
        raise LoweringError(f"a convolution of {input.dtype} and {weight.dtype}")
    y = _convolve(_wide(input), _wide(weight), stride, padding, dilation, transposed, output_padding, groups)
    if bias is not None:
        y = y + _wide(bias).reshape(-1, *([1] * (y.ndim - 2)))
    return y


def _gradient(convolve: Callable[[Array], Array], at: Array, grad: Array) -> Array:
    """The transpose of the linear function `convolve`, applied to `grad`."""
    (found,) = jax.linear_transpose(convolve, jax.ShapeDtypeStruct(at.shape, grad.dtype))(grad)
    return found


@lower("convolution_backward")
def convolution_backward(
    grad_output: Array,
    input: Array,
    weight: Array,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    grad, x, w = _wide(grad_output), _wide(input), _wide(weight)
    settings: tuple[Any, ...] = (stride, padding, dilation, transposed, output_padding, groups)
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        grad_input = _gradient(lambda v: _convolve(v, w, *settings), x, grad)
    if output_mask[1]:
        grad_weight = _gradient(lambda v: _convolve(x, v, *settings), w, grad)
    if output_mask[2]:
        grad_bias = grad.sum(axis=(0, *range(2, grad.ndim)))
    return grad_input, grad_weight, grad_bias


@lower("convolution_backward_overrideable")
def convolution_backward_overrideable(
    grad_output: Array,
    input: Array,
    weight: Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    return convolution_backward(
        grad_output, input, weight, None, stride, padding, dilation, transposed, output_padding, groups, output_mask
    )
