"""Singular values and eigenvalues, by the LAPACK routines that PyTorch uses on the CPU (gesdd, syevd/heevd, geev)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from ..errors import LoweringError
from .checks import require
from .common import Array, is_complex
from .linalg_factor import LinAlgError, eye_like, on_matrices
from .registry import lower


def _column_major(arguments: dict[str, Any], outs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The outputs with their last, a batch of matrices, laid out as LAPACK leaves it. (The meta kernel speaks of CUDA.)"""
    last = outs[-1]
    if last.dim() < 2:
        return outs
    return *outs[:-1], torch.empty_like(last.mT, memory_format=torch.contiguous_format).mT


def _real_zeros(a: Array, size: tuple[int, ...]) -> Array:
    return jnp.zeros(size, jnp.finfo(a.dtype).dtype)


def singular_values(a: Array, *, full: bool = False) -> tuple[Array, Array, Array]:
    """``U S Vh`` of [..., m, n]: U [..., m, k or m], S [..., k], Vh [..., k or n, n], with k = min(m, n)."""
    on_matrices(a)
    m, n = a.shape[-2:]
    k = min(m, n)
    if a.size == 0:
        rows, columns = (m, n) if full else (k, k)
        return eye_like(a, m, rows), _real_zeros(a, (*a.shape[:-2], k)), eye_like(a, columns, n)
    u, s, vh = lax.linalg.svd(a, full_matrices=full, compute_uv=True)
    return u, s, vh


@lower("_linalg_svd", corrects=_column_major)
def _linalg_svd(
    A: Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Array, Array, Array]:
    on_matrices(A)
    if driver is not None:
        raise LoweringError("an SVD driver, which is a choice among CUDA's routines")
    nothing = jnp.zeros((0,), A.dtype)
    if compute_uv or A.size == 0:
        u, s, vh = singular_values(A, full=full_matrices)
    else:
        s = lax.linalg.svd(A, full_matrices=False, compute_uv=False)
        u = vh = nothing
    require(~jnp.isnan(s), LinAlgError, "singular values did not converge")
    return (u, s, vh) if compute_uv else (nothing, s, nothing)


@lower("_linalg_eigh")
def _linalg_eigh(A: Array, UPLO: str = "L", compute_v: bool = True) -> tuple[Array, Array]:
    on_matrices(A)
    if A.size == 0:
        values, vectors = _real_zeros(A, A.shape[:-1]), A
    else:
        vectors, values = lax.linalg.eigh(A, lower=UPLO.upper() == "L", symmetrize_input=False)
    require(~jnp.isnan(values), LinAlgError, "eigenvalues did not converge")
    return values, vectors if compute_v else jnp.zeros((0,), A.dtype)


def _complex_like(a: Array) -> Array:
    return a if is_complex(a.dtype) else a.astype(jnp.result_type(a.dtype, jnp.complex64))


def _demand_finite(a: Array) -> None:
    require(jnp.isfinite(a), RuntimeError, "eigenvalues of a matrix with infs or NaNs")


def _demand_convergence(a: Array, values: Array) -> None:
    _demand_finite(a)
    require(~jnp.isnan(values.real), LinAlgError, "eigenvalues did not converge")


@lower("linalg_eig", corrects=_column_major)
def linalg_eig(self: Array) -> tuple[Array, Array]:
    on_matrices(self)
    if self.size == 0:
        whole = _complex_like(self)
        return jnp.zeros(self.shape[:-1], whole.dtype), whole
    values, vectors = lax.linalg.eig(self, compute_left_eigenvectors=False)
    _demand_convergence(self, values)
    return values, vectors


def _eigvals(self: Array) -> Array:
    on_matrices(self)
    if self.size == 0:
        return jnp.zeros(self.shape[:-1], _complex_like(self).dtype)
    (values,) = lax.linalg.eig(self, compute_left_eigenvectors=False, compute_right_eigenvectors=False)
    _demand_convergence(self, values)
    return values


lower("_linalg_eigvals")(_eigvals)
# Eager calls are PyTorch's composite, which asks for eigenvectors when it needs a gradient; only the `out=` form comes here.
lower("linalg_eigvals", graph_only=True)(_eigvals)
