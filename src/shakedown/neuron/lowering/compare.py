"""Comparisons, logic, bits, extrema and selection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..errors import LoweringError
from .checks import extreme, require_fits
from .common import Array, computation, is_integral, is_number, number_as
from .pointwise import common_values
from .registry import lower


def _on_common(fn: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def lowering(self: Any, other: Any) -> Array:
        return fn(*common_values(self, other)[1])

    return lowering


_Table = dict[str, Callable[..., Any]]
_COMPARISONS: _Table = {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}
_EXTREMA: _Table = {"maximum": jnp.maximum, "minimum": jnp.minimum, "fmax": jnp.fmax, "fmin": jnp.fmin}
_BITS: _Table = {"and": jnp.bitwise_and, "or": jnp.bitwise_or, "xor": jnp.bitwise_xor}

for _name, _fn in _COMPARISONS.items():
    lower(f"{_name}.Tensor", f"{_name}.Scalar")(_on_common(_fn))

for _name, _fn in _EXTREMA.items():
    lower(_name)(_on_common(_fn))

for _name, _fn in _BITS.items():
    lower(f"bitwise_{_name}.Tensor", f"bitwise_{_name}.Scalar", f"bitwise_{_name}.Scalar_Tensor")(_on_common(_fn))


# --- logic ------------------------------------------------------------------------------------------------------------


@lower("logical_and")
def logical_and(self: Array, other: Array) -> Array:
    return (self != 0) & (other != 0)


@lower("logical_or")
def logical_or(self: Array, other: Array) -> Array:
    return (self != 0) | (other != 0)


@lower("logical_xor")
def logical_xor(self: Array, other: Array) -> Array:
    return (self != 0) ^ (other != 0)


# --- shifts -----------------------------------------------------------------------------------------------------------


def _shift(self: Any, other: Any, shift: Callable[[Array, Array], Array]) -> Array:
    """Shift; a negative or too large count pushes every bit out (ATen/native/cpu/BinaryOpsKernel.cpp)."""
    common, (a, b) = computation(self, other)
    if not is_integral(common):
        raise LoweringError(f"a shift of {common}")
    bits = a.dtype.itemsize * 8
    shape = jnp.broadcast_shapes(a.shape, b.shape)
    count = jnp.where((b < 0) | (b >= bits), bits, b).astype(a.dtype)
    return shift(jnp.broadcast_to(a, shape), jnp.broadcast_to(count, shape))


@lower(
    "bitwise_left_shift.Tensor",
    "bitwise_left_shift.Tensor_Scalar",
    "bitwise_left_shift.Scalar_Tensor",
    "__lshift__.Tensor",
    "__lshift__.Scalar",
)
def left_shift(self: Any, other: Any) -> Array:
    return _shift(self, other, lax.shift_left)


@lower(
    "bitwise_right_shift.Tensor",
    "bitwise_right_shift.Tensor_Scalar",
    "bitwise_right_shift.Scalar_Tensor",
    "__rshift__.Tensor",
    "__rshift__.Scalar",
)
def right_shift(self: Any, other: Any) -> Array:
    common = computation(self, other)[0]
    signed = jnp.issubdtype(common, jnp.signedinteger)
    return _shift(self, other, lax.shift_right_arithmetic if signed else lax.shift_right_logical)


# --- clamping ---------------------------------------------------------------------------------------------------------


_HALF_MAX = 65504.0  # float16 holds no more


def _large(bound: Any) -> bool:
    """Whether a bound may not fit into some dtype: then it is part of the key, so that the lowering sees it."""
    return not isinstance(bound, complex) and not -_HALF_MAX <= bound <= _HALF_MAX


@lower("clamp", static={"min": _large, "max": _large})
@lower("clamp.Tensor")
def clamp(self: Array, min: Any = None, max: Any = None) -> Array:
    """NaN in any operand wins; where the bounds cross, `max` does."""
    common, (x, low, high) = common_values(self, min, max)
    for bound in (min, max):
        # Python's numbers here are large ones; others fit into a floating dtype.
        if isinstance(bound, (int, float)) or (is_number(bound) and is_integral(common)):
            require_fits(bound, common)
    if low is not None:
        x = jnp.maximum(x, low)
    return x if high is None else jnp.minimum(x, high)


@lower("clamp_min", static={"min": _large})
@lower("clamp_min.Tensor")
def clamp_min(self: Array, min: Any) -> Array:
    return clamp(self, min)


@lower("clamp_max", static={"max": _large})
@lower("clamp_max.Tensor")
def clamp_max(self: Array, max: Any) -> Array:
    return clamp(self, None, max)


# --- selection --------------------------------------------------------------------------------------------------------


@lower("where.self")
def where(condition: Array, self: Any, other: Any) -> Array:
    common, _ = computation(self, other)
    return jnp.where(condition != 0, number_as(self, common), number_as(other, common))


@lower("masked_fill.Scalar", static={"value": extreme})
@lower("masked_fill.Tensor")
def masked_fill(self: Array, mask: Array, value: Any) -> Array:
    require_fits(value, self.dtype)
    return jnp.where(mask, number_as(value, self.dtype), self)
