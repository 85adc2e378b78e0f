"""Operators whose output sizes depend on data, as several others and one read of the size by the host.

The data stays on the device. Also here: operators that only sometimes depend on data (an index that may be a mask),
which run as one program otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import torch

from ..errors import LoweringError
from .checks import require
from .registry import composite, lower, overload
from .scan import prefix_sum
from .sort import search

Tensor: TypeAlias = torch.Tensor
aten = torch.ops.aten


def kernel_of_lowering(name: str) -> Callable[..., Any]:
    from ..dispatch import program_kernel  # loaded after the lowerings

    return program_kernel(overload(name))


def _size_of(count: Tensor) -> int:
    """The one read of the host."""
    return int(count.item())


def _not_implemented(kernel: str, tensor: Tensor) -> NotImplementedError:
    """What ATen's dispatch on dtypes raises."""
    name = torch.empty(0, dtype=tensor.dtype).type().rpartition(".")[2].removesuffix("Tensor")
    return NotImplementedError(f"\"{kernel}\" not implemented for '{name}'")


def _on_device(like: Tensor, tensor: Tensor) -> Tensor:
    return tensor if tensor.device == like.device else tensor.to(like.device)


# --- positions of what is not zero ------------------------------------------------------------


@composite("nonzero")
def nonzero(self: Tensor) -> Tensor:
    if self.dim() == 0:
        return self.new_zeros((1 if self.item() else 0, 0), dtype=torch.int64)
    count = _size_of(torch.count_nonzero(self))
    # The size is rounded up, so that another count rarely compiles another program; the result is its beginning.
    room = min(1 << max(count - 1, 0).bit_length(), self.numel())
    return torch.nonzero_static(self, size=room)[:count]


@composite("masked_select")
def masked_select(self: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    self, mask = torch.broadcast_tensors(self, _on_device(self, mask))
    return torch.index_select(self.reshape(-1), 0, nonzero(mask.reshape(-1)).view(-1))


@lower("repeat_interleave.Tensor", graph_only=True)
def repeat_interleave_to_size(repeats: jax.Array, output_size: int | None = None) -> jax.Array:
    if output_size is None:
        raise LoweringError("repeats whose sum only the device knows; give output_size")
    ends = prefix_sum(repeats.astype(jnp.int64))
    return search(ends, jnp.arange(output_size, dtype=jnp.int64), right=True)


@composite("repeat_interleave.Tensor")
def repeat_interleave(repeats: Tensor, output_size: int | None = None) -> Tensor:
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int32, torch.int64):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if repeats.numel() == 0:
        return torch.empty_like(repeats)
    ends = torch.cumsum(repeats, 0)
    lowest, size = torch.stack([repeats.min().to(torch.int64), ends[-1]]).tolist()
    if lowest < 0:
        raise RuntimeError("repeats can not be negative")
    if output_size is not None and output_size != size:
        raise RuntimeError("allocated size does not match required size")
    places = torch.arange(size, device=repeats.device, dtype=ends.dtype)
    return torch.searchsorted(ends, places, right=True).to(repeats.dtype)


@composite("bincount")
def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if self.dim() != 1:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if self.dtype.is_floating_point or self.dtype.is_complex or self.dtype == torch.bool:
        raise _not_implemented("bincount_cpu", self)
    if weights is not None and weights.shape != self.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    if self.numel() == 0:
        return torch.zeros(minlength, dtype=torch.int64, device=self.device)
    lowest, highest = torch.stack(torch.aminmax(self)).tolist()
    if lowest < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    size, index = max(minlength, highest + 1), self.to(torch.int64)
    if weights is None:
        weights = torch.ones((), dtype=torch.int64, device=self.device).expand(self.shape)
    elif weights.dtype != torch.float32:
        weights = weights.to(torch.float64)
    return torch.zeros(size, dtype=weights.dtype, device=self.device).scatter_add_(0, index, weights)


@composite("_assert_async", "_assert_async.msg")
def _assert_async(self: Tensor, assert_msg: str = "Expected Tensor with single nonzero value, but got zero") -> None:
    if self.numel() != 1:
        raise RuntimeError(
            f"Boolean value of Tensor with {'more than one value' if self.numel() else 'no values'} is ambiguous"
        )
    if not self.item():
        raise RuntimeError(assert_msg)


