"""``L D L^T`` (and ``L D L^H``) of symmetric (hermitian) indefinite matrices, by Bunch and Kaufman's pivoting.

XLA has no such factorisation, so it is written out here, one block of D after the other, in LAPACK's format (sytf2, hetf2 and
sytrs with the lower triangle): `LD` holds D's blocks and the columns of L below them. A block of one has its pivot row,
counted from 1; both rows of a block of two have the negative of it.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .checks import require
from .common import Array, is_complex
from .linalg_factor import adjoint, demand_success, on_matrices
from .registry import lower

_ALPHA = (1 + math.sqrt(17)) / 8


def _size(x: Array) -> Array:
    """LAPACK's cheap absolute value."""
    return jnp.abs(x.real) + jnp.abs(x.imag) if is_complex(x.dtype) else jnp.abs(x)


def _swap(n: int, i: Any, j: Any) -> Array:
    """The rows 0..n-1 with `i` and `j` swapped."""
    rows = jnp.arange(n)
    return jnp.where(rows == i, j, jnp.where(rows == j, i, rows))


def _inverse_of_block(a: Array, b: Array, c: Array, e: Array) -> tuple[Array, Array, Array, Array]:
    """The inverse of ``[[a, e], [b, c]]``, row by row. `b` is its largest element, and scales the others."""
    scale = jnp.abs(b)
    scale = jnp.where(scale == 0, 1, scale)
    a, b, c, e = a / scale, b / scale, c / scale, e / scale
    det = (a * c - b * e) * scale
    return c / det, -e / det, -b / det, a / det


def _pivot(a: Array, k: Array, rows: Array) -> tuple[Array, Array, Array]:
    """(row to bring forward, whether the block has two rows, whether the column is zero) for the trailing ``a[k:, k:]``."""
    size = _size(jnp.take(a, k, axis=1))
    own = size[k]
    below = jnp.where(rows > k, size, -1)
    largest = jnp.argmax(below)
    column = jnp.maximum(below[largest], 0)
    row = jnp.where((rows >= k) & (rows != largest), _size(a[largest]), -1).max()
    other = _size(a[largest, largest])
    stays = (own >= _ALPHA * column) | (own >= _ALPHA * column * (column / row))
    one = stays | (other >= _ALPHA * row)
    zero = jnp.maximum(own, column) == 0
    return jnp.where(stays | zero, k, largest), ~(one | zero), zero


