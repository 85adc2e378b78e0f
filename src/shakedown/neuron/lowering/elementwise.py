"""Arithmetic between tensors and numbers, and copies."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..errors import LoweringError
from .checks import extreme, require, require_fits
from .common import (
    Array,
    computation,
    float_computation,
    is_complex,
    is_integral,
    is_number,
    number_as,
    quotient,
    result_type,
    to_numpy,
)
from .pointwise import common_values, float_values
from .registry import lower

# --- sums and products ------------------------------------------------------------------------------------------------


def _scaled(factor: Any, x: Array) -> Array:
    """``factor * x``; the factor 1 that a schema's default leaves costs nothing."""
    return x if isinstance(factor, int) and factor == 1 else number_as(factor, x.dtype) * x


@lower("add.Tensor", "add.Scalar")
def add(self: Array, other: Any, alpha: Any = 1) -> Array:
    common, (a, b) = computation(self, other)
    b = _scaled(alpha, b) if common != np.bool_ else jnp.logical_and(b, number_as(alpha, bool))
    return jnp.logical_or(a, b) if common == np.bool_ else a + b


@lower("sub.Tensor", "sub.Scalar")
def sub(self: Array, other: Any, alpha: Any = 1) -> Array:
    if any(isinstance(x, bool) or getattr(x, "dtype", None) == np.bool_ for x in (self, other)):
        raise LoweringError("a difference of booleans")
    _, (a, b) = computation(self, other)
    return a - _scaled(alpha, b)


@lower("rsub.Tensor", "rsub.Scalar", refuses={"alpha": lambda v: isinstance(v, bool)})
def rsub(self: Array, other: Any, alpha: Any = 1) -> Array:
    return sub(other, self, alpha)


@lower("mul.Tensor", "mul.Scalar")
def mul(self: Array, other: Any) -> Array:
    common, (a, b) = computation(self, other)
    return jnp.logical_and(a, b) if common == np.bool_ else a * b


@lower("addcmul")
def addcmul(self: Array, tensor1: Array, tensor2: Array, value: Any = 1) -> Array:
    _, (x, a, b) = computation(self, tensor1, tensor2)
    return x + _scaled(value, a) * b


@lower("addcdiv")
def addcdiv(self: Array, tensor1: Array, tensor2: Array, value: Any = 1) -> Array:
    _, (x, a, b) = computation(self, tensor1, tensor2)
    return x + _scaled(value, a) / b


@lower("lerp.Tensor", "lerp.Scalar")
def lerp(self: Array, end: Array, weight: Any) -> Array:
    """From the nearer end, so that weight 0 gives `self` and 1 gives `end` exactly (ATen/native/Lerp.h)."""
    _, (a, b) = computation(self, end)
    w = number_as(weight, a.dtype)
    near_start = jnp.abs(w) < 0.5
    return jnp.where(near_start, a, b) + jnp.where(near_start, w, w - 1) * (b - a)


# --- division ---------------------------------------------------------------------------------------------------------


@lower("div.Tensor", "div.Scalar")
def div(self: Array, other: Any) -> Array:
    _, (a, b) = float_computation(self, other)
    return quotient(a, b)


@lower("div.Tensor_mode", "div.Scalar_mode")
def div_mode(self: Array, other: Any, rounding_mode: str | None) -> Array:
    if rounding_mode is None:
        return div(self, other)
    common, (a, b) = computation(self, other)
    if is_integral(common):
        _no_zero(b)
        return lax.div(*_aligned(a, b)) if rounding_mode == "trunc" else _floor_div_integers(*_aligned(a, b))
    if rounding_mode == "floor":
        return _floor_div_floats(a, b)
    # Between two tensors, ATen rounds the quotient to their dtype before it truncates.
    return jnp.trunc(quotient(a, b) if is_number(other) else number_as(quotient(a, b), common))


@lower("floor_divide", "floor_divide.Scalar")
def floor_divide(self: Array, other: Any) -> Array:
    return div_mode(self, other, "floor")


def _no_zero(divisor: Array) -> None:
    """Demand of an integer divisor what the CPU's division traps on. (PyTorch names Python's error in a RuntimeError.)"""
    if is_integral(divisor.dtype):
        require(divisor != 0, RuntimeError, "ZeroDivisionError")