@lower("_functional_assert_async.msg")
def _functional_assert_async(self: jax.Array, assert_msg: str, dep_token: jax.Array) -> jax.Array:
    require(self != 0, RuntimeError, assert_msg)
    return dep_token


# --- distinct values --------------------------------------------------------------------------


def _runs(starts: Tensor) -> tuple[int, Tensor]:
    """(number of runs, number of the run of each element), from a mask of the elements that begin one."""
    number = torch.cumsum(starts, 0) - 1
    return (_size_of(number[-1]) + 1 if number.numel() else 0), number


def _begins(rows: Tensor) -> Tensor:
    """Which slices of dimension 0 differ from the one before; the first does."""
    changed = rows[1:] != rows[:-1]
    if changed.dim() > 1:
        changed = changed.flatten(1).any(1)
    return torch.cat([torch.ones(1, dtype=torch.bool, device=rows.device), changed])


def _distinct(rows: Tensor, order: Tensor | None, counts: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(distinct slices, number of each element's slice, counts) of `rows`, whose equal slices are neighbours.

    `order` says where the slices were before they were sorted.
    """
    size, number = _runs(_begins(rows))
    index = number.view(-1, *[1] * (rows.dim() - 1)).expand(rows.shape) if rows.dim() > 1 else number
    values = torch.empty((size, *rows.shape[1:]), dtype=rows.dtype, device=rows.device).scatter_(0, index, rows)
    inverse = number if order is None else torch.empty_like(number).scatter_(0, order, number)
    count = torch.zeros(size if counts else 0, dtype=torch.int64, device=rows.device)
    if counts:
        count.scatter_add_(0, number, torch.ones_like(number))
    return values, inverse, count


def _nothing(self: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.int64, device=self.device)


@composite("_unique2")
def _unique2(
    self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    if self.is_complex():
        raise _not_implemented("unique", self)
    if self.numel() == 0:
        empty = _nothing(self)
        return self.new_empty(0), empty.new_empty(self.shape) if return_inverse else empty, empty
    rows, order = torch.sort(self.reshape(-1), stable=True)
    values, inverse, counts = _distinct(rows, order, return_counts)
    return values, inverse.view(self.shape) if return_inverse else _nothing(self), counts


@composite("_unique")
def _unique(self: Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:
    return _unique2(self, sorted, return_inverse)[:2]


@composite("unique_consecutive")
def unique_consecutive(
    self: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    if dim is not None:
        return unique_dim_consecutive(self, dim, return_inverse, return_counts)
    if self.is_complex():
        raise _not_implemented("unique", self)
    empty = _nothing(self)
    if self.numel() == 0:
        return self.new_empty(0), empty.new_empty(self.shape) if return_inverse else empty, empty
    values, inverse, counts = _distinct(self.reshape(-1), None, return_counts)
    return values, inverse.view(self.shape) if return_inverse else empty, counts


def _check_unique_dim(self: Tensor, dim: int) -> None:
    if 0 in self.shape and self.shape[dim] != 0:
        raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")
    if self.is_complex():
        raise _not_implemented("unique_dim", self)


def _along_dim(dim: int, rows: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """PyTorch gives the inverse and the counts whether asked for or not."""
    values, inverse, counts = _distinct(rows, order, True)
    return values.movedim(0, dim), inverse, counts


@composite("unique_dim_consecutive")
def unique_dim_consecutive(
    self: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    _check_unique_dim(self, dim)
    if self.shape[dim] == 0:
        return self.clone(), _nothing(self), _nothing(self)
    return _along_dim(dim, self.movedim(dim, 0), None)


def _row_order(rows: Tensor) -> Tensor:
    """Positions that sort the rows of a matrix lexicographically.

    Each column becomes ranks; then the ranks of neighbouring columns are merged into one, until a single column is
    left: as many sorts as the logarithm of the width.
    """
    count = rows.shape[0]
    while True:
        ordered, order = torch.sort(rows, dim=0, stable=True)
        if rows.shape[1] == 1:
            return order.view(-1)
        changed = torch.zeros_like(order)
        changed[1:] = ordered[1:] != ordered[:-1]
        rank = torch.empty_like(order).scatter_(0, order, torch.cumsum(changed, 0))
        if rank.shape[1] % 2:
            rank = torch.nn.functional.pad(rank, (0, 1))
        rows = rank[:, 0::2] * count + rank[:, 1::2]


@composite("unique_dim")
def unique_dim(
    self: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    _check_unique_dim(self, dim)
    if self.shape[dim] == 0:
        return self.clone(), _nothing(self), _nothing(self)
    rows = self.movedim(dim, 0)
    order = _row_order(rows.reshape(rows.shape[0], -1))
    return _along_dim(dim, rows.index_select(0, order), order)


# --- indexing by tensors, some of which may be masks ------------------------------------------


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _without_masks(self: Tensor, indices: list[Tensor | None]) -> list[Tensor | None]:
    """`indices` with each mask replaced by the positions of its true elements, one tensor a dimension."""
    found: list[Tensor | None] = []
    for index in indices:
        if index is None or not _is_mask(index):
            found.append(index)
            continue
        for d, n in enumerate(index.shape):
            at = len(found) + d
            if at >= self.dim() or n != self.shape[at]:
                raise IndexError(
                    f"The shape of the mask {list(index.shape)} at index {d} does not match the shape of the indexed "
                    f"tensor {list(self.shape)} at index {at}"
                )
        if index.dim() == 0:
            raise IndexError("a 0-d mask reaches indexing only through Python, which adds a dimension")
        found.extend(nonzero(index).unbind(1) if index.device == self.device else index.nonzero().unbind(1))
    return found


@composite("index.Tensor")
def index(self: Tensor, indices: list[Tensor | None]) -> Tensor:
    if any(map(_is_mask, indices)):
        indices = _without_masks(self, indices)
    return kernel_of_lowering("index.Tensor")(self, indices)


def _put(
    name: str, self: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool, *unsafe: bool
) -> Tensor:
    masks = [i for i in indices if _is_mask(i)]
    if masks:
        # One value under one mask is a choice between two values of each element: nothing depends on a count.
        mask = masks[0]
        alone = len(masks) == 1 and all(i is None or i is mask for i in indices)
        fits = mask is not None and mask.dtype == torch.bool and mask.device == self.device
        if not (alone and fits and values.numel() == 1):
            indices = _without_masks(self, indices)
    return kernel_of_lowering(name)(self, indices, values, accumulate, *unsafe)


@composite("index_put")
def index_put(self: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    return _put("index_put", self, indices, values, accumulate)


@composite("index_put_")
def index_put_(self: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    return _put("index_put_", self, indices, values, accumulate)


@composite("_index_put_impl_")
def _index_put_impl_(
    self: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Tensor:
    return _put("_index_put_impl_", self, indices, values, accumulate, unsafe)


# --- into a given tensor ----------------------------------------------------------------------


def _into(name: str, fn: Callable[..., Tensor]) -> None:
    """Register an ``out=`` form, which the schema cannot derive for operators without a lowering."""

    def on_the_cpu(args: Any, kwargs: Any, reason: str) -> Any:
        from .. import dispatch, fallback  # loaded after the lowerings

        return fallback.run(dispatch.operator_of(overload(name)), args, kwargs, reason)

    @composite(name)
    def write(*args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        if any(isinstance(a, torch.Tensor) and a.untyped_storage() is out.untyped_storage() for a in args):
            return on_the_cpu(args, {**kwargs, "out": out}, "the out= is an input")
        made = fn(*args, **kwargs)
        if made.dtype != out.dtype:
            return on_the_cpu(args, {**kwargs, "out": out}, f"an out= of {out.dtype}")
        return (out if out.shape == made.shape else out.resize_(made.shape)).copy_(made)


_into("nonzero.out", nonzero)
_into("masked_select.out", masked_select)
_into("index.Tensor_out", index)
_into("bincount.out", bincount)
_into("rrelu_with_noise.out", torch.ops.aten.rrelu_with_noise.default)  # the noise is written, so no schema tells


@composite("addbmm_")
def addbmm_(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """In place, but as on the CPU a smaller `self` grows to the sizes of the sum."""
    size = (batch1.shape[1], batch2.shape[2]) if batch1.dim() == batch2.dim() == 3 else self.shape
    if tuple(self.shape) == tuple(size):
        return kernel_of_lowering("addbmm_")(self, batch1, batch2, beta=beta, alpha=alpha)
    made = torch.addbmm(self, batch1, batch2, beta=beta, alpha=alpha)
    return self.resize_(made.shape).copy_(made)
