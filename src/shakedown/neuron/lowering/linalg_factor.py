"""Factorisations of matrices: Cholesky, LU, QR and their Householder reflectors.

All of them work on ``[..., m, n]`` in float32, float64, complex64 and complex128; other dtypes are left to the CPU kernels,
which refuse them. Pivots count from 1, as LAPACK's do. What a failed factorisation leaves behind (`info` and the part
that was done) is LAPACK's too.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..errors import LoweringError
from .checks import require
from .common import Array
from .metas import meta
from .registry import lower

LinAlgError = torch.linalg.LinAlgError

_LAPACK = {np.dtype(t) for t in (np.float32, np.float64, np.complex64, np.complex128)}


def on_matrices(*arrays: Array) -> None:
    """Refuse dtypes that LAPACK does not have.

    Raises:
        LoweringError: naming the dtype.
    """
    for a in arrays:
        if a.dtype not in _LAPACK:
            raise LoweringError(f"linear algebra on {a.dtype}")


def adjoint(a: Array) -> Array:
    """The conjugate transposes of the matrices [..., m, n]."""
    return jnp.conj(a.mT)


def product(a: Array, b: Array) -> Array:
    """``a @ b`` in full precision."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def eye_like(a: Array, rows: int, columns: int) -> Array:
    """Identities [..., rows, columns] for the batch and dtype of `a`."""
    return jnp.broadcast_to(jnp.eye(rows, columns, dtype=a.dtype), (*a.shape[:-2], rows, columns))


def diagonal(a: Array) -> Array:
    return jnp.diagonal(a, axis1=-2, axis2=-1)


def first_where(bad: Array) -> Array:
    """`info` of `bad` [..., k]: 1 + the place of the first True along the last dimension, 0 if there is none. int32."""
    if bad.shape[-1] == 0:
        return jnp.zeros(bad.shape[:-1], jnp.int32)
    return jnp.where(bad.any(-1), jnp.argmax(bad, -1) + 1, 0).astype(jnp.int32)


# --- Cholesky ---------------------------------------------------------------------------------


