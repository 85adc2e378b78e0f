"""Kernels written by hand: what allocates, moves between devices, or only touches metadata.

Everything that computes goes through a plan. These cannot, because their result is a storage, a host value or a view.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from . import events, lazy
from .buffer import DEVICE, contiguous_stride, is_device_tensor, storage_nbytes
from .dispatch import program_kernel, put_kernel
from .dtypes import to_torch
from .lowering import registry
from .pending import Pending
from .transfer import adopt, check_device, empty, is_dense, overwrite, set_storage, to_device, to_host

OpOverload: TypeAlias = torch._ops.OpOverload
_CPU_KEY = torch._C.DispatchKey.CPU
_kernels: dict[str, Callable[..., Any]] = {}

# CPU kernels that only compute sizes and strides, and serve any device.
_METADATA_ONLY = ("as_strided", "view", "_reshape_alias", "unfold", "view_as_real", "view_as_complex")


def _kernel(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def put(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            _kernels[name] = fn
        return fn

    return put


def register(library: torch.library.Library) -> set[OpOverload]:
    """Register these kernels; returns their overloads."""
    taken: set[OpOverload] = set()
    for name in _METADATA_ONLY:
        op = registry.overload(name)
        # Redispatching to a key without a kernel crashes the interpreter instead of raising, so ask first.
        if not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CPU"):
            raise RuntimeError(f"this PyTorch has no CPU kernel for {op}, on which views of the device rest")
        _kernels[name] = functools.partial(op._op_dk, _CPU_KEY)
    for name, fn in _kernels.items():
        op = registry.overload(name)
        library.impl(op, fn, "PrivateUse1")
        put_kernel(op, fn)
        taken.add(op)
    return taken


def names() -> set[str]:
    """Overloads with a kernel here, such as ``set_.source_Storage``: what allocates, moves or views."""
    return {*_kernels, *_METADATA_ONLY}


def _dtype(dtype: torch.dtype | None) -> torch.dtype:
    return torch.get_default_dtype() if dtype is None else dtype


def _fills() -> bool:
    """Whether new memory is to show that nobody has written it (torch.utils.deterministic.fill_uninitialized_memory)."""
    return torch._C._get_deterministic_algorithms() and torch._C._get_deterministic_fill_uninitialized_memory()


def _mark(new: torch.Tensor) -> torch.Tensor:
    """`new` filled as PyTorch fills uninitialised memory: NaN, or the largest integer of its type."""
    if new.dtype is torch.bool:
        return new.fill_(True)
    return new.fill_(
        float("nan") if new.dtype.is_floating_point or new.dtype.is_complex else torch.iinfo(new.dtype).max
    )


def _uninitialised(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    made = empty(size, stride, dtype)
    if made.numel() and _fills():
        length = storage_nbytes(dtype, size, stride) // dtype.itemsize
        made.untyped_storage().buffer = _mark(empty((length,), (1,), dtype)).untyped_storage().buffer
    return made


@_kernel("empty.memory_format")
def _empty(
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")
    check_device(device)
    like = torch.empty(size, dtype=_dtype(dtype), device="meta", memory_format=memory_format or torch.contiguous_format)
    return _uninitialised(tuple(like.shape), tuple(like.stride()), like.dtype)


@_kernel("empty_strided")
def _empty_strided(
    size: list[int],
    stride: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")
    check_device(device)
    like = torch.empty_strided(size, stride, dtype=_dtype(dtype), device="meta")
    return _uninitialised(tuple(like.shape), tuple(like.stride()), like.dtype)


def _run(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    return program_kernel(op)(*args, **kwargs)


@_kernel("copy_")
def _copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    here, there = is_device_tensor(self), is_device_tensor(src)
    if here and lazy.is_lazy(self):
        lazy.write(self, src)
        return self
    if there:
        src = lazy.materialised(src)
    if here and there:
        return _run(torch.ops.aten.copy_.default, self, src)
    if there:
        return self.copy_(to_host(src))
    if src.device.type != "cpu":
        raise RuntimeError(f"cannot copy a {src.device} tensor to {DEVICE}: move it to the CPU first")
    if src.is_complex() and not self.is_complex():
        src = src.real
    if src.shape == self.shape and self.numel() and is_dense(self) and _fills_storage(self):
        overwrite(self, src)
        return self
    return _run(torch.ops.aten.copy_.default, self, to_device(src.to(self.dtype)))


def _fills_storage(tensor: torch.Tensor) -> bool:
    """Whether the tensor covers all of its storage, in the dtype that the buffer has."""
    storage = tensor.untyped_storage()
    needed = storage_nbytes(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
    return (
        tensor.storage_offset() == 0
        and needed == storage.nbytes()
        # A value that is still to come is not waited for: any buffer of the right size will do.
        and (type(storage.buffer) is Pending or to_torch(storage.buffer.dtype) is tensor.dtype)
    )


@_kernel("_copy_from")
def _copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return dst.copy_(self)


@_kernel("_copy_from_and_resize")
def _copy_from_and_resize(self: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    return dst.resize_(self.shape).copy_(self)


@_kernel("_to_copy")
def _to_copy(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    if type(self) is not torch.Tensor and torch.nn.parameter.is_lazy(self):
        with torch._C.DisableTorchFunctionSubclass():
            self = self.detach()  # a parameter that refuses to be asked for its sizes, which are those of nothing
    check_device(device)
    if not is_device_tensor(self):  # the dispatcher chose us for the device argument
        if self.device.type != "cpu":
            raise RuntimeError(f"cannot copy a {self.device} tensor to {DEVICE}: move it to the CPU first")
        return to_device(self.to(dtype=dtype or self.dtype, memory_format=memory_format or torch.preserve_format))
    if device is None or device.type == DEVICE.type:
        return _run(torch.ops.aten._to_copy.default, self, dtype=dtype, memory_format=memory_format)
    host = to_host(self)
    return host.to(device=device, dtype=dtype or host.dtype, memory_format=memory_format or torch.preserve_format)


@_kernel("_local_scalar_dense")
def _local_scalar_dense(self: torch.Tensor) -> Any:
    if self.numel() != 1:
        raise RuntimeError(f"a Tensor with {self.numel()} elements cannot be converted to Scalar")
    start_ns = time.perf_counter_ns()
    value = to_host(self, "value read").item()
    events.record("synchronize", "item", start_ns=start_ns, duration_ns=time.perf_counter_ns() - start_ns)
    return value


@_kernel("record_stream")
def _record_stream(self: torch.Tensor, s: Any) -> None:
    """Nothing: a value lives as long as a program that reads it runs, whatever stream it was queued on."""
    if s.device.type != DEVICE.type:
        raise RuntimeError(f"expected a stream of device {DEVICE.type!r}, got one of {s.device}")


@_kernel("set_.source_Storage_storage_offset")
def _set(
    self: torch.Tensor,
    source: torch.UntypedStorage,
    storage_offset: int,
    size: list[int],
    stride: list[int] = (),  # type: ignore[assignment]
) -> torch.Tensor:
    return set_storage(self, source, storage_offset, tuple(size), tuple(stride) or contiguous_stride(tuple(size)))


@_kernel("set_.source_Storage")
def _set_storage(self: torch.Tensor, source: torch.UntypedStorage) -> torch.Tensor:
    return set_storage(self, source, 0, (source.nbytes() // self.dtype.itemsize,), (1,))


@_kernel("set_.source_Tensor")
def _set_tensor(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    adopt(self, source)
    return self


@_kernel("set_")
def _set_nothing(self: torch.Tensor) -> torch.Tensor:
    adopt(self, empty((0,), (1,), self.dtype))
    return self


@_kernel("resize_")
def _resize(self: torch.Tensor, size: list[int], *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """Give `self` new sizes, keeping its old elements in storage order; new ones are uninitialised."""
    like = torch.empty(size, dtype=self.dtype, device="meta", memory_format=memory_format or torch.contiguous_format)
    if tuple(like.shape) == tuple(self.shape) and memory_format is None:
        return self
    shape, stride = tuple(like.shape), tuple(like.stride())
    storage, offset = self.untyped_storage(), self.storage_offset()
    if offset * self.dtype.itemsize + storage_nbytes(self.dtype, shape, stride) > storage.nbytes():
        # The size of a storage is fixed, so growing means moving; views taken before keep the old storage.
        length = offset + storage_nbytes(self.dtype, shape, stride) // self.dtype.itemsize
        grown = empty((length,), (1,), self.dtype)
        old = storage.nbytes() // self.dtype.itemsize
        if old:
            grown[:old].copy_(set_storage(empty((0,), (1,), self.dtype), storage, 0, (old,), (1,)))
        if old < length and _fills():
            _mark(grown[old:])
        storage = grown.untyped_storage()
    return set_storage(self, storage, offset, shape, stride)


@_kernel("equal")
def _equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    if self.shape != other.shape:
        return False
    return bool(torch.eq(self, other).all().item())
