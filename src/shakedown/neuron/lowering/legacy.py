"""Names that PyTorch keeps for one kernel or for older callers, of what other lowerings compute already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import torch
from jax import lax

from ..views import View
from .common import Array, computation, number_as, opmath, to_numpy
from .conv import convolution, convolution_backward
from .metas import meta
from .reduce import aminmax
from .registry import composite, lower
from .threefry import bits64

Tensor: TypeAlias = torch.Tensor


# --- convolutions by the name of their CPU kernel ---------------------------------------------------------------------


def _zeros(like: Sequence[int]) -> list[int]:
    return [0] * len(like)


def _ones(like: Sequence[int]) -> list[int]:
    return [1] * len(like)


@lower("_slow_conv2d_forward", "slow_conv3d_forward")
def slow_conv(
    self: Array,
    weight: Array,
    kernel_size: Sequence[int],
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
) -> Array:
    return slow_conv_dilated(self, weight, kernel_size, bias, stride, padding, _ones(stride))


@lower("slow_conv_dilated2d", "slow_conv_dilated3d")
def slow_conv_dilated(
    self: Array,
    weight: Array,
    kernel_size: Sequence[int],
    bias: Array | None = None,
    stride: Sequence[int] | int = 1,
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
) -> Array:
    rank = len(kernel_size)
    stride, padding, dilation = _each(stride, rank), _each(padding, rank), _each(dilation, rank)
    return _maybe_batched(self, rank, weight, bias, stride, padding, dilation, False, _zeros(stride))


@lower("slow_conv_transpose2d", "slow_conv_transpose3d")
def slow_conv_transpose(
    self: Array,
    weight: Array,
    kernel_size: Sequence[int],
    bias: Array | None = None,
    stride: Sequence[int] | int = 1,
    padding: Sequence[int] | int = 0,
    output_padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
) -> Array:
    rank = len(kernel_size)
    stride, padding, dilation = _each(stride, rank), _each(padding, rank), _each(dilation, rank)
    return _maybe_batched(self, rank, weight, bias, stride, padding, dilation, True, _each(output_padding, rank))


def _each(value: Sequence[int] | int, rank: int) -> Sequence[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def _maybe_batched(x: Array, rank: int, *rest: Any) -> Array:
    result = convolution(x if x.ndim == rank + 2 else x[None], *rest, 1)
    return result if x.ndim == rank + 2 else result[0]


@lower("_slow_conv2d_backward.output_mask")
def slow_conv_backward(
    grad_output: Array,
    self: Array,
    weight: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    same = (stride, padding, _ones(stride), False, _zeros(stride), 1)
    return convolution_backward(grad_output, self, weight, [weight.shape[0]], *same, output_mask)


@meta("_slow_conv2d_backward.output_mask")
def _slow_conv_backward_meta(
    grad_output: Tensor, self: Tensor, weight: Tensor, kernel_size: Any, stride: Any, padding: Any, output_mask: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    made = (self.new_empty(self.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape[:1]))
    return tuple(m if wanted else None for m, wanted in zip(made, output_mask))  # type: ignore[return-value]


def _convolution_meta(x: Tensor, weight: Tensor, bias: Any, *rest: Any) -> Tensor:
    batched = x.dim() == weight.dim()
    made = torch.ops.aten.convolution(x if batched else x[None], weight, bias, *rest, 1)
    return x.new_empty(made.shape if batched else made.shape[1:])


@meta("_slow_conv2d_forward", "slow_conv3d_forward")
def _slow_conv_meta(self: Tensor, weight: Tensor, kernel_size: Any, bias: Any, stride: Any, padding: Any) -> Tensor:
    return _convolution_meta(self, weight, bias, stride, padding, _ones(stride), False, _zeros(stride))


@meta("slow_conv_dilated2d", "slow_conv_dilated3d")
def _slow_conv_dilated_meta(
    self: Tensor,
    weight: Tensor,
    kernel_size: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
) -> Tensor:
    rank = len(kernel_size)
    stride, padding, dilation = (_each(v, rank) for v in (stride, padding, dilation))
    return _convolution_meta(self, weight, bias, stride, padding, dilation, False, _zeros(stride))


@meta("slow_conv_transpose3d")
def _slow_conv_transpose_meta(
    self: Tensor,
    weight: Tensor,
    kernel_size: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
) -> Tensor:
    rank = len(kernel_size)
    stride, padding, more, dilation = (_each(v, rank) for v in (stride, padding, output_padding, dilation))
    return _convolution_meta(self, weight, bias, stride, padding, dilation, True, more)


# --- matrices ---------------------------------------------------------------------------------------------------------


@lower("_int_mm")
def _int_mm(self: Array, mat2: Array) -> Array:
    """Product of int8 matrices, summed in int32."""
    return lax.dot(self, mat2, preferred_element_type=jnp.int32)


@meta("_compute_linear_combination")
def _linear_combination_meta(input: Tensor, coefficients: Tensor) -> Tensor:
    return input.new_empty((coefficients.shape[0], *input.shape[1:]))


@lower("_compute_linear_combination")
def _compute_linear_combination(input: Array, coefficients: Array) -> Array:
    """Sums of the slices ``input[i]``, one for each row of `coefficients`."""
    return jnp.tensordot(coefficients, input, axes=1, precision=lax.Precision.HIGHEST)


@meta("_transform_bias_rescale_qkv")
def _qkv_meta(qkv: Tensor, qkv_bias: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, width = qkv.shape
    size = (3, batch, num_heads, length, width // 3 // num_heads)
    q, k, v = qkv.new_empty(size).unbind(0)
    return q, k, v


@lower("_transform_bias_rescale_qkv")
def _transform_bias_rescale_qkv(qkv: Array, qkv_bias: Array, num_heads: int) -> tuple[Array, Array, Array]:
    """Projections (B, T, 3 * D) and their bias as queries, over the root of a head's width, keys and values (B, H, T, W)."""
    batch, length, width = qkv.shape
    wide = opmath(qkv.dtype)
    x = (qkv.astype(wide) + qkv_bias.astype(wide)).reshape(batch, length, 3, num_heads, width // 3 // num_heads)
    q, k, v = jnp.moveaxis(x, (2, 3), (0, 2))
    return q / jnp.sqrt(jnp.asarray(q.shape[-1], wide)), k, v


# --- pointwise --------------------------------------------------------------------------------------------------------


@meta("_add_relu.Tensor", "_add_relu.Scalar")
def _add_relu_meta(self: Tensor, other: Any, alpha: Any = 1) -> Tensor:
    return torch.add(self, other, alpha=alpha)


@lower("_add_relu.Tensor", "_add_relu.Scalar")
def _add_relu(self: Array, other: Any, alpha: Any = 1) -> Array:
    _, (a, b) = computation(self, other)
    total = a + number_as(alpha, a.dtype) * b
    return jnp.where(total < 0, 0, total)  # NaN stays


@composite("__ilshift__.Tensor", "__ilshift__.Scalar")
def _ilshift(self: Tensor, other: Any) -> Tensor:
    return self.copy_(self << other)


@composite("__irshift__.Tensor", "__irshift__.Scalar")
def _irshift(self: Tensor, other: Any) -> Tensor:
    return self.copy_(self >> other)


@meta("_aminmax", "_aminmax.dim")
def _aminmax_meta(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    return torch.ops.aten.aminmax(self, dim=dim, keepdim=keepdim)


lower("_aminmax", "_aminmax.dim")(aminmax)


# --- tensors and their memory -----------------------------------------------------------------------------------------


@composite("is_set_to")
def _is_set_to(self: Tensor, tensor: Tensor) -> bool:
    """Whether both show the same memory in the same way."""

    def place(t: Tensor) -> Any:
        return id(t.untyped_storage()), t.dtype, t.shape, t.stride(), t.storage_offset()

    return place(self) == place(tensor)


@composite("_lazy_clone")
def _lazy_clone(self: Tensor) -> Tensor:
    return self.clone()  # values are never overwritten here, so that a clone is a reference


# --- factories that write their result --------------------------------------------------------------------------------


@lower("range.out", static=("start", "end", "step"), takes_outputs=True)
def range_out(start: Any, end: Any, step: Any = 1, *, outputs: Sequence[View]) -> Array:
    dtype = to_numpy(outputs[0].dtype)
    return number_as(start, dtype) + jnp.arange(outputs[0].size[0]).astype(dtype) * number_as(step, dtype)


@lower("randperm.generator_out", random=True)
def randperm_out(n: int, *, key: Array, **_: Any) -> Array:
    return jnp.argsort(bits64(key, (n,)), stable=False)
