"""PyTorch's dtypes and JAX's, and PyTorch's promotion rule over values that carry JAX's.

The device holds every dtype in its own width: float64 and int64 are real 64-bit types here (a support profile may
imitate a device where they are not). complex32 has no JAX type: its buffers hold pairs of float16, and programs compute with
it as complex64, which is PyTorch's opmath type for it.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

_PAIRS: tuple[tuple[torch.dtype, Any], ...] = (
    (torch.float32, np.float32),
    (torch.bfloat16, ml_dtypes.bfloat16),
    (torch.float16, np.float16),
    (torch.float64, np.float64),
    (torch.complex64, np.complex64),
    (torch.complex128, np.complex128),
    (torch.int64, np.int64),
    (torch.int32, np.int32),
    (torch.int16, np.int16),
    (torch.int8, np.int8),
    (torch.uint8, np.uint8),
    (torch.uint16, np.uint16),
    (torch.uint32, np.uint32),
    (torch.uint64, np.uint64),
    (torch.bool, np.bool_),
    (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn),
    (torch.float8_e5m2, ml_dtypes.float8_e5m2),
    (torch.float8_e4m3fnuz, ml_dtypes.float8_e4m3fnuz),
    (torch.float8_e5m2fnuz, ml_dtypes.float8_e5m2fnuz),
)
TO_NUMPY: dict[torch.dtype, np.dtype[Any]] = {t: np.dtype(n) for t, n in _PAIRS}
TO_NUMPY[torch.complex32] = np.dtype(np.complex64)
TO_TORCH: dict[np.dtype[Any], torch.dtype] = {np.dtype(n): t for t, n in _PAIRS}
HALF = (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))

# Integers of the same width, to carry bits of types that numpy or torch cannot exchange directly.
CARRIER: dict[int, tuple[np.dtype[Any], torch.dtype]] = {
    1: (np.dtype(np.uint8), torch.uint8),
    2: (np.dtype(np.int16), torch.int16),
    4: (np.dtype(np.int32), torch.int32),
    8: (np.dtype(np.int64), torch.int64),
    16: (np.dtype(np.complex128), torch.complex128),
}


def to_numpy(dtype: torch.dtype) -> np.dtype[Any]:
    """The numpy/JAX dtype that a program computes with for `dtype`: of the same meaning and, complex32 aside, width.

    Raises:
        TypeError: the device has no such dtype (quantized and sub-byte types).
    """
    try:
        return TO_NUMPY[dtype]
    except KeyError:
        raise TypeError(f"the neuron device does not support dtype {dtype}") from None


def in_buffers(dtype: torch.dtype) -> np.dtype[Any]:
    """The numpy/JAX dtype of a buffer's elements (of half an element for complex32). Raises as :func:`to_numpy`."""
    return np.dtype(np.float16) if dtype is torch.complex32 else to_numpy(dtype)


def to_torch(dtype: Any) -> torch.dtype:
    return TO_TORCH[np.dtype(dtype)]


def is_float(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating))


def is_complex(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.complexfloating))


def is_integral(dtype: Any, *, with_bool: bool = True) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.integer)) or (with_bool and np.dtype(dtype) == np.bool_)


def is_number(x: Any) -> bool:
    """Whether `x` is what PyTorch calls a wrapped number: a Python number, or its traced weakly typed form."""
    return isinstance(x, (bool, int, float, complex)) or bool(getattr(x, "weak_type", False))


def _number_dtype(x: Any) -> torch.dtype:
    kind = type(x) if isinstance(x, (bool, int, float, complex)) else None
    if kind is bool or (kind is None and x.dtype == np.bool_):
        return torch.bool
    if kind is int or (kind is None and is_integral(x.dtype)):
        return torch.int64
    if kind is complex or (kind is None and is_complex(x.dtype)):
        return torch.get_default_dtype().to_complex()
    return torch.get_default_dtype()


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher or lower
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return higher.to_complex() if lower.is_complex else higher
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


def result_type(*operands: Any) -> torch.dtype:
    """``torch.result_type`` over lowered values: arrays with dimensions outrank 0-d ones, which outrank numbers.

    Follows c10's ``combine_categories`` (aten/src/ATen/native/TypeProperties.cpp).
    """
    ranks: list[torch.dtype | None] = [None, None, None]
    for x in operands:
        if x is None:
            continue
        if is_number(x):
            rank, dtype = 2, _number_dtype(x)
        else:
            rank, dtype = (0 if x.ndim else 1), to_torch(x.dtype)
        before = ranks[rank]
        ranks[rank] = dtype if before is None else torch.promote_types(before, dtype)
    found = _combine(_combine(ranks[0], ranks[1]), ranks[2])
    if found is None:
        raise TypeError("result_type needs at least one operand")
    return found
