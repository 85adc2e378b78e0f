"""Activation functions and their gradients, after ATen/native/cpu/Activation.cpp."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from .checks import extreme, require_fits
from .common import Array, computation, float_computation, is_complex, number_as
from .compare import clamp
from .metas import meta
from .pointwise import common_values, float_values
from .registry import lower
from .threefry import uniform


def _numbers(x: Array, *values: Any) -> tuple[Array, ...]:
    """Hyperparameters in the precision that `x` is computed in."""
    return tuple(number_as(v, x.dtype) for v in values)


# --- rectifiers -------------------------------------------------------------------------------------------------------


@lower("relu")
def relu(self: Array) -> Array:
    return jnp.maximum(self, jnp.zeros((), self.dtype))


@lower("threshold", static={"threshold": extreme, "value": extreme})
def threshold(self: Array, threshold: Any, value: Any) -> Array:
    _, (x,) = computation(self)
    require_fits(threshold, self.dtype)
    require_fits(value, self.dtype)
    t, v = _numbers(x, threshold, value)
    return jnp.where(x <= t, v, x)


@lower("threshold_backward")
def threshold_backward(grad_output: Array, self: Array, threshold: Any) -> Array:
    _, (g, x) = computation(grad_output, self)
    return jnp.where(x <= number_as(threshold, x.dtype), 0, g)


@lower("leaky_relu")
def leaky_relu(self: Array, negative_slope: Any = 0.01) -> Array:
    _, (x,) = computation(self)
    return jnp.where(x > 0, x, x * number_as(negative_slope, x.dtype))


@lower("leaky_relu_backward")
def leaky_relu_backward(grad_output: Array, self: Array, negative_slope: Any, self_is_result: bool) -> Array:
    _, (g, x) = computation(grad_output, self)
    return jnp.where(x > 0, g, g * number_as(negative_slope, x.dtype))


@lower("_prelu_kernel")
def prelu(self: Array, weight: Array) -> Array:
    _, (x, w) = computation(self, weight)
    return jnp.where(x > 0, x, w * x)


@lower("_prelu_kernel_backward")
def prelu_backward(grad_output: Array, self: Array, weight: Array) -> tuple[Array, Array]:
    _, (g, x, w) = computation(grad_output, self, weight)
    return jnp.where(x > 0, g, w * g), jnp.where(x > 0, 0, x * g)


def _rrelu(self: Array, lower: Any, upper: Any, training: bool, key: Array) -> tuple[Array, Array | None]:
    """(result, slopes that were drawn: 1 for positive elements)."""
    _, (x,) = computation(self)
    low, high = _numbers(x, lower, upper)
    if not training:
        return leaky_relu(self, (low + high) / 2), None
    drawn = uniform(key, self.shape, x.dtype) * (high - low) + low
    noise = jnp.where(x <= 0, drawn, 1)
    return x * noise, noise


@lower("rrelu_with_noise", "rrelu_with_noise_", "rrelu_with_noise_functional", random=True)
def rrelu(
    self: Array, noise: Array, lower: Any = 1 / 8, upper: Any = 1 / 3, training: bool = False, *, key: Array
) -> tuple[Array, Array]:
    value, drawn = _rrelu(self, lower, upper, training, key)
    return value, noise if drawn is None else drawn


@lower("rrelu_with_noise_backward")
def rrelu_backward(
    grad_output: Array, self: Array, noise: Array, lower: Any, upper: Any, training: bool, self_is_result: bool
) -> Array:
    _, (g, x, n) = computation(grad_output, self, noise)
    if training:
        return n * g
    low, high = _numbers(g, lower, upper)
    return jnp.where(x > 0, g, g * ((low + high) / 2))


# --- exponential units ------------------------------------------------------------------------------------------------


@lower("elu")
def elu(self: Array, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Array:
    _, (x,) = float_computation(self)
    a, s, i = _numbers(x, alpha, scale, input_scale)
    return jnp.where(x <= 0, jnp.expm1(x * i) * (a * s), x * s)


@lower("elu_backward")
def elu_backward(
    grad_output: Array, alpha: Any, scale: Any, input_scale: Any, is_result: bool, self_or_result: Array
) -> Array:
    _, (g, x) = computation(grad_output, self_or_result)
    a, s, i = _numbers(x, alpha, scale, input_scale)
    slope = i * (x + a * s) if is_result else i * (a * s) * jnp.exp(x * i)
    return jnp.where(x > 0, g * s, g * slope)


@lower("celu", refuses={"alpha": lambda v: v == 0})
def celu(self: Array, alpha: Any = 1.0) -> Array:
    return elu(self, alpha, 1, 1 / number_as(alpha, jnp.float64))


@lower("gelu")
def gelu(self: Array, approximate: str = "none") -> Array:
    _, (x,) = computation(self)
    if approximate == "tanh":
        return 0.5 * x * (1 + jnp.tanh(_gelu_inner(x)))
    return x * 0.5 * (1 + lax.erf(x * math.sqrt(0.5)))


def _gelu_inner(x: Array) -> Array:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))


@lower("gelu_backward")
def gelu_backward(grad_output: Array, self: Array, approximate: str = "none") -> Array:
    _, (g, x) = computation(grad_output, self)
    if approximate == "tanh":
        t = jnp.tanh(_gelu_inner(x))
        inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * (x * x))
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner)
    cdf = 0.5 * (1 + lax.erf(x * math.sqrt(0.5)))
    pdf = jnp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return g * (cdf + x * pdf)


@lower("silu")
def silu(self: Array) -> Array:
    _, (x,) = float_computation(self)
    return x / (1 + jnp.exp(-x))


@lower("silu_backward")
def silu_backward(grad_output: Array, self: Array) -> Array:
    _, (g, x) = computation(grad_output, self)
    s = jax.nn.sigmoid(x)
    return g * s * (1 + x * (1 - s))


@lower("mish")
def mish(self: Array) -> Array:
    _, (x,) = float_computation(self)
    return x * jnp.tanh(jnp.log1p(jnp.exp(x)))


@lower("mish_backward")
def mish_backward(grad_output: Array, self: Array) -> Array:
    _, (g, x) = computation(grad_output, self)
    t = jnp.tanh(jnp.log1p(jnp.exp(x)))
    return g * (t + x * jax.nn.sigmoid(x) * (1 - t * t))


@lower("softplus")
def softplus(self: Array, beta: Any = 1, threshold: Any = 20) -> Array:
    _, (x,) = float_computation(self)
    b, t = _numbers(x, beta, threshold)
    return jnp.where(x * b > t, x, jnp.log1p(jnp.exp(x * b)) / b)


@lower("softplus_backward")
def softplus_backward(grad_output: Array, self: Array, beta: Any, threshold: Any) -> Array:
    _, (g, x) = computation(grad_output, self)
    b, t = _numbers(x, beta, threshold)
    z = jnp.exp(x * b)
    return jnp.where(x * b > t, g, g * z / (z + 1))


@lower("log_sigmoid_forward", takes_outputs=True)
def log_sigmoid(self: Array, outputs: Any) -> tuple[Array, Array]:
    """The second value, ``exp(-|x|)``, is what ATen keeps for the gradient on the CPU; other devices keep nothing."""
    _, (x,) = computation(self)
    kept = jnp.exp(-jnp.abs(x))
    return jnp.minimum(x, 0) - jnp.log1p(kept), kept if math.prod(outputs[1].size) else jnp.zeros(
        outputs[1].size, x.dtype
    )


@lower("log_sigmoid_backward")
def log_sigmoid_backward(grad_output: Array, self: Array, buffer: Array) -> Array:
    _, (g, x) = computation(grad_output, self)
    kept = number_as(buffer, x.dtype) if buffer.size == x.size else jnp.exp(-jnp.abs(x))
    share = kept / (1 + kept)
    return g * jnp.where(x < 0, 1 - share, share)


# --- gates that are piecewise linear ----------------------------------------------------------------------------------


@lower("hardtanh")
def hardtanh(self: Array, min_val: Any = -1, max_val: Any = 1) -> Array:
    low, high = _numbers(self, min_val, max_val)
    return clamp(self, low, high)


@lower("hardtanh_backward")
def hardtanh_backward(grad_output: Array, self: Array, min_val: Any, max_val: Any) -> Array:
    _, (g, x) = computation(grad_output, self)
    low, high = _numbers(x, min_val, max_val)
    return jnp.where((x > low) & (x < high), g, 0)


def _relu6_of_shifted(x: Array) -> Array:
    return jnp.minimum(jnp.maximum(x + 3, 0), 6)


@lower("hardswish")
def hardswish(self: Array) -> Array:
    _, (x,) = computation(self)
    return x * _relu6_of_shifted(x) / 6


@lower("hardswish_backward")
def hardswish_backward(grad_output: Array, self: Array) -> Array:
    _, (g, x) = computation(grad_output, self)
    return jnp.where(x <= -3, 0, jnp.where(x >= 3, g, g * (x / 3 + 0.5)))


@lower("hardsigmoid")
def hardsigmoid(self: Array) -> Array:
    _, (x,) = computation(self)
    return _relu6_of_shifted(x) / 6


@lower("hardsigmoid_backward")
def hardsigmoid_backward(grad_output: Array, self: Array) -> Array:
    _, (g, x) = computation(grad_output, self)
    return jnp.where((x > -3) & (x < 3), g / 6, 0)


@lower("softshrink", refuses={"lambd": lambda v: not 0 <= v <= 3.4e38})
def softshrink(self: Array, lambd: Any = 0.5) -> Array:
    _, (x,) = computation(self)
    (size,) = _numbers(x, lambd)
    return jnp.where(x > size, x - size, jnp.where(x < -size, x + size, x * 0))  # NaN stays


@lower("hardshrink")
def hardshrink(self: Array, lambd: Any = 0.5) -> Array:
    (size,) = _numbers(self, lambd)
    return jnp.where((self >= -size) & (self <= size), 0, self)


@lower("softshrink_backward")
def softshrink_backward(grad_output: Array, self: Array, lambd: Any) -> Array:
    _, (g, x) = computation(grad_output, self)
    (size,) = _numbers(x, lambd)
    return jnp.where((x < -size) | (x > size), g, 0)


@lower("hardshrink_backward")
def hardshrink_backward(grad_out: Array, self: Array, lambd: Any) -> Array:
    return softshrink_backward(grad_out, self, lambd)


# --- gradients through a result ---------------------------------------------------------------------------------------


def _conjugate(x: Array) -> Array:
    return lax.conj(x) if is_complex(x.dtype) else x


@lower("tanh_backward")
def tanh_backward(grad_output: Array, output: Array) -> Array:
    _, (g, y) = computation(grad_output, output)
    return g * _conjugate(1 - y * y)


@lower("sigmoid_backward")
def sigmoid_backward(grad_output: Array, output: Array) -> Array:
    _, (g, y) = computation(grad_output, output)
    return g * _conjugate((1 - y) * y)


@lower("logit")
def logit(self: Array, eps: Any = None) -> Array:
    _, (x,) = float_values(self)
    if eps is not None:
        (e,) = _numbers(x, eps)
        x = jnp.where(x < e, e, jnp.where(x > 1 - e, 1 - e, x))
    return jnp.log(x / (1 - x))


@lower("logit_backward")
def logit_backward(grad_output: Array, self: Array, eps: Any = None) -> Array:
    common, (g, x) = common_values(grad_output, self)
    slope = g / (x * (1 - x))
    unbounded = jnp.where((x < 0) | (x > 1), jnp.nan, slope)
    if eps is None:
        return unbounded
    e = number_as(number_as(eps, common), x.dtype)
    return jnp.where(e < 0, unbounded, jnp.where((x >= e) & (x <= 1 - e), slope, 0))


# --- gated linear unit ------------------------------------------------------------------------------------------------


@lower("glu")
def glu(self: Array, dim: int = -1) -> Array:
    _, (x,) = computation(self)
    a, b = jnp.split(x, 2, axis=dim)
    return a * jax.nn.sigmoid(b)


@lower("glu_backward")
def glu_backward(grad_output: Array, self: Array, dim: int) -> Array:
    _, (g, x) = computation(grad_output, self)
    a, b = jnp.split(x, 2, axis=dim)
    s = jax.nn.sigmoid(b)
    return jnp.concatenate([s * g, (1 - s) * s * g * a], axis=dim)


@meta("glu_jvp")
def _glu_jvp_meta(glu: torch.Tensor, x: torch.Tensor, dx: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.empty_like(glu)


@lower("glu_jvp")
def glu_jvp(glu: Array, x: Array, dx: Array, dim: int) -> Array:
    """Derivative of `glu` = glu(x) along `dx`."""
    _, (y, x, dx) = computation(glu, x, dx)
    b = jnp.split(x, 2, axis=dim)[1]
    da, db = jnp.split(dx, 2, axis=dim)
    s = jax.nn.sigmoid(b)
    return da * s + (db - s * db) * y


@meta("glu_backward_jvp")
def _glu_backward_jvp_meta(grad_x: torch.Tensor, *rest: Any) -> torch.Tensor:
    return torch.empty_like(grad_x)


@lower("glu_backward_jvp")
def glu_backward_jvp(grad_x: Array, grad_glu: Array, x: Array, dgrad_glu: Array, dx: Array, dim: int) -> Array:
    """Derivative of `grad_x` = glu_backward(grad_glu, x) along `dgrad_glu` and `dx`."""
    _, (g, x, dg, dx) = computation(grad_glu, x, dgrad_glu, dx)
    (a, b), (da, db) = jnp.split(x, 2, axis=dim), jnp.split(dx, 2, axis=dim)
    s = jax.nn.sigmoid(b)
    slope = s * (1 - s)
    first = dg * s + g * slope * db
    second = slope * (dg * a + g * da + g * a * (1 - 2 * s) * db)
    return jnp.concatenate([first, second], axis=dim)
