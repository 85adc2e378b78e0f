"""Operators on COO tensors, as functions on their indices and values.

An entry's *place* is its row-major number among the sparse dimensions: equal places are the same entry, and sorted places
are coalesced order. Operators whose number of entries depends on data read that number on the host once.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from .buffer import contiguous_stride
from .sparse import coo, coo_tensor, is_sparse, store

Tensor: TypeAlias = torch.Tensor
aten = torch.ops.aten


def place_of(indices: Tensor, size: Any) -> Tensor:
    """Row-major number (int64 [nnz]) of each column of `indices` in sparse dimensions of sizes `size`."""
    if indices.shape[0] == 1:
        return indices[0]
    if indices.shape[0] == 0:
        return indices.new_zeros(indices.shape[1])
    stride = torch.tensor(contiguous_stride(tuple(size)), dtype=torch.int64).to(indices.device)
    return (indices * stride.unsqueeze(1)).sum(0)


def indices_of(place: Tensor, size: Any) -> Tensor:
    """The inverse of :func:`place_of`: int64 [len(size), nnz]."""
    rows = []
    for n, step in zip(size, contiguous_stride(tuple(size))):
        rows.append((place // step) % max(n, 1))
    return torch.stack(rows) if rows else place.new_zeros((0, place.numel()))


def sparse_size(self: Tensor) -> torch.Size:
    return self.shape[: self.sparse_dim()]


def column(entries: Tensor, values: Tensor) -> Tensor:
    """`entries` ([nnz]) with dimensions of one appended, to go with `values` ([nnz, ...])."""
    return entries.view(-1, *(1,) * (values.dim() - 1))


def add_at(size: Any, places: Tensor, values: Tensor) -> Tensor:
    """Zeros of sizes [size, *dense sizes] with each of `values` added at its place; a bool result is "any"."""
    if values.dtype is torch.bool:
        zeros = values.new_zeros((size, *values.shape[1:]), dtype=torch.int32)
        return zeros.index_add(0, places, values.to(torch.int32)) != 0
    return values.new_zeros((size, *values.shape[1:])).index_add(0, places, values)


@coo("_coalesce")
def _coalesce(self: Tensor) -> Tensor:
    indices, values = self._indices(), self._values()
    if self._nnz() < 2:
        return coo_tensor(indices.clone(), values.clone(), self.shape, True)
    if self.sparse_dim() == 0:
        return coo_tensor(indices[:, :1], values.sum(0, keepdim=True).to(values.dtype), self.shape, True)
    places, inverse = torch.unique(place_of(indices, sparse_size(self)), return_inverse=True)
    return coo_tensor(indices_of(places, sparse_size(self)), add_at(places.numel(), inverse, values), self.shape, True)


@coo("_to_dense")
def _to_dense(self: Tensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None) -> Tensor:
    if dtype is not None:
        raise RuntimeError("dtype argument is not supported by sparse_to_dense")
    size = sparse_size(self)
    return add_at(size.numel(), place_of(self._indices(), size), self._values()).view(self.shape)


# --- sums -----------------------------------------------------------------------------------------------------------------


def _scaled(values: Tensor, alpha: Any) -> Tensor:
    return values if type(alpha) is int and alpha == 1 else values * alpha


@coo("add.Tensor")
def add(self: Tensor, other: Any, alpha: Any = 1) -> Tensor:
    if not is_sparse(other):
        return NotImplemented
    if self.shape != other.shape or self.layout is torch.sparse_csr or other.layout is torch.sparse_csr:
        return NotImplemented  # the CPU knows which of these it refuses
    dtype = torch.result_type(self, other)
    if not is_sparse(self):
        size = sparse_size(other)
        values = _scaled(other._values().to(dtype), alpha)
        places = place_of(other._indices(), size)
        if dtype is torch.bool:
            return self | add_at(size.numel(), places, values).view(self.shape)
        flat = self.to(dtype).reshape(size.numel(), *values.shape[1:])
        return flat.index_add(0, places, values).view(self.shape)
    if self.dense_dim() != other.dense_dim():
        return NotImplemented
    values = torch.cat([self._values().to(dtype), _scaled(other._values().to(dtype), alpha)])
    together = coo_tensor(torch.cat([self._indices(), other._indices()], 1), values, self.shape)
    return _coalesce(together) if self.is_coalesced() and other.is_coalesced() else together


@coo("sub.Tensor")
def sub(self: Tensor, other: Any, alpha: Any = 1) -> Tensor:
    if isinstance(other, torch.Tensor) and self.dtype is torch.bool:
        return NotImplemented
    return add(self, other, -alpha)


# --- products of elements -------------------------------------------------------------------------------------------------


def look_up(wanted: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """For each of `wanted` its position in the sorted `places`, and whether it is there (bool)."""
    if places.numel() == 0:
        return torch.zeros_like(wanted), torch.zeros_like(wanted, dtype=torch.bool)
    position = torch.searchsorted(places, wanted).clamp(max=places.numel() - 1)
    return position, places[position] == wanted


def _is_number(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or (value.dim() == 0 and not is_sparse(value))


@coo("mul.Tensor")
def mul(self: Any, other: Any) -> Tensor:
    if _is_number(self) or (not is_sparse(self) and is_sparse(other)):
        self, other = other, self
    if _is_number(other):
        return coo_tensor(self._indices().clone(), self._values() * other, self.shape, self.is_coalesced())
    if not is_sparse(other):
        return _mul_dense(self, other)
    if other.layout is not torch.sparse_coo or self.layout is not torch.sparse_coo:
        return NotImplemented
    shape = torch.broadcast_shapes(self.shape, other.shape)
    if self.shape != shape or other.shape != shape or self.sparse_dim() != other.sparse_dim():
        return NotImplemented
    coalesced = self.is_coalesced() and other.is_coalesced()
    self, other = self.coalesce(), other.coalesce()
    size = sparse_size(self)
    position, there = look_up(place_of(self._indices(), size), place_of(other._indices(), size))
    kept = torch.nonzero(there).view(-1)
    values = self._values().index_select(0, kept) * other._values().index_select(0, position.index_select(0, kept))
    return coo_tensor(self._indices().index_select(1, kept), values, shape, coalesced)


@coo("mul_.Tensor")
def mul_(self: Tensor, other: Any) -> Tensor:
    made = mul(self, other)
    if made is NotImplemented:
        return made
    # PyTorch forgets that a tensor was coalesced when it is scaled in place.
    return (
        store(self, made) if isinstance(other, torch.Tensor) and other.dim() else store(self, made)._coalesced_(False)
    )


def _mul_dense(self: Tensor, other: Tensor) -> Tensor:
    shape = torch.broadcast_shapes(self.shape, other.shape)
    if self.shape != shape:
        return NotImplemented
    size = sparse_size(self)
    if other.dim() <= self.dense_dim():  # the same factor for every entry
        values = self._values() * other
    else:
        whole = other.expand(shape).reshape(size.numel(), *self._values().shape[1:])
        values = self._values() * whole.index_select(0, place_of(self._indices(), size))
    return coo_tensor(self._indices().clone(), values, shape, self.is_coalesced())


# --- parts, sums over dimensions ------------------------------------------------------------------------------------------


def matches(sorted_keys: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """All pairs (i, j) with ``sorted_keys[j] == wanted[i]``, as two int64 tensors in order of i, then j."""
    first = torch.searchsorted(sorted_keys, wanted)
    count = torch.searchsorted(sorted_keys, wanted, right=True) - first
    ends = count.cumsum(0)
    which = torch.repeat_interleave(count) if wanted.numel() else wanted
    inside = torch.arange(which.numel(), device=which.device) - (ends - count).index_select(0, which)
    return which, first.index_select(0, which) + inside


@coo("index_select")
def index_select(self: Tensor, dim: int, index: Tensor) -> Tensor:
    if index.dim() != 1 or index.layout is not torch.strided or not -self.dim() <= dim < self.dim():
        return NotImplemented
    dim %= self.dim()
    size = [*self.shape]
    size[dim] = index.numel()
    if dim >= self.sparse_dim():
        values = self._values().index_select(dim - self.sparse_dim() + 1, index)
        return coo_tensor(self._indices().clone(), values, size, self.is_coalesced())
    n = self.shape[dim]
    if index.numel() and not bool(((index >= -n) & (index < n)).all()):
        raise IndexError(f"index_select(): index contains values out of range for dimension with size {n}")
    wanted = torch.where(index < 0, index + n, index).to(torch.int64)
    keys, order = self._indices()[dim].sort(stable=True)
    which, entry = matches(keys, wanted)
    entry = order.index_select(0, entry)
    rows = [which if d == dim else self._indices()[d].index_select(0, entry) for d in range(self.sparse_dim())]
    return coo_tensor(torch.stack(rows), self._values().index_select(0, entry), size)


@coo("_sparse_sum_backward")
def _sparse_sum_backward(grad: Tensor, self: Tensor, dim: list[int]) -> Tensor:
    dims = [d % self.dim() for d in dim]
    here, values = self.sparse_dim(), self._values()
    kept = [d for d in range(here) if d not in dims]
    size = [self.shape[d] for d in kept]
    if is_sparse(grad) and grad._nnz() == 0:
        return coo_tensor(self._indices().clone(), torch.zeros_like(values), self.shape, self.is_coalesced())
    dense_kept = [d for d in range(here, self.dim()) if d not in dims]
    places = place_of(self._indices()[kept], size) if kept else self._indices().new_zeros(self._nnz())
    if is_sparse(grad):
        grad = grad.coalesce()
        position, there = look_up(places, place_of(grad._indices(), size))
        picked = grad._values().index_select(0, position)
        picked = torch.where(column(there, picked), picked, torch.zeros_like(picked))
    else:
        whole = grad.reshape(max(1, torch.Size(size).numel()), *[self.shape[d] for d in dense_kept])
        picked = whole.index_select(0, places)
    for d in range(here, self.dim()):
        if d in dims:
            picked = picked.unsqueeze(d - here + 1)
    return coo_tensor(self._indices().clone(), picked.expand(values.shape).clone(), self.shape, self.is_coalesced())


def _entries_at(self: Tensor, mask: Tensor) -> Tensor:
    """Sums of the values of `self` at each entry of `mask`, zero where it has none."""
    size, self = sparse_size(self), self.coalesce()
    if self._nnz() == 0:
        return self._values().new_zeros((mask._nnz(), *self._values().shape[1:]))
    position, there = look_up(place_of(mask._indices(), size), place_of(self._indices(), size))
    picked = self._values().index_select(0, position)
    return torch.where(column(there, picked), picked, torch.zeros_like(picked))


@coo("sparse_mask")
def sparse_mask(self: Tensor, mask: Tensor) -> Tensor:
    """The elements of `self` where `mask` has entries, with its indices."""
    if mask.layout is not torch.sparse_coo or self.shape != mask.shape:
        return NotImplemented
    if not is_sparse(self):
        ones = torch.ones_like(mask._values(), dtype=self.dtype)
        return mul(coo_tensor(mask._indices(), ones, mask.shape, mask.is_coalesced()), self)
    if self.layout is not torch.sparse_coo or self.dense_dim() != mask.dense_dim():
        return NotImplemented
    return coo_tensor(mask._indices().clone(), _entries_at(self, mask), mask.shape, mask.is_coalesced())


@coo("_sparse_mask_projection")
def _sparse_mask_projection(self: Tensor, mask: Tensor, accumulate_matches: bool = False) -> Tensor:
    """`self` with zeros at the entries that `mask` lacks."""
    if accumulate_matches or mask.layout is not torch.sparse_coo or self.shape != mask.shape:
        return NotImplemented
    if self.dense_dim() != mask.dense_dim() or not is_sparse(self):
        return NotImplemented
    size, values = sparse_size(self), self._values()
    _, there = look_up(place_of(self._indices(), size), place_of(mask._indices(), size).sort()[0])
    kept = torch.where(column(there, values), values, torch.zeros_like(values))
    return coo_tensor(self._indices().clone(), kept, self.shape, self.is_coalesced())


# --- softmax over the entries ---------------------------------------------------------------------------------------------


def _pools(self: Tensor, dim: int) -> tuple[Tensor, int]:
    """For each entry the number of its pool (entries that differ only in `dim`), and how many pools there are."""
    kept = [d for d in range(self.sparse_dim()) if d != dim]
    if not kept:
        return self._indices().new_zeros(self._nnz()), 1
    places, inverse = torch.unique(place_of(self._indices()[kept], [self.shape[d] for d in kept]), return_inverse=True)
    return inverse, places.numel()


def _softmax(self: Tensor, dim: int, half_to_float: bool, log: bool) -> Tensor:
    if half_to_float:
        raise RuntimeError("softmax with half to float conversion is not supported on neuron")
    self, dim = self.coalesce(), dim % self.dim()
    values = self._values()
    if dim >= self.sparse_dim() or self._nnz() == 0:
        inside = dim - self.sparse_dim() + 1
        made = (torch.log_softmax if log else torch.softmax)(values, inside) if values.numel() else values.clone()
        return coo_tensor(self._indices().clone(), made, self.shape, True)
    pool, count = _pools(self, dim)
    index = column(pool, values).expand(values.shape)
    low = values.new_full((count, *values.shape[1:]), float("-inf"))
    shifted = values - low.scatter_reduce(0, index, values, "amax").index_select(0, pool)
    sums = add_at(count, pool, shifted.exp()).index_select(0, pool)
    made = shifted - sums.log() if log else shifted.exp() / sums
    return coo_tensor(self._indices().clone(), made, self.shape, True)


@coo("_sparse_softmax")
def _sparse_softmax(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return _softmax(self, dim, half_to_float, False)


@coo("_sparse_log_softmax")
def _sparse_log_softmax(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return _softmax(self, dim, half_to_float, True)


def _softmax_backward(grad: Tensor, output: Tensor, dim: int, log: bool) -> Tensor:
    grad, output, dim = grad.coalesce(), output.coalesce(), dim % output.dim()
    size, values = sparse_size(output), output._values()
    position, there = look_up(place_of(output._indices(), size), place_of(grad._indices(), size))
    if grad._nnz() == 0 or values.numel() == 0:
        return coo_tensor(output._indices().clone(), torch.zeros_like(values), output.shape, True)
    g = grad._values().index_select(0, position)
    g = torch.where(column(there, g), g, torch.zeros_like(g))
    term = g if log else g * values
    if dim >= output.sparse_dim():
        sums = term.sum(dim - output.sparse_dim() + 1, keepdim=True)
    else:
        pool, count = _pools(output, dim)
        sums = add_at(count, pool, term).index_select(0, pool)
    made = g - values.exp() * sums if log else values * (g - sums)
    return coo_tensor(output._indices().clone(), made, output.shape, True)


@coo("_sparse_softmax_backward_data")
def _sparse_softmax_backward_data(grad_output: Tensor, output: Tensor, dim: int, self: Tensor) -> Tensor:
    return _softmax_backward(grad_output, output, dim, False)


@coo("_sparse_log_softmax_backward_data")
def _sparse_log_softmax_backward_data(grad_output: Tensor, output: Tensor, dim: int, self: Tensor) -> Tensor:
    return _softmax_backward(grad_output, output, dim, True)
