"""Orthogonal polynomials, by their three-term recurrences (ATen/native/Math.h)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from .common import Array
from .pointwise import float_values
from .registry import lower

Step = Callable[[Array, Array, Array, Array], Array]


def _chebyshev(x: Array, k: Array, p: Array, q: Array) -> Array:
    return 2 * x * q - p


def _hermite_h(x: Array, k: Array, p: Array, q: Array) -> Array:
    return 2 * x * q - 2 * k * p


def _hermite_he(x: Array, k: Array, p: Array, q: Array) -> Array:
    return x * q - k * p


def _laguerre(x: Array, k: Array, p: Array, q: Array) -> Array:
    return ((2 * k + 1 - x) * q - k * p) / (k + 1)


def _legendre(x: Array, k: Array, p: Array, q: Array) -> Array:
    return ((2 * k + 1) * x * q - k * p) / (k + 1)


# name -> (polynomial of degree 1, polynomial of degree k + 1 from those of degrees k - 1 and k)
_FAMILIES: dict[str, tuple[Callable[[Array], Array], Step]] = {
    "chebyshev_polynomial_t": (lambda x: x, _chebyshev),
    "chebyshev_polynomial_u": (lambda x: 2 * x, _chebyshev),
    "chebyshev_polynomial_v": (lambda x: 2 * x - 1, _chebyshev),
    "chebyshev_polynomial_w": (lambda x: 2 * x + 1, _chebyshev),
    "hermite_polynomial_h": (lambda x: 2 * x, _hermite_h),
    "hermite_polynomial_he": (lambda x: x, _hermite_he),
    "laguerre_polynomial_l": (lambda x: 1 - x, _laguerre),
    "legendre_polynomial_p": (lambda x: x, _legendre),
}


def _evaluate(x: Array, n: Array, first: Callable[[Array], Array], step: Step) -> Array:
    """The polynomial of degree `n`, which may differ from element to element; 0 for a negative degree."""
    shape = jnp.broadcast_shapes(x.shape, n.shape)
    # A degree that is no number becomes a negative one in ATen's cast to an integer.
    degree = jnp.broadcast_to(jnp.where(jnp.isfinite(n), jnp.trunc(n), -1), shape)
    x = jnp.broadcast_to(x, shape)

    def advance(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        k, p, q = state
        going = k < degree
        return k + 1, jnp.where(going, q, p), jnp.where(going, step(x, k, p, q), q)

    start = (jnp.ones((), x.dtype), jnp.ones_like(x), first(x))
    _, _, value = lax.while_loop(lambda state: jnp.any(state[0] < degree), advance, start)
    return jnp.where(degree < 0, 0, jnp.where(degree == 0, 1, value))


def _register(name: str, first: Callable[[Array], Array], step: Step, shift: bool) -> None:
    @lower(f"special_{name}", f"special_{name}.n_scalar", f"special_{name}.x_scalar")
    def polynomial(x: Any, n: Any) -> Array:
        _, (x, n) = float_values(x, n)
        return _evaluate(2 * x - 1 if shift else x, n, first, step)


for _name, (_first, _step) in _FAMILIES.items():
    _register(_name, _first, _step, shift=False)
    if _name.startswith("chebyshev"):
        _register(f"shifted_{_name}", _first, _step, shift=True)
