"""Convolutions of one to three spatial dimensions, transposed ones included, and their gradients.

The gradient of a convolution in its input is the transposed convolution and the other way round; the gradient in the
weight correlates input and output gradient, with the two exchanged when transposed (Dumoulin and Visin 2016,
arXiv:1603.07285, chapter 4). Half types are convolved in float32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from ..errors import LoweringError
from .common import Array, opmath
from .metas import meta
from .registry import lower
from .windows import UNROLLED, per_dim


@dataclass(frozen=True)
class _Geometry:
    """The numbers of a convolution. ``extra`` is the output padding of a transposed one."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    extra: tuple[int, ...]
    groups: int

    @staticmethod
    def of(
        rank: int,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        extra: Sequence[int],
        groups: int,
    ) -> _Geometry:
        steps, pads, gaps, ends = (per_dim(v, rank) for v in (stride, padding, dilation, extra))
        return _Geometry(steps, pads, gaps, ends, groups)


def _numbers(rank: int) -> tuple[str, str, str]:
    letters = "DHW"[3 - rank :]
    return f"NC{letters}", f"OI{letters}", f"NC{letters}"


def _taps(
    x: Array, kernel: Sequence[int], out: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Iterator[Array]:
    """For each tap of the kernel, the elements of the padded `x` that it meets: (N, C, *out)."""
    for tap in itertools.product(*map(range, kernel)):
        start = [t * d for t, d in zip(tap, dilation)]
        limit = [a + (n - 1) * s + 1 for a, n, s in zip(start, out, stride)]
        yield lax.slice(x, (0, 0, *start), (*x.shape[:2], *limit), (1, 1, *stride))


def _padded(x: Array, padding: Sequence[tuple[int, int]], spread: Sequence[int]) -> Array:
    config = [(0, 0, 0), (0, 0, 0), *((low, high, s - 1) for (low, high), s in zip(padding, spread))]
    return lax.pad(x, jnp.zeros((), x.dtype), config)


def _correlate(
    x: Array,
    w: Array,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    spread: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """``lax.conv_general_dilated`` with (Cout, C / groups, *kernel) weights; `spread` dilates the input."""
    rank, kernel = x.ndim - 2, w.shape[2:]
    if groups > 1 and w.shape[1] == 1 and math.prod(kernel) <= UNROLLED:
        # One input channel a group: XLA:CPU has no good kernel, and a sum of shifted products is one loop.
        ready = _padded(x, padding, spread)
        out = [(n - d * (k - 1) - 1) // s + 1 for n, d, k, s in zip(ready.shape[2:], dilation, kernel, stride)]
        per_group = w.shape[0] // groups
        weights = w.reshape(groups, per_group, -1)
        total: Array | None = None
        for i, shifted in enumerate(_taps(ready, kernel, out, stride, dilation)):
            term = shifted[:, :, None] * weights[:, :, i].reshape(groups, per_group, *([1] * rank))
            total = term if total is None else total + term
        assert total is not None
        return total.reshape(x.shape[0], w.shape[0], *out)
    return lax.conv_general_dilated(
        x,
        w,
        stride,
        padding,
        lhs_dilation=spread,
        rhs_dilation=dilation,
        dimension_numbers=_numbers(rank),
        feature_group_count=groups,
        precision=lax.Precision.HIGHEST,
    )


def _forward(x: Array, w: Array, at: _Geometry) -> Array:
    ones = (1,) * len(at.stride)
    return _correlate(x, w, at.stride, [(p, p) for p in at.padding], ones, at.dilation, at.groups)


def _transposed(x: Array, w: Array, at: _Geometry) -> Array:
    """Spread the input by the stride and convolve with the mirrored kernel; `w` is (C, Cout / groups, *kernel)."""
    kernel, groups = w.shape[2:], at.groups
    inner = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).swapaxes(1, 2)
    inner = inner.reshape(groups * w.shape[1], w.shape[0] // groups, *kernel)
    mirrored = jnp.flip(inner, range(2, w.ndim))
    reach = [d * (k - 1) for d, k in zip(at.dilation, kernel)]
    padding = [(r - p, r - p + e) for r, p, e in zip(reach, at.padding, at.extra)]
    return _correlate(x, mirrored, (1,) * len(reach), padding, at.stride, at.dilation, groups)


def _weight_gradient(x: Array, grad: Array, kernel: Sequence[int], at: _Geometry) -> Array:
    """Of :func:`_forward` with input `x` and output gradient `grad`: (Cout, C / groups, *kernel)."""
    rank, groups, out = len(kernel), at.groups, grad.shape[2:]
    # The padding that the last tap needs at the end; below 0 where the stride leaves a rest of the input unused.
    high = [
        d * (k - 1) + (n - 1) * s + 1 - p - m
        for d, k, n, s, p, m in zip(at.dilation, kernel, out, at.stride, at.padding, x.shape[2:])
    ]
    padding = list(zip(at.padding, high))
    taps = math.prod(kernel)
    if taps == 1 or (groups > 1 and taps <= UNROLLED):
        # A product for each tap, contracted over batch and space; XLA:CPU is slow at the grouped correlation.
        ready = _padded(x, padding, (1,) * rank)
        outer = grad.reshape(grad.shape[0], groups, -1, math.prod(out))
        found = []
        for shifted in _taps(ready, kernel, out, at.stride, at.dilation):
            inner = shifted.reshape(x.shape[0], groups, -1, math.prod(out))
            if inner.shape[2] == 1:
                found.append((outer * inner).sum(axis=(0, 3))[..., None])
            else:
                found.append(
                    lax.dot_general(outer, inner, (((0, 3), (0, 3)), ((1,), (1,))), precision=lax.Precision.HIGHEST)
                )
        return jnp.stack(found, axis=-1).reshape(grad.shape[1], x.shape[1] // groups, *kernel)
    letters = "DHW"[3 - rank :]
    return lax.conv_general_dilated(
        x,
        grad,
        at.dilation,
        padding,
        rhs_dilation=at.stride,
        dimension_numbers=(f"CN{letters}", f"IO{letters}", f"CN{letters}"),
        batch_group_count=groups,
        precision=lax.Precision.HIGHEST,
    )


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
    if any(p < 0 for p in padding):
        raise LoweringError(f"padding={list(padding)}")
    at = _Geometry.of(input.ndim - 2, stride, padding, dilation, output_padding, groups)
    y = (_transposed if transposed else _forward)(_wide(input), _wide(weight), at)
    if bias is not None:
        y = y + _wide(bias).reshape(-1, *([1] * (y.ndim - 2)))
    return y


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
    rank, kernel = x.ndim - 2, w.shape[2:]
    at = _Geometry.of(rank, stride, padding, dilation, output_padding, groups)
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        if transposed:
            # An output padding of a stride or more (legal below the dilation) makes windows beyond the input.
            grad_input = _forward(grad, w, at)[(..., *(slice(n) for n in x.shape[2:]))]
        else:
            # What the strides left unused at the end comes back as output padding.
            rest = tuple(
                n - ((m - 1) * s - 2 * p + d * (k - 1) + 1)
                for n, m, s, p, d, k in zip(x.shape[2:], grad.shape[2:], at.stride, at.padding, at.dilation, kernel)
            )
            grad_input = _transposed(grad, w, _Geometry(at.stride, at.padding, at.dilation, rest, groups))
    if output_mask[1]:
        grad_weight = _weight_gradient(grad, x, kernel, at) if transposed else _weight_gradient(x, grad, kernel, at)
    if output_mask[2]:
        grad_bias = grad.sum(axis=(0, *range(2, grad.ndim)))
    return grad_input, grad_weight, grad_bias


@meta("convolution_overrideable")
def _overrideable_meta(*args: Any) -> torch.Tensor:
    return torch.ops.aten.convolution(*args)


@meta("convolution_backward_overrideable")
def _overrideable_backward_meta(
    grad_output: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, *settings: Any
) -> tuple[torch.Tensor, ...]:
    channels = grad_output.shape[1]
    return torch.ops.aten.convolution_backward(grad_output, input, weight, [channels], *settings)


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
