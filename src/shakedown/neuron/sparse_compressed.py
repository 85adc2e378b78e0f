"""Operators on CSR and CSC tensors (and, through COO, on BSR and BSC ones), as functions on their members.

The row of an entry follows from the compressed indices by a search, so nothing here but a sparse result's size is read by the
host. Batches of matrices have one row of members each, of equal length.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from .sparse import compressed, compressed_tensor, coo, is_sparse, members
from .sparse_coo import add_at
from .sparse_products import scatter_product

Tensor: TypeAlias = torch.Tensor
aten = torch.ops.aten
_BLOCKS = (torch.sparse_bsr, torch.sparse_bsc)


def entries(self: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and values ([..., nnz]) of a CSR or CSC tensor, with leading batch dimensions."""
    ends, plain, values = members(self)
    number = torch.arange(plain.shape[-1], device=plain.device, dtype=ends.dtype).expand(plain.shape)
    outer = torch.searchsorted(ends, number.contiguous(), right=True) - 1
    outer, plain = outer.to(torch.int64), plain.to(torch.int64)
    return (outer, plain, values) if self.layout is torch.sparse_csr else (plain, outer, values)


def _simple(*tensors: Tensor) -> bool:
    """Whether each is a dense matrix or a CSR/CSC matrix without batch or dense dimensions."""
    return all(t.dim() == 2 and (not is_sparse(t) or t.layout in (torch.sparse_csr, torch.sparse_csc)) for t in tensors)


def _like(made: Tensor, layout: torch.layout, dtype: torch.dtype) -> Tensor:
    """A compressed tensor of `layout` out of the COO tensor `made`, with indices of `dtype`."""
    found = made.to_sparse_csr() if layout is torch.sparse_csr else made.to_sparse_csc()
    ends, plain, values = members(found)
    return aten._sparse_compressed_tensor_unsafe(
        ends.to(dtype), plain.to(dtype), values, found.shape, dtype=values.dtype, layout=layout, device=values.device
    )


def _converted(layout: torch.layout, name: str) -> None:
    @compressed(name)
    def convert(self: Tensor, dense_dim: int | None = None) -> Tensor:
        if self.layout is layout:
            return self.clone()
        if not _simple(self) or dense_dim:
            return NotImplemented
        rows, cols, values = entries(self)
        outer, inner, n = (rows, cols, self.shape[0]) if layout is torch.sparse_csr else (cols, rows, self.shape[1])
        outer, order = outer.sort(stable=True)  # the other index stays sorted within equals
        dtype = members(self)[0].dtype
        ends = torch._convert_indices_from_coo_to_csr(outer, n, out_int32=dtype is torch.int32)
        inner = inner.index_select(0, order).to(dtype)
        return aten._sparse_compressed_tensor_unsafe(
            ends,
            inner,
            values.index_select(0, order),
            self.shape,
            dtype=values.dtype,
            layout=layout,
            device=values.device,
        )


_converted(torch.sparse_csr, "_to_sparse_csr")
_converted(torch.sparse_csc, "_to_sparse_csc")


