"""A tensor with elements added at its end, and a mask that says which are real."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from ..errors import BucketingError

Fill = bool | int | float | Literal["edge"]


def padded(
    tensor: torch.Tensor, ends: Sequence[tuple[int, int, Fill]], name: str, device: torch.device
) -> torch.Tensor:
    """`tensor` on `device` with each (dimension, size, fill) made that long: ``"edge"`` repeats the last element.

    Differentiable.

    On a device that compiles each operator for each shape, padding there would be a program for each length. So it is done
    on the host there, and what comes back is contiguous and has a storage of its own: one layout, one program. Elsewhere it
    is done where the tensor is. Where nothing is to be done it is `tensor` itself.

    Raises:
        BucketingError: the dtype cannot hold the fill.
    """
    missing = [(dim, size - tensor.shape[dim], fill) for dim, size, fill in ends if size != tensor.shape[dim]]
    remote = tensor.device.type == "neuron"
    as_wanted = tensor.is_contiguous() and (not remote or tensor.storage_offset() == 0)
    if not missing and as_wanted:
        return tensor.to(device)
    work = tensor.cpu() if remote else tensor
    for dim, more, fill in missing:
        shape = [*work.shape[:dim], more, *work.shape[dim + 1 :]]
        if fill == "edge" and work.shape[dim]:
            block = work.narrow(dim, work.shape[dim] - 1, 1).expand(shape)
        else:
            value = 0 if fill == "edge" else fill
            try:
                block = work.new_full(shape, value)
            except (RuntimeError, TypeError, OverflowError) as error:
                raise _refused(name, work.dtype, value, error) from None
            if not _holds(work.dtype, value):
                raise _refused(name, work.dtype, value, "")
        work = torch.cat([work, block], dim)
    return work.contiguous().to(device)


def _holds(dtype: torch.dtype, value: Any) -> bool:
    if dtype is torch.bool:
        return value in (0, 1)
    if dtype.is_floating_point or dtype.is_complex:
        return True
    info = torch.iinfo(dtype)
    return value == int(value) and info.min <= value <= info.max


def _refused(name: str, dtype: torch.dtype, value: Any, why: object) -> BucketingError:
    return BucketingError(
        f"{name} is {str(dtype).removeprefix('torch.')}, which cannot hold its padding {value!r}: give pad={{'{name}': ...}}"
        + (f" ({why})" if why else "")
    )


def ones_then_zeros(
    sizes: Sequence[int], real: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A mask of `sizes`: 1 at what is within `real` in every dimension, 0 at what was added."""
    made = torch.zeros(list(sizes), dtype=dtype)
    made[tuple(slice(n) for n in real)] = 1
    return made.to(device)
