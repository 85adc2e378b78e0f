"""From dense tensors to sparse ones, and between forms of indices. Operators on sparse tensors are in ``neuron/sparse*.py``."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import torch

from .registry import composite, lower, overload
from .sort import search

_PLAIN_LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)

# PyTorch's CPU kernels for these are made of other operators (`nonzero`, `index`, the two conversions below).
for _name in ("_to_sparse", "_to_sparse.sparse_dim", *(f"_to_sparse_{form}" for form in ("csr", "csc", "bsr", "bsc"))):
    composite(_name)(functools.partial(overload(_name)._op_dk, torch._C.DispatchKey.CPU))


@composite("_validate_compressed_sparse_indices")
def validate(
    is_crow: bool, compressed_idx: torch.Tensor, plain_idx: torch.Tensor, cdim: int, dim: int, nnz: int
) -> None:
    """Raises what the CPU raises; the host looks at the indices, which only a user who asks for checks pays for."""
    torch.ops.aten._validate_compressed_sparse_indices(is_crow, compressed_idx.cpu(), plain_idx.cpu(), cdim, dim, nnz)


@composite("sparse_coo_tensor.indices_size")
def sparse_coo_tensor(
    indices: torch.Tensor, values: torch.Tensor, size: list[int], *, is_coalesced: bool | None = None, **options: Any
) -> torch.Tensor:
    """With a user's wish for checks, the host looks at the indices: PyTorch's check of coalescence follows addresses."""
    aten = torch.ops.aten
    if not torch._C._check_sparse_tensor_invariants():
        return aten._sparse_coo_tensor_unsafe(indices, values, size, is_coalesced=is_coalesced, **options)
    aten._validate_sparse_coo_tensor_args(indices.cpu(), values.cpu(), size, is_coalesced, False)
    with torch.sparse.check_sparse_tensor_invariants(False):
        return aten._sparse_coo_tensor_unsafe(indices, values, size, is_coalesced=is_coalesced, **options)


@composite("_spdiags")
def _spdiags(
    diagonals: torch.Tensor, offsets: torch.Tensor, shape: list[int], layout: torch.layout | None = None
) -> torch.Tensor:
    """Sparse matrix of sizes `shape` with row i of `diagonals` ([n, m]) on the diagonal ``offsets[i]``, by column."""
    wanted = offsets.tolist()
    if diagonals.dim() > 2 or len(shape) != 2 or len(set(wanted)) != len(wanted) or offsets.dim() > 1:
        return torch._spdiags(diagonals.cpu(), offsets.cpu(), shape, layout)  # which knows what is wrong
    table = diagonals.unsqueeze(0) if diagonals.dim() == 1 else diagonals
    if table.shape[0] != len(wanted) or layout not in (None, *_PLAIN_LAYOUTS):
        return torch._spdiags(diagonals.cpu(), offsets.cpu(), shape, layout)
    (n, m), indices, values = shape, [], []
    for row, offset in enumerate(wanted):
        first, last = max(0, offset), min(table.shape[1], m, n + offset)
        if first < last:
            cols = torch.arange(first, last, device=table.device)
            indices.append(torch.stack([cols - offset, cols]))
            values.append(table[row, first:last])
    if not values:
        made = torch.sparse_coo_tensor(table.new_zeros((2, 0), dtype=torch.int64), table.new_zeros(0), shape)
    else:
        made = torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(values), shape)
    if layout is torch.sparse_csr:
        return made.to_sparse_csr()
    return made.to_sparse_csc() if layout is torch.sparse_csc else made


@lower("_convert_indices_from_coo_to_csr")
def coo_to_csr(self: jax.Array, size: int, *, out_int32: bool = False) -> jax.Array:
    """Sorted rows (int64 [nnz]) to the [size + 1] ends of rows, starting with 0."""
    return search(self, jnp.arange(size + 1, dtype=self.dtype), right=False)


@lower("_convert_indices_from_csr_to_coo")
def csr_to_coo(
    crow_indices: jax.Array, col_indices: jax.Array, *, out_int32: bool = False, transpose: bool = False
) -> jax.Array:
    """Ends of rows ([*batch, rows + 1]) and columns ([*batch, nnz]) to indices [len(batch) + 2, total nnz]."""
    *batch, nnz = col_indices.shape
    number = jnp.arange(nnz, dtype=crow_indices.dtype)
    ends = crow_indices.reshape(-1, crow_indices.shape[-1])
    rows = jax.vmap(lambda e: jnp.searchsorted(e, number, side="right") - 1)(ends).reshape(-1)
    leading = [jnp.broadcast_to(i, (*batch, nnz)).reshape(-1) for i in jnp.indices((*batch, nnz))[:-1]]
    pair = [rows.astype(col_indices.dtype), col_indices.reshape(-1)]
    return jnp.stack([i.astype(col_indices.dtype) for i in leading] + (pair[::-1] if transpose else pair))
