"""Tensors between host and device, and a tensor's metadata set to another's storage."""

from __future__ import annotations

import warnings

import torch

from . import runtime
from .buffer import DEVICE, contiguous_stride, template
from .dtypes import in_buffers
from .memory_limit import make_room, refuse, to_read
from .pending import Pending, value_of

_CPU_KEY = torch._C.DispatchKey.CPU
# A view is read with the storage around it, and cut out on the host, where that is little more: a copy on the device would be
# a program for each size, stride and offset, such as those of an output that was padded to a bucket.
_SMALL = 65_536  # bytes
_SHARE = 4
_set_metadata = torch.ops.aten.set_.source_Storage_storage_offset


def adopt(tensor: torch.Tensor, source: torch.Tensor) -> None:
    """Make `tensor` refer to the storage of `source`, with its sizes, strides and offset (resizing an output does this)."""
    set_storage(tensor, source.untyped_storage(), source.storage_offset(), source.shape, source.stride())


def warn_of_resize(tensor: torch.Tensor, fresh: torch.Tensor) -> None:
    """Warn, in PyTorch's words, that an ``out=`` with elements becomes `fresh`; attributed to the caller of its kernel."""
    warnings.warn(
        f"An output with one or more elements was resized since it had shape {list(tensor.shape)}, which does not match "
        f"the required output shape {list(fresh.shape)}. This behavior is deprecated, and in a future PyTorch release "
        "outputs will not be resized unless they have zero elements. You can explicitly reuse an out tensor t by "
        "resizing it, inplace, to zero elements with t.resize_(0).",
        stacklevel=4,
    )


def set_storage(
    tensor: torch.Tensor, storage: torch.UntypedStorage, offset: int, size: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    """``tensor.set_`` by the CPU kernel, which only touches metadata."""
    return _set_metadata._op_dk(_CPU_KEY, tensor, storage, offset, list(size), list(stride))


def check_device(device: torch.device | None) -> None:
    """Raise for a device of ours that this process has not.

    Raises:
        RuntimeError: its index is not 0.
    """
    if device is not None and device.index and device.type == DEVICE.type:
        raise RuntimeError(
            f"Device index {device.index} is out of range: this process has one {DEVICE.type} device, {DEVICE}"
        )


def view_on(storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    """A new device tensor on `storage` with the dtype, sizes, strides and offset of `like`."""
    made = empty((0,), (1,), like.dtype)
    return set_storage(made, storage, like.storage_offset(), like.shape, like.stride())


def empty(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A new device tensor; its elements are zeros today, but nobody may rely on it."""
    layout = template(dtype, tuple(size), tuple(stride))
    make_room(layout.nbytes)
    try:
        value = runtime.zeros(layout.nbytes // dtype.itemsize, dtype)
    except MemoryError:
        refuse(layout.nbytes)
    return layout.new(value)


def to_device(host: torch.Tensor) -> torch.Tensor:
    """A new device tensor with the values, dtype, sizes and strides of the CPU tensor `host`, in memory of its own.

    Strides are kept when the tensor fills its memory without overlap, and made row-major otherwise.
    """
    if not is_dense(host):
        host = host.contiguous()
    size, stride = tuple(host.shape), tuple(host.stride())
    layout = template(host.dtype, size, stride)
    if host.numel() == 0:
        return layout.new(runtime.zeros(0, host.dtype))
    make_room(layout.nbytes)
    if Pending.arrived is not None:
        Pending.arrived(layout.nbytes)
    return layout.new(runtime.upload(host.detach().as_strided((host.numel(),), (1,))))


def overwrite(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Put the values of the CPU tensor `host` into the device tensor `tensor`, which fills its storage and is dense.

    `host` is broadcast and converted. The storage takes no more memory for it, as a copy into it would not.
    """
    laid_out = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu").copy_(host.detach())
    storage = tensor.untyped_storage()
    if Pending.arrived is not None:
        Pending.arrived(storage.nbytes())
    storage.buffer = runtime.upload(laid_out.as_strided((laid_out.numel(),), (1,)))


def to_host(tensor: torch.Tensor, reason: str = "transfer") -> torch.Tensor:
    """A new CPU tensor with the values, dtype, sizes and (when dense) strides of the device tensor `tensor`.

    `reason`: why recorded operators have to run now.
    """
    storage = tensor.untyped_storage()
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    whole = tensor.numel() * tensor.dtype.itemsize == storage.nbytes() and is_dense(tensor)
    lazy = tensor.is_conj() or tensor.is_neg()
    if not (whole or lazy) and storage.nbytes() <= max(_SMALL, _SHARE * tensor.numel() * tensor.dtype.itemsize):
        buffer = value_of(storage, reason)
        if in_buffers(tensor.dtype) == buffer.dtype:
            flat = runtime.download(buffer, tensor.dtype)
            view = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            return view.clone(memory_format=torch.preserve_format)
    if not whole:
        with to_read():
            tensor = tensor.clone(memory_format=torch.preserve_format)
    flat = runtime.download(value_of(tensor.untyped_storage(), reason), tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride())


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill a block of memory exactly, in some order of dimensions."""
    if tensor.stride() == contiguous_stride(tuple(tensor.shape)):
        return True
    expected = 1
    for stride, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride()) if n > 1):
        if stride != expected:
            return False
        expected *= size
    return True