def _in_blocks(layout: torch.layout, name: str) -> None:
    @compressed(name)
    @coo(name)
    def convert(self: Tensor, blocksize: list[int], dense_dim: int | None = None) -> Tensor:
        if self.dim() != 2 or dense_dim or self.layout in _BLOCKS:
            return NotImplemented
        height, width = blocksize
        if min(height, width) < 1 or self.shape[0] % height or self.shape[1] % width:
            return NotImplemented  # the CPU words the refusal
        if self.layout is torch.sparse_coo:
            (rows, cols), values = self.coalesce()._indices(), self.coalesce()._values()
            dtype = torch.int64
        else:
            (rows, cols, values), dtype = entries(self), members(self)[0].dtype
        outer, inner = rows // height, cols // width
        n, m = self.shape[0] // height, self.shape[1] // width
        if layout is torch.sparse_bsc:
            outer, inner, n, m = inner, outer, m, n
        places, block = torch.unique(outer * m + inner, return_inverse=True)
        ends = torch._convert_indices_from_coo_to_csr(places // max(m, 1), n, out_int32=dtype is torch.int32)
        place = (block * height + rows % height) * width + cols % width
        blocks = values.new_zeros(places.numel() * height * width).index_put((place,), values)
        return aten._sparse_compressed_tensor_unsafe(
            ends,
            (places % max(m, 1)).to(dtype),
            blocks.view(-1, height, width),
            self.shape,
            dtype=values.dtype,
            layout=layout,
            device=values.device,
        )


_in_blocks(torch.sparse_bsr, "_to_sparse_bsr")
_in_blocks(torch.sparse_bsc, "_to_sparse_bsc")


# --- products of elements, sums -------------------------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or (value.dim() == 0 and not is_sparse(value))


@compressed("mul.Tensor", "mul.Scalar")
def mul(self: Any, other: Any) -> Tensor:
    if not is_sparse(self):
        self, other = other, self
    if _is_number(other):
        return compressed_tensor(self, members(self)[2] * other)
    if not _simple(self, other):
        return NotImplemented
    if is_sparse(other):
        if self.shape != other.shape or self.layout is not other.layout:
            return NotImplemented
        return _like(self.to_sparse() * other.to_sparse(), self.layout, members(self)[0].dtype)
    if other.shape != self.shape:
        return NotImplemented
    rows, cols, values = entries(self)
    return compressed_tensor(self, values * other[rows, cols])


@compressed("add.Tensor")
def add(self: Tensor, other: Tensor, alpha: Any = 1) -> Tensor:
    if not isinstance(other, torch.Tensor) or not _simple(self, other) or self.shape != other.shape:
        return NotImplemented
    if is_sparse(self) and is_sparse(other):
        if self.layout is not other.layout:
            return NotImplemented
        return _like(self.to_sparse().add(other.to_sparse(), alpha=alpha), self.layout, members(self)[0].dtype)
    if is_sparse(self):
        return NotImplemented
    return self.add(other.to_sparse(), alpha=alpha)


def _reduced(self: Tensor, dim: list[int], keepdim: bool, dtype: torch.dtype | None, product: bool) -> Tensor:
    if not _simple(self) or self.layout is not torch.sparse_csr or not keepdim or self.requires_grad:
        return NotImplemented
    rows, cols, values = entries(self)
    index_dtype = members(self)[0].dtype
    values = values.to(
        dtype or (values.dtype if values.dtype.is_floating_point or values.is_complex() else torch.int64)
    )
    dims = sorted(d % 2 for d in dim)
    reduce = torch.prod if product else torch.sum
    if dims == [0, 1] or not dims:
        count = min(1, values.numel())
        ends, plain, size = rows.new_tensor([0, count]), rows.new_zeros(count), (1, 1)
        made = reduce(values).reshape(1)[:count]
    else:
        places, inverse = torch.unique(cols if dims == [0] else rows, return_inverse=True)
        made = values.new_full((places.numel(),), 1 if product else 0)
        made = made.scatter_reduce(0, inverse, values, "prod" if product else "sum")
        if dims == [0]:
            ends, plain, size = rows.new_tensor([0, places.numel()]), places, (1, self.shape[1])
        else:
            held = rows.new_zeros(self.shape[0] + 1).index_fill(0, places + 1, 1)
            ends, plain, size = held.cumsum(0), torch.zeros_like(places), (self.shape[0], 1)
    return aten._sparse_compressed_tensor_unsafe(
        ends.to(index_dtype),
        plain.to(index_dtype),
        made,
        size,
        dtype=made.dtype,
        layout=self.layout,
        device=made.device,
    )


@compressed("_sparse_csr_sum.dim_dtype")
def _sparse_csr_sum(self: Tensor, dim: list[int], keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return _reduced(self, dim, keepdim, dtype, False)


@compressed("_sparse_csr_prod.dim_dtype")
def _sparse_csr_prod(self: Tensor, dim: list[int], keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return _reduced(self, dim, keepdim, dtype, True)


# --- matrix products ------------------------------------------------------------------------------------------------------


@compressed("mm")
def mm(self: Tensor, mat2: Tensor) -> Tensor:
    if not _simple(self, mat2) or self.shape[1] != mat2.shape[0] or self.dtype is not mat2.dtype:
        return NotImplemented
    if is_sparse(self) and is_sparse(mat2):
        layout = torch.sparse_csc if self.layout is mat2.layout is torch.sparse_csc else torch.sparse_csr
        return _like(torch.mm(self.to_sparse(), mat2.to_sparse()), layout, members(self)[0].dtype)
    rows, cols, values = entries(self if is_sparse(self) else mat2)
    if is_sparse(self):
        return scatter_product(rows, cols, values, self.shape[0], mat2)
    return scatter_product(cols, rows, values, mat2.shape[1], self.t()).t()


def _sum(self: Tensor, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    scaled = product if type(alpha) is int and alpha == 1 else product * alpha
    if not isinstance(beta, torch.Tensor) and beta == 0:
        return scaled  # what `self` holds does not matter then, NaN included
    return (self if type(beta) is int and beta == 1 else self * beta) + scaled


@compressed("addmm")
def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    if not _simple(mat1, mat2) or mat1.layout in _BLOCKS or mat2.layout in _BLOCKS:
        return NotImplemented
    product = mm(mat1, mat2)
    if product is NotImplemented or self.dtype is not product.dtype or self.layout is not product.layout:
        return NotImplemented
    if not is_sparse(self):
        self = self.expand(product.shape)
    return _sum(self, product, beta, alpha)


@compressed("addmv")
def addmv(self: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    if not _simple(mat) or vec.dim() != 1 or is_sparse(self) or mat.shape[1] != vec.shape[0]:
        return NotImplemented
    product = mm(mat, vec.unsqueeze(1))
    return product if product is NotImplemented else _sum(self, product.squeeze(1), beta, alpha)


@compressed("sparse_sampled_addmm")
def sparse_sampled_addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """``alpha * (mat1 @ mat2) + beta * self`` at the entries of the CSR tensor `self`; batches as in ``torch.bmm``."""
    if self.layout is not torch.sparse_csr or self.dense_dim() or is_sparse(mat1) or is_sparse(mat2):
        return NotImplemented
    batch = self.shape[:-2]
    fits = mat1.shape == (*batch, self.shape[-2], mat1.shape[-1]) and mat2.shape == (
        *batch,
        mat1.shape[-1],
        self.shape[-1],
    )
    if not fits or not self.dtype is mat1.dtype is mat2.dtype:
        return NotImplemented
    rows, cols, values = entries(self)
    k = mat1.shape[-1]
    left = torch.gather(mat1, -2, rows.unsqueeze(-1).expand(*rows.shape, k))
    right = torch.gather(mat2.transpose(-1, -2), -2, cols.unsqueeze(-1).expand(*cols.shape, k))
    return compressed_tensor(self, _sum(values, (left * right).sum(-1), beta, alpha))


# --- products with another reduction than a sum -----------------------------------------------------------------------------


@compressed("_sparse_mm_reduce_impl")
def _sparse_mm_reduce_impl(self: Tensor, other: Tensor, reduce: str) -> Any:
    if self.layout is not torch.sparse_csr or not _simple(self, other) or is_sparse(other):
        return NotImplemented
    if (
        self.shape[1] != other.shape[0]
        or self.dtype is not other.dtype
        or reduce not in ("sum", "mean", "amax", "amin")
    ):
        return NotImplemented
    rows, cols, values = entries(self)
    n, k = self.shape[0], other.shape[1]
    nothing = cols.new_empty(0)
    if values.numel() == 0:
        return other.new_zeros((n, k)), nothing
    if reduce == "sum":
        return scatter_product(rows, cols, values, n, other), nothing
    terms = values.unsqueeze(1) * other.index_select(0, cols)
    index = rows.unsqueeze(1).expand(terms.shape)
    out = other.new_zeros((n, k)).scatter_reduce(0, index, terms, reduce, include_self=False)
    if reduce == "mean" or not (torch.is_grad_enabled() and (self.requires_grad or other.requires_grad)):
        return out, nothing
    # The first entry that attains the extreme value, or nnz where a row is empty.
    number = torch.arange(values.numel(), device=values.device).unsqueeze(1).expand(terms.shape)
    number = torch.where(terms == out.index_select(0, rows), number, values.numel())
    first = number.new_full((n, k), values.numel()).scatter_reduce(0, index, number, "amin")
    return out, first


@compressed("_sparse_mm_reduce_impl_backward")
def _sparse_mm_reduce_impl_backward(
    self: Tensor, grad_out: Tensor, weight: Tensor, reduce: str, arg_out: Tensor, output_mask: list[bool]
) -> Any:
    if self.layout is not torch.sparse_csr or not _simple(self, weight):
        return NotImplemented
    rows, cols, values = entries(self)
    if reduce in ("sum", "mean"):
        picked = grad_out.index_select(0, rows)
        if reduce == "mean":
            count = add_at(self.shape[0], rows, torch.ones_like(values)).clamp(min=1)
            picked = picked / count.index_select(0, rows).unsqueeze(1)
        by_entry = picked * weight.index_select(0, cols)
        to_weight = picked * values.unsqueeze(1)
        grad_values = by_entry.sum(1)
        grad_weight = add_at(weight.shape[0], cols, to_weight)
    else:
        there = arg_out < values.numel()
        entry = torch.where(there, arg_out, 0)
        column = cols.index_select(0, entry.reshape(-1)).view(entry.shape)
        zero = torch.zeros_like(grad_out)
        by_entry = torch.where(there, grad_out * weight.gather(0, column), zero)
        grad_values = add_at(values.numel(), entry.reshape(-1), by_entry.reshape(-1))
        to_weight = torch.where(there, grad_out * values.index_select(0, entry.reshape(-1)).view(entry.shape), zero)
        grad_weight = torch.zeros_like(weight).scatter_add(0, column, to_weight)
    return compressed_tensor(self, grad_values) if output_mask[0] else None, grad_weight if output_mask[1] else None
