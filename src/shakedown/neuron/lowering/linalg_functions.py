"""The exponential of a matrix, and the cross product."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from .common import Array, computation
from .linalg_factor import eye_like, on_matrices, product
from .registry import lower

_DEGREE = 18
_STEP = 4  # powers that are made once; the polynomial is one of lower degree in the last of them

# The 1-norm up to which the Taylor polynomial of that degree is exact in a precision (P. Bader, S. Blanes and F. Casas,
# "Computing the matrix exponential with an optimized Taylor polynomial approximation", table 1).
_LIMIT = {np.dtype(np.float32): 3.010066362817634, np.dtype(np.float64): 1.090863719290036}


def _taylor(a: Array) -> Array:
    """The polynomial of [..., n, n], by Paterson and Stockmeyer: products alone, so it runs wherever products do."""
    powers = [eye_like(a, a.shape[-1], a.shape[-1]), a]
    while len(powers) <= _STEP:
        powers.append(product(powers[-1], a))
    result: Array | None = None
    for start in range(_DEGREE // _STEP * _STEP, -1, -_STEP):
        terms = zip(range(start, min(start + _STEP, _DEGREE + 1)), powers)
        part = sum(p * (1 / math.factorial(i)) for i, p in terms)
        result = part if result is None else product(result, powers[_STEP]) + part
    assert result is not None
    return result


@lower("linalg_matrix_exp")
def linalg_matrix_exp(self: Array) -> Array:
    on_matrices(self)
    if self.size == 0:
        return self
    if self.shape[-1] == 1:
        return jnp.exp(self)
    limit = _LIMIT[np.dtype(jnp.finfo(self.dtype).dtype)]
    size = jnp.abs(self).sum(-2).max(-1)
    halvings = jnp.ceil(jnp.log2(jnp.maximum(size / limit, 1)))
    halvings = jnp.where(jnp.isfinite(halvings), halvings, 0).astype(jnp.int32)
    scaled = self * jnp.exp2(-halvings.astype(size.dtype))[..., None, None]

    def squared(i: Array, x: Array) -> Array:
        return jnp.where((i < halvings)[..., None, None], product(x, x), x)

    return lax.fori_loop(0, halvings.max(), squared, _taylor(scaled))


@lower("linalg_cross")
def linalg_cross(self: Array, other: Array, *, dim: int = -1) -> Array:
    """The product of vectors of three along `dim`, sizes broadcast."""
    _, (a, b) = computation(self, other)
    a, b = jnp.broadcast_arrays(a, b)
    (a0, a1, a2), (b0, b1, b2) = (jnp.moveaxis(x, dim, 0) for x in (a, b))
    return jnp.stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], axis=dim)
