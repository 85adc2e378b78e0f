"""Linear systems: triangular, from a factorisation, and from the matrix itself; determinants and inverses.

For a determinant, PyTorch factorises the transpose of a real row-major matrix, which is what LAPACK finds in its memory. The
factors are results that derivative formulas use again, so the same choice is made here.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from ..views import View, contiguous_stride
from .checks import require
from .common import Array, is_complex
from .linalg_factor import (
    adjoint,
    demand_pivots,
    demand_success,
    diagonal,
    eye_like,
    lu_factors,
    on_matrices,
    product,
    rows_of_pivots,
)
from .registry import lower


def triangular(
    a: Array,
    b: Array,
    *,
    upper: bool,
    left: bool = True,
    transpose: bool = False,
    conjugate: bool = False,
    unit: bool = False,
) -> Array:
    """X of ``op(a) X = b`` (or ``X op(a) = b``) for triangular `a` [..., n, n], batches broadcast."""
    on_matrices(a, b)
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = jnp.broadcast_to(a, (*batch, *a.shape[-2:])), jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
    if b.size == 0:
        return b
    return lax.linalg.triangular_solve(
        a, b, left_side=left, lower=not upper, transpose_a=transpose, conjugate_a=conjugate, unit_diagonal=unit
    )


@lower("linalg_solve_triangular")
def linalg_solve_triangular(
    self: Array, B: Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Array:
    return triangular(self, B, upper=upper, left=left, unit=unitriangular)


@lower("triangular_solve")
def triangular_solve(
    self: Array, A: Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Array, Array]:
    solution = triangular(A, self, upper=upper, transpose=transpose, unit=unitriangular)
    return solution, jnp.broadcast_to(A, (*solution.shape[:-2], *A.shape[-2:]))


# --- from a Cholesky factor -------------------------------------------------------------------


def _cholesky_solve(b: Array, factor: Array, upper: bool) -> Array:
    first = triangular(factor, b, upper=upper, transpose=upper, conjugate=upper)
    return triangular(factor, first, upper=upper, transpose=not upper, conjugate=not upper)


@lower("_cholesky_solve_helper")
def _cholesky_solve_helper(self: Array, A: Array, upper: bool) -> Array:
    return _cholesky_solve(self, A, upper)


@lower("cholesky_solve")
def cholesky_solve(self: Array, input2: Array, upper: bool = False) -> Array:
    return _cholesky_solve(self, input2, upper)


@lower("cholesky_inverse")
def cholesky_inverse(self: Array, upper: bool = False) -> Array:
    n = self.shape[-1]
    require(jnp.diagonal(self, axis1=-2, axis2=-1) != 0, RuntimeError, "cholesky_inverse of a singular matrix")
    # The inverse of one factor, times its adjoint: hermitian to the last bit, as LAPACK's is.
    inverse = triangular(self, eye_like(self, n, n), upper=upper)
    whole = product(inverse, adjoint(inverse)) if upper else product(adjoint(inverse), inverse)
    kept = jnp.tril(whole)
    return kept + adjoint(jnp.tril(whole, -1))


# --- from an LU factorisation -----------------------------------------------------------------


def _permute_rows(b: Array, rows: Array) -> Array:
    """``b[..., rows, :]`` of b [..., n, k] for rows [..., n], batches broadcast."""
    batch = jnp.broadcast_shapes(b.shape[:-2], rows.shape[:-1])
    b = jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
    rows = jnp.broadcast_to(rows, (*batch, rows.shape[-1]))
    return jnp.take_along_axis(b, rows[..., None], axis=-2)


def solved(factors: Array, rows: Array, b: Array, *, left: bool = True, adjoint_of: bool = False) -> Array:
    """X of ``op(A) X = b`` or ``X op(A) = b``, where ``A[rows] = L U``; `adjoint_of` makes ``op(A)`` the adjoint of A."""
    if not left:
        return adjoint(solved(factors, rows, adjoint(b), adjoint_of=not adjoint_of))
    if not adjoint_of:
        half = triangular(factors, _permute_rows(b, rows), upper=False, unit=True)
        return triangular(factors, half, upper=True)
    half = triangular(factors, b, upper=True, transpose=True, conjugate=True)
    half = triangular(factors, half, upper=False, transpose=True, conjugate=True, unit=True)
    return _permute_rows(half, jnp.argsort(rows, -1))


@lower("linalg_lu_solve")
def linalg_lu_solve(LU: Array, pivots: Array, B: Array, *, left: bool = True, adjoint: bool = False) -> Array:
    on_matrices(LU, B)
    n = LU.shape[-1]
    demand_pivots(pivots, n)
    return solved(LU, rows_of_pivots(pivots, n), B, left=left, adjoint_of=adjoint)


# --- from the matrix itself -------------------------------------------------------------------


def _real_row_major(view: View) -> bool:
    """``A.is_contiguous() and not A.is_complex()``."""
    wanted = contiguous_stride(view.size)
    regular = all(n == 1 or s == w for n, s, w in zip(view.size, view.stride, wanted))
    return not view.dtype.is_complex and (regular or 0 in view.size)


@lower("_linalg_solve_ex")
def _linalg_solve_ex(
    A: Array, B: Array, *, left: bool = True, check_errors: bool = False
) -> tuple[Array, Array, Array, Array]:
    on_matrices(A, B)
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    factors, pivots, rows, info = lu_factors(A)
    x = solved(factors, rows, B[..., None] if vector else B, left=left)
    if check_errors:
        demand_success(info, "solving a system with a singular matrix")
    return x[..., 0] if vector else x, factors, pivots, info


@lower("linalg_inv_ex")
def linalg_inv_ex(A: Array, *, check_errors: bool = False) -> tuple[Array, Array]:
    n = A.shape[-1]
    factors, _, rows, info = lu_factors(A)
    if check_errors:
        demand_success(info, "inverting a singular matrix")
    return solved(factors, rows, eye_like(A, n, n)), info


def _swapped(pivots: Array) -> Array:
    """Whether the permutation that `pivots` [..., n] make is odd."""
    own = jnp.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype)
    return (pivots != own).sum(-1) % 2 == 1


@lower("_linalg_det", takes_inputs=True)
def _linalg_det(A: Array, *, inputs: tuple[View, ...] = ()) -> tuple[Array, Array, Array]:
    factors, pivots, _, _ = lu_factors(A.mT if _real_row_major(inputs[0]) else A)
    det = jnp.prod(diagonal(factors), -1)
    return jnp.where(_swapped(pivots), -det, det), factors, pivots


@lower("_linalg_slogdet", takes_inputs=True)
def _linalg_slogdet(A: Array, *, inputs: tuple[View, ...] = ()) -> tuple[Array, Array, Array, Array]:
    factors, pivots, _, _ = lu_factors(A.mT if _real_row_major(inputs[0]) else A)
    values = diagonal(factors)
    size = jnp.abs(values)
    unit = jnp.where(size == 0, 0, values / jnp.where(size == 0, 1, size)) if is_complex(A.dtype) else jnp.sign(values)
    sign = jnp.prod(unit, -1)
    return jnp.where(_swapped(pivots), -sign, sign), jnp.log(size).sum(-1), factors, pivots