def _aligned(a: Array, b: Array) -> tuple[Array, Array]:
    """Both operands at their common sizes: ``lax`` operators do not broadcast."""
    shape = jnp.broadcast_shapes(a.shape, b.shape)
    return jnp.broadcast_to(a, shape), jnp.broadcast_to(b, shape)


def _floor_div_integers(a: Array, b: Array) -> Array:
    whole, rest = lax.div(a, b), lax.rem(a, b)
    return jnp.where((rest != 0) & ((rest < 0) != (b < 0)), whole - 1, whole)


def _floor_div_floats(a: Array, b: Array) -> Array:
    """Python's ``//``, by way of the remainder, as c10's ``div_floor_floating`` (c10/util/generic_math.h)."""
    divisor = b
    a, b = _aligned(a, b)
    mod = lax.rem(a, b)
    ratio = quotient(a - mod, divisor)
    ratio = jnp.where((mod != 0) & ((b < 0) != (mod < 0)), ratio - 1, ratio)
    whole = jnp.floor(ratio)
    whole = jnp.where(ratio - whole > 0.5, whole + 1, whole)
    whole = jnp.where(ratio == 0, jnp.copysign(jnp.zeros_like(a), a / b), whole)
    return jnp.where(b == 0, a / b, whole)


@lower("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(self: Any, other: Any) -> Array:
    """The remainder with the sign of the divisor."""
    _, (a, b) = common_values(self, other)
    a, b = _aligned(a, b)
    _no_zero(b)
    mod = lax.rem(a, b)
    return jnp.where((mod != 0) & ((b < 0) != (mod < 0)), mod + b, mod)


@lower("fmod.Tensor", "fmod.Scalar")
def fmod(self: Array, other: Any) -> Array:
    """The remainder with the sign of the dividend."""
    _, (a, b) = common_values(self, other)
    a, b = _aligned(a, b)
    _no_zero(b)
    return lax.rem(a, b)


# --- powers -----------------------------------------------------------------------------------------------------------

# Exponents for which ATen's CPU kernel has a formula of its own (ATen/native/cpu/PowKernel.cpp, ATen/native/Pow.cpp).
_POWERS: dict[Any, Any] = {
    0: jnp.ones_like,
    1: lambda x: x,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    0.5: jnp.sqrt,
    -0.5: lambda x: 1 / jnp.sqrt(x),
    -1: lambda x: 1 / x,
    -2: lambda x: 1 / (x * x),
}


def _special_exponent(value: Any) -> bool:
    return value in _POWERS or (isinstance(value, int) and value < 0)


@lower("pow.Tensor_Scalar", static={"exponent": _special_exponent})
def pow_number(self: Array, exponent: Any) -> Array:
    if is_integral(common := computation(self, exponent)[0]):
        require_fits(exponent, common)
    if isinstance(exponent, (int, float, complex)):
        common, (x, _) = computation(self, exponent)
        if is_integral(common) and exponent < 0:  # type: ignore[operator]
            raise RuntimeError("Integers to negative integer powers are not allowed.")
        if exponent in _POWERS:
            return _POWERS[exponent](x)
    return power(self, exponent)


@lower("pow.Tensor_Tensor", "pow.Scalar")
def power(self: Any, exponent: Any) -> Array:
    common, (x, e) = common_values(self, exponent)
    x, e = _aligned(x, e)
    if is_integral(common):
        return _integer_power(x, e)
    if is_complex(common):
        # 0 ** 0 is 1 and 0 ** e is 0 for a positive real part of e; the logarithm knows neither.
        return jnp.where(e == 0, 1, jnp.where((x == 0) & (e.real > 0), 0, jnp.power(x, e)))
    return lax.pow(x, e)


def _integer_power(x: Array, e: Array) -> Array:
    """By squaring, with the wrap-around of the type; a negative exponent leaves 0 unless the base is 1 or -1."""

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        result, base, rest = state
        return jnp.where(rest & 1 == 1, result * base, result), base * base, rest >> 1

    start = (jnp.ones_like(x), x, jnp.maximum(e, 0))
    result = lax.while_loop(lambda state: jnp.any(state[2] > 0), step, start)[0]
    if x.dtype == bool or jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        return result
    odd = (e & 1) == 1
    inverse = jnp.where(x == 1, 1, jnp.where(x == -1, jnp.where(odd, -1, 1), 0))
    return jnp.where(e < 0, inverse.astype(x.dtype), result)


@lower("ldexp.Tensor")
def ldexp(self: Array, other: Array) -> Array:
    return mul(self, number_as(power(2.0, other), to_numpy(result_type(2.0, other))))


# --- magnitude, sign and neighbours -----------------------------------------------------------------------------------


@lower("atan2")
def atan2(self: Array, other: Array) -> Array:
    _, (y, x) = float_values(self, other)
    return lax.atan2(*_aligned(y, x))


@lower("hypot")
def hypot(self: Array, other: Array) -> Array:
    _, (a, b) = common_values(self, other)
    a, b = _aligned(jnp.abs(a), jnp.abs(b))
    large, small = jnp.maximum(a, b), jnp.minimum(a, b)
    ratio = small / jnp.where(large == 0, 1, large)
    plain = large * jnp.sqrt(1 + ratio * ratio)
    return jnp.where(jnp.isinf(a) | jnp.isinf(b), jnp.inf, plain)  # infinite even beside NaN, as in C


@lower("copysign.Tensor", "copysign.Scalar")
def copysign(self: Array, other: Any) -> Array:
    _, (a, b) = float_values(self, other)
    return jnp.copysign(a, b)


@lower("nextafter")
def nextafter(self: Array, other: Array) -> Array:
    common, _ = computation(self, other)
    return lax.nextafter(*_aligned(number_as(self, common), number_as(other, common)))


@lower("heaviside")
def heaviside(self: Array, values: Array) -> Array:
    _, (x, v) = computation(self, values)
    return jnp.where(x == 0, v, (x > 0).astype(v.dtype))


@lower("gcd")
def gcd(self: Array, other: Array) -> Array:
    """Euclid's way from the second operand's remainder, as ATen's ``calc_gcd``: it decides the sign beside INT_MIN."""
    _, (a, b) = computation(self, other)

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        x, y = state
        divisor = jnp.where(x == 0, 1, x)
        return jnp.where(x == 0, 0, lax.rem(y, divisor)), jnp.where(x == 0, y, x)

    return lax.while_loop(lambda state: jnp.any(state[0] != 0), step, _aligned(jnp.abs(a), jnp.abs(b)))[1]


@lower("lcm")
def lcm(self: Array, other: Array) -> Array:
    _, (a, b) = computation(self, other)
    a, b = _aligned(a, b)
    divisor = gcd(a, b)
    at_least_int = jnp.promote_types(a.dtype, np.int32)  # as C++ computes, so that the narrow types wrap after abs
    product = lax.div(a, jnp.where(divisor == 0, 1, divisor)).astype(at_least_int) * b.astype(at_least_int)
    return jnp.where(divisor == 0, 0, jnp.abs(product).astype(a.dtype))


@lower("complex")
def complex_(real: Array, imag: Array) -> Array:
    if real.dtype != imag.dtype:
        raise LoweringError(f"a complex number of {real.dtype} and {imag.dtype}")
    _, (a, b) = computation(real, imag)
    return lax.complex(*_aligned(a, b))


@lower("polar")
def polar(abs: Array, angle: Array) -> Array:
    _, (r, phi) = computation(abs, angle)
    return lax.complex(*_aligned(r * jnp.cos(phi), r * jnp.sin(phi)))


# --- copies -----------------------------------------------------------------------------------------------------------


@lower("copy")
def copy(self: Array, src: Array, non_blocking: bool = False) -> Array:
    return jnp.broadcast_to(src, self.shape)


@lower("_to_copy")
def _to_copy(self: Array, **_: Any) -> Array:
    return self


@lower("clone")
def clone(self: Array, memory_format: Any = None) -> Array:
    return self


@lower("fill.Scalar", static={"value": extreme})
@lower("fill.Tensor")
def fill(self: Array, value: Any) -> Array:
    require_fits(value, self.dtype)
    return jnp.broadcast_to(number_as(value, self.dtype), self.shape)


@lower("zero")
def zero(self: Array) -> Array:
    return jnp.zeros_like(self)
