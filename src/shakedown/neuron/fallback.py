"""Running an operator on the CPU because the device has no program for it; every such call is recorded with its reason."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from . import events, log, runtime
from .buffer import DEVICE, is_device_tensor
from .dtypes import to_torch
from .operators import Operator
from .pending import value_of
from .transfer import adopt, to_device, view_on

_CPU = torch.device("cpu")
_UPCAST = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
}


class _Host:
    """CPU twins of the device tensors of one call. Tensors that share a storage share it on the host too."""

    def __init__(self) -> None:
        self.storages: dict[int, tuple[Any, torch.Tensor]] = {}  # id(storage) -> (device storage, uint8 host tensor)
        self.twins: list[tuple[torch.Tensor, torch.Tensor]] = []  # (device tensor, host tensor)
        self.nbytes = 0  # moved

    def twin(self, tensor: torch.Tensor) -> torch.Tensor:
        for device_tensor, host in self.twins:
            if device_tensor is tensor:
                return host
        storage = tensor.untyped_storage()
        if id(storage) not in self.storages:
            raw = runtime.download(value_of(storage, "fallback"), torch.uint8)
            self.nbytes += raw.numel()
            self.storages[id(storage)] = (storage, raw)
        raw = self.storages[id(storage)][1]
        if tensor.numel() == 0:
            host = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_CPU)
        else:
            host = torch.empty(0, dtype=tensor.dtype, device=_CPU)
            host.set_(raw.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
        self.twins.append((tensor, host))
        return host

    def move(self, value: Any) -> Any:
        if is_device_tensor(value):
            return self.twin(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self.move(v) for v in value)
        if isinstance(value, torch.device) and value.type != "cpu":
            return _CPU
        return value

    def back(self, value: Any) -> Any:
        """What the device gets for `value`, which the CPU kernel returned: an argument, a view of one, or a copy."""
        if isinstance(value, (list, tuple)):
            return type(value)(self.back(v) for v in value)
        if not isinstance(value, torch.Tensor):
            return value
        for device_tensor, twin in self.twins:
            if twin is value:
                return device_tensor
        if value.layout is not torch.strided:
            return value
        for device_storage, raw in self.storages.values():
            if value.numel() and value.untyped_storage().data_ptr() == raw.untyped_storage().data_ptr():
                return view_on(device_storage, value)
        self.nbytes += value.untyped_storage().nbytes()
        return to_device(value)


def run(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str) -> Any:
    """Run the call on the CPU and bring its results, and what it wrote, back to the device.

    Raises:
        NotImplementedError: the CPU kernel's own; a note on it has the device's reason.
        Exception: whatever else PyTorch's CPU kernel raises for these arguments.
    """
    start_ns = time.perf_counter_ns()
    host = _Host()
    host_args, host_kwargs = host.move(args), {n: host.move(v) for n, v in kwargs.items()}
    if "device" in operator.kwarg_roles and not host.twins:
        host_kwargs["device"] = _CPU
    before = {id(twin): (twin.shape, twin.untyped_storage().data_ptr()) for _, twin in host.twins}
    try:
        result = _call(operator.op, host_args, host_kwargs)
    except NotImplementedError as error:
        error.add_note(f"device {DEVICE.type!r} has no program for {operator.name} either: {reason}")
        raise
    moved = _write_back(operator, args, kwargs, host, before)
    answer = host.back(result)
    if log.first(f"fallback {operator.name}"):
        log.logger("fallback").info("%s runs on the CPU: %s", operator.name, reason)
    events.record(
        "fallback",
        operator.name,
        start_ns=start_ns,
        duration_ns=time.perf_counter_ns() - start_ns,
        nbytes=host.nbytes + moved,
        detail=reason,
    )
    return answer


def _call(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call the CPU kernel; where it refuses the dtype, compute in a wider one and convert back."""
    try:
        return op(*args, **kwargs)
    except (NotImplementedError, RuntimeError) as error:
        if "not implemented for" not in str(error):
            raise
        refused = error
    narrow: list[torch.dtype] = []
    if any(a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments):
        raise refused  # the widened copy would be written instead of the argument
    wide_args, wide_kwargs = _widened(args, narrow), {n: _widened(v, narrow) for n, v in kwargs.items()}
    if not narrow:
        raise refused
    try:
        result = op(*wide_args, **wide_kwargs)
    except Exception:
        raise refused from None
    return _narrowed(result, narrow[0])


# Functions of the module: one inside a call that calls itself would hold the call's tensors until the next collection.


def _widened(value: Any, narrow: list[torch.dtype]) -> Any:
    """`value` with its tensors in a wider dtype; `narrow` gets the dtypes that they had."""
    if isinstance(value, torch.Tensor) and value.dtype in _UPCAST:
        narrow.append(value.dtype)
        return value.to(_UPCAST[value.dtype])
    if isinstance(value, (list, tuple)):
        return type(value)(_widened(v, narrow) for v in value)
    return value


def _narrowed(value: Any, dtype: torch.dtype) -> Any:
    """`value` with the tensors that were computed in the wider dtype of `dtype` in `dtype` again."""
    if isinstance(value, torch.Tensor) and value.dtype is _UPCAST[dtype]:
        return value.to(dtype)
    if isinstance(value, (list, tuple)):
        return type(value)(_narrowed(v, dtype) for v in value)
    return value


def _write_back(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], host: _Host, before: dict[int, Any]
) -> int:
    """Upload the storages that the operator may have written, and adopt resized outputs. Returns the bytes moved."""
    written = set(operator.written)
    named = [*zip((a.name for a in operator.op._schema.arguments), args), *kwargs.items()]
    moved = 0
    done: set[int] = set()

    for tensor in _tensors([value for name, value in named if name in written]):
        twin = host.twin(tensor)
        if (twin.shape, twin.untyped_storage().data_ptr()) != before[id(twin)]:  # resized by the kernel
            fresh = to_device(twin)
            moved += fresh.untyped_storage().nbytes()
            adopt(tensor, fresh)
            continue
        storage, raw = host.storages[id(tensor.untyped_storage())]
        if id(storage) in done:
            continue
        done.add(id(storage))
        dtype = to_torch(value_of(storage, "fallback").dtype)
        storage.buffer = runtime.upload(raw.view(dtype))
        moved += raw.numel()
    return moved


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The device tensors in `value`, in lists at any depth."""
    if isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensors(v)
    elif is_device_tensor(value):
        yield value