def _factor(a: Array) -> tuple[Array, Array, Array]:
    """(LD, pivots, info) of one whole symmetric or hermitian matrix [n, n]; the upper triangle of LD is of no use."""
    n = a.shape[0]
    rows = jnp.arange(n)

    def block(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        a, pivots, info, k = state
        row, two, zero = _pivot(a, k, rows)
        front = k + two  # the row that `row` changes places with
        order = _swap(n, front, row)
        trailing = (rows >= k)[:, None] & (rows >= k)
        a = jnp.where(trailing, a[order][:, order], a)
        second = jnp.minimum(k + 1, n - 1)
        x, y = jnp.take(a, k, axis=1), jnp.take(a, second, axis=1)
        # One row: x / d. Two rows: [x y] times the inverse of the block.
        p, q, r, s = _inverse_of_block(a[k, k], a[second, k], a[second, second], a[k, second])
        d = jnp.where(zero, 1, a[k, k])
        first_column = jnp.where(two, x * p + y * r, x / d)
        second_column = jnp.where(two, x * q + y * s, 0)
        below = rows > front
        change = first_column[:, None] * a[k] + second_column[:, None] * a[second]
        updated = jnp.where(below[:, None] & below & ~zero, a - change, a)
        updated = jnp.where((rows == k) & below[:, None] & ~zero, first_column[:, None], updated)
        updated = jnp.where((rows == second) & below[:, None] & two, second_column[:, None], updated)
        mark = jnp.where(two, -(row + 1), row + 1).astype(jnp.int32)
        pivots = jnp.where((rows == k) | ((rows == second) & two), mark, pivots)
        info = jnp.where(zero & (info == 0), k + 1, info)
        return updated, pivots, info, front + 1

    start = (a, jnp.zeros((n,), jnp.int32), jnp.int32(0), jnp.int32(0))
    factors, pivots, info, _ = lax.while_loop(lambda state: state[3] < n, block, start)
    return factors, pivots, info


def _over_batch(fn: Any, *arrays: Array) -> Any:
    for _ in range(arrays[0].ndim - 2):
        fn = jax.vmap(fn)
    return fn(*arrays)


def _real_diagonal(a: Array) -> Array:
    """`a` with the imaginary parts of its diagonal dropped."""
    own = jnp.eye(a.shape[-1], dtype=bool)
    return jnp.where(own, a.real.astype(a.dtype), a)


@lower("linalg_ldl_factor_ex")
def linalg_ldl_factor_ex(
    self: Array, *, hermitian: bool = False, check_errors: bool = False
) -> tuple[Array, Array, Array]:
    on_matrices(self)
    hermitian = hermitian and is_complex(self.dtype)
    if self.size == 0:
        return self, jnp.zeros(self.shape[:-1], jnp.int32), jnp.zeros(self.shape[:-2], jnp.int32)
    below = jnp.tril(self, -1)
    whole = jnp.tril(self) + (adjoint(below) if hermitian else below.mT)
    factors, pivots, info = _over_batch(_factor, _real_diagonal(whole) if hermitian else whole)
    if check_errors:
        demand_success(info, "an LDL factorisation")
    return jnp.tril(_real_diagonal(factors) if hermitian else factors), pivots, info


def _solve(factors: Array, pivots: Array, b: Array, hermitian: bool) -> Array:
    """X [n, k] of ``A X = b`` for one matrix: down the columns of L with D's blocks, and up again."""
    n = factors.shape[0]
    rows = jnp.arange(n)

    def exchanged(x: Array, i: Array, j: Array) -> Array:
        return x[_swap(n, i, j)]

    def down(state: tuple[Array, Array]) -> tuple[Array, Array]:
        x, k = state
        two = pivots[k] < 0
        front = k + two
        second = jnp.minimum(k + 1, n - 1)
        x = exchanged(x, front, jnp.abs(pivots[k]) - 1)
        u, v = x[k], x[second]
        below = (rows > front)[:, None]
        change = factors[:, k][:, None] * u + jnp.where(two, factors[:, second][:, None] * v, 0)
        x = jnp.where(below, x - change, x)
        b, c = factors[second, k], factors[second, second]
        p, q, r, s = _inverse_of_block(factors[k, k], b, c, jnp.conj(b) if hermitian else b)
        x = jnp.where((rows == k)[:, None], jnp.where(two, p * u + q * v, u / factors[k, k]), x)
        x = jnp.where(((rows == second) & two)[:, None], r * u + s * v, x)
        return x, front + 1

    def up(state: tuple[Array, Array]) -> tuple[Array, Array]:
        x, k = state  # the last row of a block
        two = pivots[k] < 0
        first = jnp.maximum(k - two, 0)
        left = jnp.conj(factors) if hermitian else factors
        below = jnp.where((rows > k)[:, None], x, 0)
        for row, wanted in ((k, True), (first, two)):
            change = jnp.matmul(left[:, row], below, precision=lax.Precision.HIGHEST)
            x = jnp.where((rows == row)[:, None] & wanted & (row != k if row is first else True), x - change, x)
        return exchanged(x, k, jnp.abs(pivots[k]) - 1), first - 1

    x, _ = lax.while_loop(lambda state: state[1] < n, down, (b, jnp.int32(0)))
    x, _ = lax.while_loop(lambda state: state[1] >= 0, up, (x, jnp.int32(n - 1)))
    return x


@lower("linalg_ldl_solve")
def linalg_ldl_solve(LD: Array, pivots: Array, B: Array, *, hermitian: bool = False) -> Array:
    on_matrices(LD, B)
    require(jnp.abs(pivots) <= LD.shape[-2], RuntimeError, "a pivot of ldl_solve outside the matrix")
    hermitian = hermitian and is_complex(LD.dtype)
    batch = jnp.broadcast_shapes(LD.shape[:-2], B.shape[:-2])
    if B.size == 0 or LD.size == 0:
        return jnp.broadcast_to(B, (*batch, *B.shape[-2:]))
    parts = [jnp.broadcast_to(a, (*batch, *a.shape[-2:])) for a in (LD, B)]
    marks = jnp.broadcast_to(pivots.astype(jnp.int32), (*batch, pivots.shape[-1]))
    return _over_batch(lambda f, b, p: _solve(f, p, b, hermitian), *parts, marks)
