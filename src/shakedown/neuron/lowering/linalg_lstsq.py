"""Least squares. ``gels`` is a QR factorisation of a matrix of full rank; the other drivers cut off what is small.

``gelsd`` and ``gelss`` drop small singular values, ``gelsy`` the last rows of a QR factorisation that pivots columns. How many,
LAPACK estimates from the factor, and we count from the singular values themselves.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from .checks import require
from .common import Array
from .linalg_factor import LinAlgError, adjoint, diagonal, on_matrices, product, reflectors
from .linalg_solve import triangular
from .linalg_spectral import singular_values
from .metas import meta
from .registry import lower

_DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


def _is_vector(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> bool:
    return len(b_shape) == 1 or (len(a_shape) - 1 == len(b_shape) and b_shape == a_shape[:-1])


@meta("linalg_lstsq")
def _meta_lstsq(
    self: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    if self.dim() < 2 or b.dim() < 1 or not 0 <= self.dim() - b.dim() <= 1 or self.dtype != b.dtype:
        raise RuntimeError("torch.linalg.lstsq: the arguments do not fit")
    driver = "gelsy" if driver is None else driver
    if driver not in _DRIVERS:
        raise RuntimeError(f"torch.linalg.lstsq: parameter `driver` should be one of {_DRIVERS}")
    m, n = self.shape[-2:]
    vector = _is_vector(tuple(self.shape), tuple(b.shape))
    sides = b.unsqueeze(-1) if vector else b
    if sides.shape[-2] != m:
        raise RuntimeError("torch.linalg.lstsq: input.size(-2) should match other.size(-2)")
    batch = torch.broadcast_shapes(self.shape[:-2], sides.shape[:-2])
    # LAPACK solves in place of the right-hand sides, so the solution is the upper part of something column-major.
    solution = self.new_empty((*batch, sides.shape[-1], max(m, n))).mT[..., :n, :]
    real = self.dtype.to_real()
    residuals = self.new_empty((*batch, sides.shape[-1]) if m > n and driver != "gelsy" else (0,), dtype=real)
    rank = self.new_empty(batch if driver != "gels" else (0,), dtype=torch.int64)
    values = self.new_empty((*batch, min(m, n)) if driver in ("gelsd", "gelss") else (0,), dtype=real)
    return solution.squeeze(-1) if vector else solution, residuals, rank, values


@meta("linalg_lstsq.out")
def _meta_lstsq_out(
    self: torch.Tensor,
    b: torch.Tensor,
    rcond: float | None = None,
    *,
    driver: str | None = None,
    solution: torch.Tensor,
    residuals: torch.Tensor,
    rank: torch.Tensor,
    singular_values: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    outs = (solution, residuals, rank, singular_values)
    for made, out in zip(_meta_lstsq(self, b, rcond, driver=driver), outs):
        if out.dtype != made.dtype:
            raise RuntimeError(f"torch.linalg.lstsq: Expected an output of {made.dtype}, but got {out.dtype}")
        if out.shape != made.shape:
            out.resize_(made.shape)
    return outs


def _full_rank(a: Array, b: Array) -> tuple[Array, Array]:
    """(solution, squared norms of the residuals) for `a` of full rank; of least norm where there are many solutions."""
    m, n = a.shape[-2:]
    if m >= n:
        held, tau = reflectors(a)
        turned = lax.linalg.ormqr(held, tau, b, left=True, transpose=True)
        r, sides = held[..., :n, :], turned[..., :n, :]
        _demand_full_rank(r)
        return triangular(r, sides, upper=True), _squares(turned[..., n:, :])
    q, r = lax.linalg.qr(adjoint(a), full_matrices=False)
    _demand_full_rank(r)
    half = triangular(r, b, upper=True, transpose=True, conjugate=True)
    return product(q, half), _squares(b[..., :0, :])


def _demand_full_rank(r: Array) -> None:
    require(diagonal(r) != 0, LinAlgError, "a matrix without full rank, for which driver gels has no solution")


def _pivoted(a: Array, b: Array, rank: Array) -> Array:
    """The solution of least norm when the pivoted factor of `a` keeps `rank` rows."""
    q, r, columns = lax.linalg.qr(a, pivoting=True, full_matrices=False)
    kept = (jnp.arange(r.shape[-2]) < rank[..., None])[..., None]
    u, values, vh = singular_values(jnp.where(kept, r, 0))
    # Rows that were dropped are singular values of zero, the last ones.
    found = jnp.arange(values.shape[-1]) < rank[..., None]
    scale = jnp.where(found, 1 / jnp.where(found, values, 1), 0)
    x = product(adjoint(vh), scale[..., None] * product(adjoint(u), product(adjoint(q), b)))
    return jnp.take_along_axis(x, jnp.argsort(columns, -1)[..., None], axis=-2)


def _squares(x: Array) -> Array:
    return (x.real**2 + x.imag**2).sum(-2)


@lower("linalg_lstsq")
def linalg_lstsq(
    self: Array, b: Array, rcond: Any = None, *, driver: str | None = None
) -> tuple[Array, Array, Array, Array]:
    on_matrices(self, b)
    driver = "gelsy" if driver is None else driver
    m, n = self.shape[-2:]
    vector = _is_vector(self.shape, b.shape)
    sides = b[..., None] if vector else b
    batch = jnp.broadcast_shapes(self.shape[:-2], sides.shape[:-2])
    a = jnp.broadcast_to(self, (*batch, m, n))
    sides = jnp.broadcast_to(sides, (*batch, *sides.shape[-2:]))
    real = np.dtype(jnp.finfo(a.dtype).dtype)
    no_rank, no_values, no_residuals = jnp.zeros((0,), jnp.int64), jnp.zeros((0,), real), jnp.zeros((0,), real)
    if a.size == 0 or sides.size == 0:
        x = jnp.zeros((*batch, n, sides.shape[-1]), a.dtype)
        residuals, rank = _squares(sides), jnp.zeros(batch, jnp.int64)
        values = jnp.zeros((*batch, min(m, n)), real)
    elif driver == "gels":
        x, residuals = _full_rank(a, sides)
        rank, values = no_rank, no_values
    else:
        require(jnp.isfinite(self), RuntimeError, "least squares with infs or NaNs")
        u, values, vh = singular_values(a)
        limit = jnp.finfo(real).eps * max(m, n) if rcond is None else jnp.asarray(rcond, real)
        limit = jnp.where(limit < 0, jnp.finfo(real).eps, limit)  # a negative one means the machine's precision
        kept = values > limit * values[..., :1]
        scale = jnp.where(kept, 1 / jnp.where(kept, values, 1), 0)
        rank = kept.sum(-1, dtype=jnp.int64)
        if driver == "gelsy":
            x = _pivoted(a, sides, rank)
        else:
            x = product(adjoint(vh), scale[..., None] * product(adjoint(u), sides))
        residuals = _squares(sides - product(a, x))
        if m > n and driver != "gelsy":
            # There are no residuals when one of the matrices lacks rank: another size, which the CPU has to give.
            require(rank == n, RuntimeError, "a matrix without full rank, for which there are no residuals")
    return (
        x[..., 0] if vector else x,
        residuals if m > n and driver != "gelsy" else no_residuals,
        no_rank if driver == "gels" else rank,
        values if driver in ("gelsd", "gelss") else no_values,
    )
