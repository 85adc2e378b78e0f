"""Matrix products with COO tensors: entries pick rows of the dense factor, which are scaled and added where they belong."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from .sparse import coo, coo_tensor, is_sparse
from .sparse_coo import _coalesce, add_at, column, matches

Tensor: TypeAlias = torch.Tensor


def scatter_product(rows: Tensor, cols: Tensor, values: Tensor, n: int, dense: Tensor) -> Tensor:
    """``A @ dense`` for the [n, m] matrix A with `values` at (`rows`, `cols`) and `dense` [m, k]: [n, k]."""
    dtype = torch.promote_types(values.dtype, dense.dtype)
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    terms = column(values.to(wide), dense) * dense.to(wide).index_select(0, cols)
    return add_at(n, rows, terms).to(dtype)


def _check(mat1: Tensor, mat2: Tensor) -> None:
    if mat1.dim() != 2 or mat2.dim() != 2:
        raise RuntimeError(f"addmm: matrices expected, got {mat1.dim()}D and {mat2.dim()}D tensors")
    if mat1.shape[1] != mat2.shape[0]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({mat1.shape[0]}x{mat1.shape[1]} and "
            f"{mat2.shape[0]}x{mat2.shape[1]})"
        )


def _plain(*tensors: Tensor) -> bool:
    """Whether each is dense, or COO with only sparse dimensions: what the products here are written for."""
    return all(not is_sparse(t) or (t.layout is torch.sparse_coo and t.dense_dim() == 0) for t in tensors)


@coo("mm")
def mm(self: Tensor, mat2: Tensor) -> Tensor:
    _check(self, mat2)
    if not _plain(self, mat2) or self.dtype is not mat2.dtype:
        return NotImplemented
    if is_sparse(self) and is_sparse(mat2):
        return _sparse_sparse_matmul(self, mat2)
    if is_sparse(self):
        rows, cols = self._indices()
        return scatter_product(rows, cols, self._values(), self.shape[0], mat2)
    rows, cols = mat2._indices()
    return scatter_product(cols, rows, mat2._values(), mat2.shape[1], self.t()).t()


@coo("addmm")
def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    _check(mat1, mat2)
    if is_sparse(self) or not is_sparse(mat1) or is_sparse(mat2) or not _plain(mat1, mat2):
        return NotImplemented
    product = mm(mat1, mat2)
    if product is NotImplemented or self.dtype is not product.dtype:
        return NotImplemented
    self = self.expand(product.shape)
    scaled = product if type(alpha) is int and alpha == 1 else product * alpha
    if type(beta) is not torch.Tensor and beta == 0:
        return scaled  # what `self` holds does not matter then, NaN included
    return (self if type(beta) is int and beta == 1 else self * beta) + scaled


@coo("bmm")
def bmm(self: Tensor, mat2: Tensor) -> Tensor:
    if not is_sparse(self) or is_sparse(mat2) or not _plain(self) or self.dtype is not mat2.dtype:
        return NotImplemented
    if self.dim() != 3 or mat2.dim() != 3 or self.shape[0] != mat2.shape[0] or self.shape[2] != mat2.shape[1]:
        return NotImplemented
    (b, n, m), k = self.shape, mat2.shape[2]
    batch, rows, cols = self._indices()
    flat = scatter_product(batch * n + rows, batch * m + cols, self._values(), b * n, mat2.reshape(b * m, k))
    return flat.view(b, n, k)


@coo("_sparse_sparse_matmul")
def _sparse_sparse_matmul(self: Tensor, other: Tensor) -> Tensor:
    """Every entry (i, k) of `self` meets every entry (k, j) of `other`; equal (i, j) are added."""
    if self.dim() != 2 or other.dim() != 2 or not _plain(self, other) or self.shape[1] != other.shape[0]:
        return NotImplemented
    if self.dtype is not other.dtype:
        return NotImplemented
    self, other = self.coalesce(), other.coalesce()
    (rows, inner), (theirs, cols) = self._indices(), other._indices()
    mine, match = matches(theirs, inner)
    indices = torch.stack([rows.index_select(0, mine), cols.index_select(0, match)])
    values = self._values().index_select(0, mine) * other._values().index_select(0, match)
    return _coalesce(coo_tensor(indices, values, (self.shape[0], other.shape[1])))
