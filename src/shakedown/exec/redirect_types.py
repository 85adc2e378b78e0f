"""``torch.cuda.FloatTensor`` and its like while CUDA is redirected: a dtype on the device, as a class."""

from __future__ import annotations

from typing import Any

import torch

from . import places
from .redirect import DEVICE

_DTYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}
_types: dict[str, OldType] = {}


class OldType(type):
    """Class of ``torch.cuda.FloatTensor``: calling it makes a tensor on the device, ``isinstance`` asks dtype and device."""

    name: str
    dtype: torch.dtype
    is_cuda = True

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.dtype is cls.dtype
            and instance.device.type in (DEVICE, "cuda")
        )

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        places.note(f"{cls.name}()", f"{DEVICE}, {cls.dtype}", rule="cuda-device")
        kwargs.pop("device", None)
        return getattr(torch, cls.__name__)(*args, **kwargs).to(DEVICE)


def old_type(value: Any) -> OldType | None:
    """The old type that `value` is, or names; None for anything else."""
    if isinstance(value, OldType):
        return value
    return _types.get(value) if isinstance(value, str) else None


def begin() -> None:
    """Put these classes where CUDA's are."""
    for name, dtype in _DTYPES.items():
        full = f"torch.cuda.{name}"
        made = OldType(name, (), {"name": full, "dtype": dtype, "__module__": "torch.cuda"})
        _types[full] = made
        setattr(torch.cuda, name, made)
    original = torch.set_default_tensor_type
    moved = False

    def set_default_tensor_type(t: Any, /) -> None:
        nonlocal moved
        found = old_type(t)
        if found is None:
            original(t)
            if moved:
                torch.set_default_device(None)
                moved = False
            return
        places.note(f"torch.set_default_tensor_type({found.name})", f"{DEVICE}, {found.dtype}", rule="cuda-device")
        torch.set_default_dtype(found.dtype)
        torch.set_default_device(DEVICE)
        moved = True

    torch.set_default_tensor_type = set_default_tensor_type