def _cholesky_until_it_fails(a: Array) -> tuple[Array, Array]:
    """Lower factors of [..., n, n] column by column, and `info`: the column (from 1) whose pivot is not positive, or 0.

    The columns before it are done, its pivot is what was to become a square root, the rest is as given (LAPACK's potf2).
    """
    n = a.shape[-1]
    rows = jnp.arange(n)

    def column(j: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        factor, info = state
        row = jnp.where(rows < j, jnp.take(factor, j, axis=-2), 0)
        reduced = jnp.take(factor, j, axis=-1) - product(factor, jnp.conj(row)[..., None])[..., 0]
        pivot = jnp.take(reduced, j, axis=-1).real
        failed = ~(pivot > 0)
        going = info == 0
        root = jnp.sqrt(jnp.where(failed, 1, pivot))
        # Where the pivot fails, only it is stored.
        new = jnp.where(failed[..., None], jnp.take(factor, j, axis=-1), reduced / root[..., None])
        new = jnp.where(rows == j, jnp.where(failed, pivot, root)[..., None], new)
        place = (rows == j) & (rows[:, None] >= j) & going[..., None, None]
        factor = jnp.where(place, new[..., :, None], factor)
        return factor, jnp.where(going & failed, j + 1, info).astype(jnp.int32)

    return lax.fori_loop(0, n, column, (a, jnp.zeros(a.shape[:-2], jnp.int32)))


def _cholesky(self: Array, upper: bool) -> tuple[Array, Array]:
    on_matrices(self)
    a = adjoint(self) if upper else self
    if a.size == 0:
        return self, jnp.zeros(a.shape[:-2], jnp.int32)
    factor = lax.linalg.cholesky(a, symmetrize_input=False)
    failed = jnp.isnan(diagonal(factor).real).any(-1)

    def partly() -> tuple[Array, Array]:
        part, info = _cholesky_until_it_fails(a)
        return jnp.where(failed[..., None, None], part, factor), info

    factor, info = lax.cond(failed.any(), partly, lambda: (factor, jnp.zeros(failed.shape, jnp.int32)))
    factor = jnp.tril(factor)
    return adjoint(factor) if upper else factor, info


def demand_success(info: Array, what: str) -> None:
    """Demand of a kernel that raises by itself that all its factorisations were completed."""
    require(info == 0, LinAlgError, f"{what} could not be completed: the matrix is singular, or not positive-definite")


@lower("_linalg_check_errors", graph_only=True)
def _linalg_check_errors(info: Array, api_name: str, *, is_matrix: bool) -> tuple[()]:
    """In a graph; eager calls are PyTorch's composite, which reads `info`."""
    demand_success(info, api_name)
    return ()


@lower("linalg_cholesky_ex")
def linalg_cholesky_ex(self: Array, *, upper: bool = False, check_errors: bool = False) -> tuple[Array, Array]:
    factor, info = _cholesky(self, upper)
    if check_errors:
        demand_success(info, "a Cholesky factorisation")
    return factor, info


if hasattr(torch.ops.aten, "cholesky"):  # PyTorch 2.14 has removed it

    @lower("cholesky")
    def cholesky(self: Array, upper: bool = False) -> Array:
        factor, info = _cholesky(self, upper)
        demand_success(info, "a Cholesky factorisation")
        return factor


# --- LU ---------------------------------------------------------------------------------------


def lu_factors(a: Array) -> tuple[Array, Array, Array, Array]:
    """``P L U`` of [..., m, n] with row pivoting: (L and U in one, pivots int32 from 1, rows of the permuted matrix, info)."""
    on_matrices(a)
    if a.size == 0:
        k = min(a.shape[-2:])
        rows = jnp.broadcast_to(jnp.arange(a.shape[-2]), a.shape[:-1])
        # Nothing is swapped where there are no columns.
        return a, jnp.zeros((*a.shape[:-2], k), jnp.int32), rows, jnp.zeros(a.shape[:-2], jnp.int32)
    factors, pivots, rows = lax.linalg.lu(a)
    return factors, pivots + 1, rows, first_where(diagonal(factors) == 0)


def _must_pivot(pivot: bool) -> None:
    if not pivot:
        raise LoweringError("an LU factorisation without pivoting")


@lower("linalg_lu_factor_ex")
def linalg_lu_factor_ex(A: Array, *, pivot: bool = True, check_errors: bool = False) -> tuple[Array, Array, Array]:
    _must_pivot(pivot)
    factors, pivots, _, info = lu_factors(A)
    if check_errors:
        demand_success(info, "an LU factorisation")
    return factors, pivots, info


def permutation_matrix(rows: Array, dtype: Any) -> Array:
    """P [..., m, m] with ``A = P @ A[rows]``."""
    return (rows[..., None, :] == jnp.arange(rows.shape[-1])[:, None]).astype(dtype)


def lower_and_upper(factors: Array) -> tuple[Array, Array]:
    """L [..., m, k] with its unit diagonal and U [..., k, n] of an LU factorisation held in one array."""
    k = min(factors.shape[-2:])
    unit = jnp.eye(factors.shape[-2], k, dtype=factors.dtype)
    return jnp.tril(factors[..., :, :k], -1) + unit, jnp.triu(factors[..., :k, :])


@lower("linalg_lu")
def linalg_lu(A: Array, *, pivot: bool = True) -> tuple[Array, Array, Array]:
    _must_pivot(pivot)
    factors, _, rows, _ = lu_factors(A)
    return permutation_matrix(rows, A.dtype), *lower_and_upper(factors)


def rows_of_pivots(pivots: Array, m: int) -> Array:
    """The rows [..., m] of the permuted matrix, from the swaps `pivots` [..., k] that count from 1."""
    if pivots.size == 0:
        return jnp.broadcast_to(jnp.arange(m), (*pivots.shape[:-1], m))
    return lax.linalg.lu_pivots_to_permutation(pivots.astype(jnp.int32) - 1, m)


def demand_pivots(pivots: Array, m: int) -> None:
    require((pivots >= 1) & (pivots <= m), RuntimeError, f"pivots must lie between 1 and {m}")


@lower("lu_unpack")
def lu_unpack(
    LU_data: Array, LU_pivots: Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Array, Array, Array]:
    nothing = jnp.zeros((0,), LU_data.dtype)
    p, parts = nothing, (nothing, nothing)
    if unpack_pivots:
        m = LU_data.shape[-2]
        demand_pivots(LU_pivots, m)
        p = permutation_matrix(rows_of_pivots(LU_pivots, m), LU_data.dtype)
    if unpack_data:
        parts = lower_and_upper(LU_data)
    return p, *parts


# --- QR ---------------------------------------------------------------------------------------


def reflectors(a: Array) -> tuple[Array, Array]:
    """LAPACK's geqrf of [..., m, n]: R above, the Householder vectors below, and their factors tau [..., min(m, n)]."""
    on_matrices(a)
    k = min(a.shape[-2:])
    if a.size == 0:
        return a, jnp.zeros((*a.shape[:-2], k), a.dtype)
    held, tau = jnp.linalg.qr(a, mode="raw")
    return held.mT, tau


@meta("geqrf")
def _meta_geqrf(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if self.dim() < 2:
        raise RuntimeError("torch.geqrf: input must have at least 2 dimensions.")
    held = torch.empty_like(self.mT, memory_format=torch.contiguous_format).mT
    return held, self.new_empty((*self.shape[:-2], min(self.shape[-2:])))


@meta("geqrf.a")
def _meta_geqrf_out(self: torch.Tensor, *, a: torch.Tensor, tau: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    for made, out in zip(_meta_geqrf(self), (a, tau)):
        if out.dtype != made.dtype:
            raise RuntimeError(f"Expected out tensor to have dtype {made.dtype}, but got {out.dtype} instead")
        out.resize_(made.shape)
    return a, tau


@lower("geqrf")
def geqrf(self: Array) -> tuple[Array, Array]:
    return reflectors(self)


@lower("linalg_qr")
def linalg_qr(A: Array, mode: str = "reduced") -> tuple[Array, Array]:
    on_matrices(A)
    q, r = lax.linalg.qr(A, full_matrices=mode == "complete")
    return jnp.zeros((0,), A.dtype) if mode == "r" else q, r


@lower("linalg_householder_product")
def linalg_householder_product(input: Array, tau: Array) -> Array:
    on_matrices(input, tau)
    if input.size == 0 or tau.size == 0:
        return eye_like(input, *input.shape[-2:])
    return lax.linalg.householder_product(input, tau)


@lower("ormqr")
def ormqr(self: Array, input2: Array, input3: Array, left: bool = True, transpose: bool = False) -> Array:
    """``op(Q) @ input3`` or ``input3 @ op(Q)`` for the Q that the reflectors `self`, `input2` stand for."""
    on_matrices(self, input2, input3)
    if input2.size == 0 or input3.size == 0:
        return input3
    return lax.linalg.ormqr(self[..., : input2.shape[-1]], input2, input3, left=left, transpose=transpose)
