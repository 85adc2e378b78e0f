"""Special functions that JAX has a form for; :mod:`.polynomials` and :mod:`.bessel` have the others."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax

from .common import Array, is_complex
from .elementwise import _aligned
from .pointwise import float_values, lower_floats
from .registry import lower


def _xlogy(x: Array, y: Array) -> Array:
    """``x * log(y)``, with 0 for x = 0 unless y is NaN."""
    return jnp.where(jnp.isnan(y), jnp.nan, jnp.where(x == 0, 0, x * jnp.log(y)))


def _xlog1py(x: Array, y: Array) -> Array:
    return jnp.where(jnp.isnan(y), jnp.nan, jnp.where(x == 0, 0, x * jnp.log1p(y)))


def _entr(x: Array) -> Array:
    inside = jnp.where(x == 0, 0, -jnp.inf)
    return jnp.where(jnp.isnan(x), x, jnp.where(x > 0, -x * jnp.log(x), inside))


def _erfcx(x: Array) -> Array:
    from jax.scipy import special

    return special.erfcx(x)


def _ndtri(x: Array) -> Array:
    from jax.scipy import special

    return special.ndtri(x)


def _log_ndtr(x: Array) -> Array:
    """Through ``erfcx`` on the left, where the probability itself underflows (ATen/native/Math.h)."""
    t = x * np.sqrt(0.5)
    left = jnp.log(_erfcx(-jnp.minimum(t, 0)) / 2) - t * t
    return jnp.where(x < -1, left, jnp.log1p(-lax.erfc(t) / 2))


def _sinc(x: Array) -> Array:
    angle = np.pi * x
    safe = jnp.where(x == 0, 1, angle)
    return jnp.where(x == 0, 1, jnp.sin(safe) / safe)


def _logaddexp(a: Array, b: Array) -> Array:
    if is_complex(a.dtype):
        return _complex_logaddexp(a, b)
    same = jnp.isinf(a) & (a == b)
    return jnp.where(same, a, jnp.maximum(a, b) + jnp.log1p(jnp.exp(-jnp.abs(jnp.where(same, 0, a - b)))))


def _complex_logaddexp(a: Array, b: Array) -> Array:
    a, b = _aligned(a, b)
    swap = b.real > a.real
    large, small = jnp.where(swap, b, a), jnp.where(swap, a, b)
    same = jnp.isinf(large.real) & (large.real == small.real)
    general = large + jnp.log1p(jnp.exp(small - large))
    return jnp.where(same, jnp.where(large.real < 0, large, jnp.log(jnp.exp(large) + jnp.exp(small))), general)


def _logaddexp2(a: Array, b: Array) -> Array:
    same = jnp.isinf(a) & (a == b)
    gap = jnp.exp2(-jnp.abs(jnp.where(same, 0, a - b)))
    return jnp.where(same, a, jnp.maximum(a, b) + jnp.log1p(gap) * (1 / np.log(2)))


def _digamma(x: Array) -> Array:
    """NaN at negative integers and, as ATen has it, an infinity of opposite sign at zero."""
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), jnp.where(jnp.isneginf(x), jnp.nan, lax.digamma(x)))


_LONGEST_SHIFT = 1 << 14


def _negative_terms(x: Array, q: Array) -> tuple[Array, Array]:
    """(sum of the terms ``(q + k) ** -x`` of negative base, q moved past them): XLA's series starts above zero."""
    movable = (q < 0) & (q > -_LONGEST_SHIFT) & (q != jnp.floor(q)) & (x == jnp.floor(x))

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        total, at = state
        below = movable & (at < 0)
        return jnp.where(below, total + jnp.power(at, -x), total), jnp.where(below, at + 1, at)

    return lax.while_loop(lambda state: jnp.any(movable & (state[1] < 0)), step, (jnp.zeros_like(q), q))


def _zeta(x: Array, q: Array) -> Array:
    """Hurwitz' zeta with cephes' conventions outside its domain (ATen/native/Math.h)."""
    x, q = _aligned(x, q)
    head, positive_q = _negative_terms(x, q)
    far = jnp.where(q < 1, jnp.inf, jnp.where(q == 1, 1, jnp.nan))
    value = jnp.where(jnp.isposinf(x), far, head + lax.zeta(x, positive_q))
    value = jnp.where(
        q <= 0, jnp.where(q == jnp.floor(q), jnp.inf, jnp.where(x == jnp.floor(x), value, jnp.nan)), value
    )
    return jnp.where(x < 1, jnp.nan, jnp.where(x == 1, jnp.inf, value))


def _igamma(a: Array, x: Array, inside: Callable[[Array, Array], Array], at_zero: float) -> Array:
    """`inside` for positive finite operands; its limits elsewhere. `at_zero` is the value for x = 0."""
    a, x = _aligned(a, x)
    domain = (a > 0) & (x > 0) & jnp.isfinite(a) & jnp.isfinite(x)
    value = jnp.where(domain, inside(jnp.where(domain, a, 1), jnp.where(domain, x, 1)), jnp.nan)
    value = jnp.where(jnp.isinf(x), 1 - at_zero, value)
    value = jnp.where(jnp.isinf(a), jnp.where(jnp.isinf(x), jnp.nan, at_zero), value)
    value = jnp.where(x == 0, at_zero, value)
    value = jnp.where(a == 0, jnp.where(x > 0, 1 - at_zero, jnp.nan), value)
    return jnp.where((a < 0) | (x < 0), jnp.nan, value)


lower_floats(
    {
        "digamma": _digamma,
        "erf": lax.erf,
        "erfc": lax.erfc,
        "erfinv": lax.erf_inv,
        "i0": lambda x: jnp.exp(jnp.abs(x)) * lax.bessel_i0e(x),
        "igamma": lambda a, x: _igamma(a, x, lax.igamma, 0.0),
        "igammac": lambda a, x: _igamma(a, x, lax.igammac, 1.0),
        "lgamma": lax.lgamma,
        "logaddexp": _logaddexp,
        "logaddexp2": _logaddexp2,
        "sinc": _sinc,
        "special_entr": _entr,
        "special_erfcx": _erfcx,
        "special_i0e": lax.bessel_i0e,
        "special_i1": lambda x: jnp.exp(jnp.abs(x)) * lax.bessel_i1e(x),
        "special_i1e": lax.bessel_i1e,
        "special_log_ndtr": _log_ndtr,
        "special_modified_bessel_i0": lambda x: jnp.exp(jnp.abs(x)) * lax.bessel_i0e(x),
        "special_modified_bessel_i1": lambda x: jnp.exp(jnp.abs(x)) * lax.bessel_i1e(x),
        "special_ndtri": _ndtri,
        "special_xlog1py": _xlog1py,
        "special_xlog1py.other_scalar": _xlog1py,
        "special_xlog1py.self_scalar": _xlog1py,
        "special_zeta": _zeta,
        "special_zeta.other_scalar": _zeta,
        "special_zeta.self_scalar": _zeta,
        "xlogy.Tensor": _xlogy,
        "xlogy.Scalar_Other": _xlogy,
        "xlogy.Scalar_Self": _xlogy,
    }
)


@lower("polygamma")
def polygamma(n: int, self: Array) -> Array:
    _, (x,) = float_values(self)
    if n == 0:
        return _digamma(x)
    order = jnp.full_like(x, float(n))
    sign = 1.0 if n % 2 else -1.0
    value = sign * jnp.exp(lax.lgamma(order + 1)) * _zeta(order + 1, x)
    return jnp.where(jnp.isinf(x), jnp.where(x > 0, 0, jnp.nan), value) if n == 1 else value
