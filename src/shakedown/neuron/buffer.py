"""The value behind a storage, and how a plain ``torch.Tensor`` is made around it.

A storage of this device has an address that is only a unique number, never dereferenced, and a Python attribute
``buffer``: the value, a one-dimensional ``jax.Array`` holding the storage's elements in order. PyTorch keeps the attribute as
long as the C++ storage lives, so the value's life is the storage's: no side table. Beside it hangs what counts the storage's
end (:mod:`.ledger`).

Tensors are made through DLPack's extension device, which PyTorch maps to PrivateUse1: one C call sets storage, dtype,
sizes and strides. A :class:`Template` holds the DLPack structure of one layout and re-uses it for every tensor of it.
"""

from __future__ import annotations

import ctypes
import operator
import threading
from functools import cache
from typing import Any, TypeAlias

import torch

from .ledger import freed, ledger, life_of

_Size: TypeAlias = tuple[int, ...]
DEVICE = torch.device("neuron", 0)


class _DLDevice(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (("dl_tensor", _DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_EXT_DEVICE = 12  # kDLExtDev
_CODES = {  # DLDataTypeCode of DLPack 1.1
    **dict.fromkeys((torch.int8, torch.int16, torch.int32, torch.int64), 0),
    **dict.fromkeys((torch.uint8, torch.uint16, torch.uint32, torch.uint64), 1),
    **dict.fromkeys((torch.float16, torch.float32, torch.float64), 2),
    torch.bfloat16: 4,
    **dict.fromkeys((torch.complex32, torch.complex64, torch.complex128), 5),
    torch.bool: 6,
    torch.float8_e4m3fn: 10,
    torch.float8_e4m3fnuz: 11,
    torch.float8_e5m2: 12,
    torch.float8_e5m2fnuz: 13,
}
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
# Called for every tensor: given what ctypes need not convert, and without looking at the result, it takes half the time.
_rename_capsule = ctypes.pythonapi["PyCapsule_SetName"]
_rename_capsule.restype = None
_keep_forever = ctypes.pythonapi.Py_IncRef
_keep_forever.restype, _keep_forever.argtypes = None, (ctypes.py_object,)
_FRESH = b"dltensor"  # the name under which PyTorch accepts a capsule; it renames a consumed one
_FRESH_NAME = ctypes.c_char_p(_FRESH)
_from_dlpack = torch._C._from_dlpack

_SLOT = 1 << 20
_small_addresses = iter(range(1 << 44, 1 << 62, _SLOT))  # next() on it is atomic, so small storages need no lock
_large_next = 1 << 62
_large_count = 0
_large_lock = threading.Lock()


def _large_address(nbytes: int) -> int:
    global _large_next, _large_count
    with _large_lock:
        address = _large_next
        _large_count += 1
        _large_next += -(-nbytes // _SLOT) * _SLOT
    return address


_EVERY_SMALL_ADDRESS = operator.length_hint(_small_addresses)


def addresses() -> int:
    """How many storages there ever were, empty ones included."""
    return _EVERY_SMALL_ADDRESS - operator.length_hint(_small_addresses) + _large_count


def storage_nbytes(dtype: torch.dtype, size: _Size, stride: _Size) -> int:
    """Bytes that a storage needs so that `size` and `stride` at offset 0 fit (0 for an empty tensor)."""
    if 0 in size:
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(size, stride))) * dtype.itemsize


class Template:
    """The layout of a fresh tensor: dtype, sizes and strides at offset 0 of a storage of just the size needed."""

    __slots__ = ("_idle", "dtype", "large", "life", "nbytes", "size", "stride")

    def __init__(self, dtype: torch.dtype, size: _Size, stride: _Size) -> None:
        self.dtype, self.size, self.stride = dtype, size, stride
        self.nbytes = storage_nbytes(dtype, size, stride)
        self.large = self.nbytes > _SLOT
        self.life = life_of(self.nbytes)
        self._idle: list[tuple[Any, Any, Any]] = []

    def _capsule(self) -> tuple[Any, Any, Any]:
        ndim = len(self.size)
        managed = _DLManagedTensor()
        tensor = managed.dl_tensor
        tensor.device.device_type, tensor.device.device_id = _EXT_DEVICE, 0
        tensor.ndim = ndim
        tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = _CODES[self.dtype], self.dtype.itemsize * 8, 1
        tensor.shape = (ctypes.c_int64 * max(ndim, 1))(*self.size)
        tensor.strides = (ctypes.c_int64 * max(ndim, 1))(*self.stride)
        # PyTorch looks into the structure for a deleter when the storage dies, which may be after this module is gone.
        _keep_forever(managed)
        capsule = _new_capsule(ctypes.addressof(managed), _FRESH, None)
        return (
            capsule,
            ctypes.py_object(capsule),
            ctypes.c_uint64.from_buffer(managed),
        )  # whose first field is the address

    def new(self, value: Any) -> torch.Tensor:
        """A tensor of this layout over a fresh storage whose buffer is `value` (``jax.Array[nbytes / itemsize]``)."""
        idle = self._idle
        try:
            # A structure serves one tensor at a time; list.pop and list.append are atomic, so threads cannot share one.
            entry = idle.pop()
            _rename_capsule(entry[1], _FRESH_NAME)
        except IndexError:
            entry = self._capsule()
        capsule, _, address = entry
        address.value = _large_address(self.nbytes) if self.large else next(_small_addresses)
        made = _from_dlpack(capsule)
        idle.append(entry)
        storage = made.untyped_storage()
        storage.buffer = value
        nbytes = self.nbytes
        if nbytes:
            total = ledger.allocated = ledger.allocated + nbytes
            storage.life = self.life()  # nothing may be called before this, which takes back what was just added
            if total > ledger.mark:  # perhaps more than ever: what was freed since is not in the mark
                held = total - freed()
                if held > ledger.peak:
                    ledger.peak = held
                ledger.mark = total - held + ledger.peak
        else:
            ledger.empty += 1
        return made


@cache
def template(dtype: torch.dtype, size: _Size, stride: _Size) -> Template:
    """The one :class:`Template` of a layout. Kept for the life of the process, as its DLPack structures must be."""
    return Template(dtype, size, stride)


def contiguous_stride(size: _Size) -> _Size:
    """Strides of a row-major tensor of `size`, as PyTorch gives them (a dimension of 0 counts as 1)."""
    strides: list[int] = []
    step = 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def is_device_tensor(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == DEVICE.type
