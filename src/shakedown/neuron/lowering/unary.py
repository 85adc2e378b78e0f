"""Functions of one tensor: rounding, signs, exponentials, logarithms, trigonometry, complex parts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .common import Array, float_computation, is_complex, is_float, is_integral, number_as, opmath
from .pointwise import lower_floats
from .registry import lower

_LN2, _LN10 = float(np.log(2.0)), float(np.log(10.0))


def _log_to_base(x: Array, natural: float) -> Array:
    """``log(x) / natural``, in float64 for reals, so that whole powers of the base come out whole."""
    if is_complex(x.dtype):
        value = jnp.log(x)
        return lax.complex(value.real / natural, value.imag / natural)
    exact = jnp.log(x.astype(jnp.float64)) / natural
    near = jnp.round(exact)
    return jnp.where(jnp.abs(exact - near) < 1e-14 * jnp.abs(near), near, exact)


def _rsqrt(x: Array) -> Array:
    return 1 / jnp.sqrt(x) if is_complex(x.dtype) else lax.rsqrt(x)


lower_floats(
    {
        "acos": jnp.arccos,
        "acosh": jnp.arccosh,
        "asin": jnp.arcsin,
        "asinh": jnp.arcsinh,
        "atan": jnp.arctan,
        "atanh": jnp.arctanh,
        "cos": jnp.cos,
        "cosh": jnp.cosh,
        "deg2rad": lambda x: x * (np.pi / 180),
        "exp": jnp.exp,
        "exp2": jnp.exp2,
        "expm1": jnp.expm1,
        "log": jnp.log,
        "log10": lambda x: _log_to_base(x, _LN10),
        "log1p": jnp.log1p,
        "log2": lambda x: _log_to_base(x, _LN2),
        "rad2deg": lambda x: x * (180 / np.pi),
        "reciprocal": lambda x: 1 / x,
        "rsqrt": _rsqrt,
        "sigmoid": jax.nn.sigmoid,
        "sin": jnp.sin,
        "sinh": jnp.sinh,
        "sqrt": jnp.sqrt,
        "tan": jnp.tan,
        "tanh": jnp.tanh,
    }
)


# --- rounding ---------------------------------------------------------------------------------------------------------


@lower("ceil")
def ceil(self: Array) -> Array:
    return jnp.ceil(self) if is_float(self.dtype) else self


@lower("floor")
def floor(self: Array) -> Array:
    return jnp.floor(self) if is_float(self.dtype) else self


@lower("trunc")
def trunc(self: Array) -> Array:
    return jnp.trunc(self) if is_float(self.dtype) else self


@lower("round")
def round_(self: Array) -> Array:
    return lax.round(self, lax.RoundingMethod.TO_NEAREST_EVEN) if is_float(self.dtype) else self


@lower("round.decimals")
def round_decimals(self: Array, decimals: int) -> Array:
    """As ATen does: scale, round, scale back, each step in the tensor's own dtype."""
    if decimals == 0 or not is_float(self.dtype):
        return round_(self)
    scale = jnp.asarray(10.0 ** abs(decimals)).astype(self.dtype)
    return round_(self * scale) / scale if decimals > 0 else round_(self / scale) * scale


@lower("frac")
def frac(self: Array) -> Array:
    return self - jnp.trunc(self)


@lower("frexp.Tensor")
def frexp(self: Array) -> tuple[Array, Array]:
    return jnp.frexp(self.astype(opmath(self.dtype)))


@lower("nan_to_num")
def nan_to_num(self: Array, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Array:
    if is_complex(self.dtype):
        return lax.complex(*(nan_to_num(part, nan, posinf, neginf) for part in (self.real, self.imag)))
    if not is_float(self.dtype):
        return self
    limits = jnp.finfo(self.dtype)
    nan, posinf, neginf = (
        number_as(default if given is None else given, self.dtype)
        for given, default in ((nan, 0.0), (posinf, float(limits.max)), (neginf, float(limits.min)))
    )
    infinite = jnp.isinf(self)
    return jnp.where(jnp.isnan(self), nan, jnp.where(infinite, jnp.where(self > 0, posinf, neginf), self))


# --- signs and parts --------------------------------------------------------------------------------------------------


@lower("abs")
def abs_(self: Array) -> Array:
    return jnp.abs(self)


@lower("neg")
def neg(self: Array) -> Array:
    return -self


@lower("sign")
def sign(self: Array) -> Array:
    """NaN has sign 0, as in ATen's ``(0 < x) - (x < 0)``."""
    if self.dtype == bool:
        return self
    return (self > 0).astype(self.dtype) - (self < 0).astype(self.dtype)


@lower("sgn")
def sgn(self: Array) -> Array:
    if not is_complex(self.dtype):
        return sign(self)
    size = jnp.abs(self)
    return jnp.where(size == 0, 0, self / jnp.where(size == 0, 1, size))


@lower("signbit")
def signbit(self: Array) -> Array:
    return jnp.signbit(self) if is_float(self.dtype) else self < 0


@lower("angle")
def angle(self: Array) -> Array:
    if is_complex(self.dtype):
        return lax.atan2(self.imag, self.real)
    _, (x,) = float_computation(self)
    return jnp.where(jnp.isnan(x), x, jnp.where(x < 0, np.pi, 0.0).astype(x.dtype))


@lower("_conj_physical", "conj_physical_", "conj_physical.out")
def conj_physical(self: Array) -> Array:
    return lax.conj(self) if is_complex(self.dtype) else self


# --- classification ---------------------------------------------------------------------------------------------------


@lower("isnan")
def isnan(self: Array) -> Array:
    return jnp.zeros(self.shape, bool) if is_integral(self.dtype) else self != self


@lower("isinf")
def isinf(self: Array) -> Array:
    return jnp.zeros(self.shape, bool) if is_integral(self.dtype) else jnp.isinf(self)


@lower("isposinf")
def isposinf(self: Array) -> Array:
    return self == jnp.inf if is_float(self.dtype) else jnp.zeros(self.shape, bool)


@lower("isneginf")
def isneginf(self: Array) -> Array:
    return self == -jnp.inf if is_float(self.dtype) else jnp.zeros(self.shape, bool)


@lower("logical_not")
def logical_not(self: Array) -> Array:
    return self == 0


@lower("bitwise_not")
def bitwise_not(self: Array) -> Array:
    return jnp.bitwise_not(self)
