"""What an operator demands of its data: an index inside its dimension, a divisor that is not zero.

A program cannot raise. So a lowering states a demand with :func:`require`; a program with demands gives one more result,
the number of the first demand that is not met, and whoever runs it reads that number before any result is put in place.
A call that fails is then put to the CPU kernel, which raises PyTorch's own error for these values. Programs without
demands pay nothing.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from .. import config
from ..errors import LoweringError
from .common import Array, is_complex, is_float


@dataclass(frozen=True, slots=True)
class Demand:
    """`message` says what is wrong when the demand of `operator` is not met, which PyTorch reports as an `error`."""

    operator: str
    error: type[Exception]
    message: str


class Demands:
    """The demands of one program, in the order in which tracing met them."""

    __slots__ = ("_met", "operator", "stated")

    def __init__(self) -> None:
        self.operator = ""  # whose lowering is being traced
        self.stated: list[Demand] = []
        self._met: list[Array] = []

    def add(self, met: Array, error: type[Exception], message: str) -> None:
        self.stated.append(Demand(self.operator, error, message))
        self._met.append(met)

    def first_broken(self) -> Array:
        """int32[]: 0 when all demands are met, otherwise 1 + the number of the first that is not."""
        number = jnp.int32(0)
        for i in reversed(range(len(self._met))):
            number = jnp.where(self._met[i], number, jnp.int32(i + 1))
        return number


_collecting = threading.local()


@contextmanager
def collecting() -> Iterator[Demands]:
    """Collect what lowerings demand inside the context, on this thread."""
    outer = getattr(_collecting, "demands", None)
    _collecting.demands = demands = Demands()
    try:
        yield demands
    finally:
        _collecting.demands = outer


def require(holds: Any, error: type[Exception], message: str) -> None:
    """Demand that every element of `holds` (bool array of any sizes, or a bool) is true.

    To be called by a lowering's own function, not inside ``jax.vmap`` or a branch. Outside a program it does nothing.
    """
    demands: Demands | None = getattr(_collecting, "demands", None)
    if demands is None or holds is True or np.size(holds) == 0 or config.SKIP_PRECONDITIONS():
        return
    demands.add(jnp.all(holds), error, message)


def require_index(index: Array, size: int, *, wraps: bool = False, error: type[Exception] = IndexError) -> None:
    """Demand ``0 <= index < size`` of every element; `wraps` allows negative ones down to ``-size``."""
    if index.size == 0 or index.dtype == np.bool_:
        return
    index = index.astype(jnp.int64)
    require((index >= (-size if wraps else 0)) & (index < size), error, f"index out of range for a dimension of {size}")


_EXTREME = 3.3e38  # up to here a number fits into every floating dtype but the narrow ones


def extreme(value: Any) -> bool:
    """Whether a number is worth a program of its own, because it may not fit into the dtype that it is stored in."""
    return isinstance(value, float) and not -_EXTREME <= value <= _EXTREME


def require_fits(value: Any, dtype: Any) -> None:
    """Demand of a number that is stored as `dtype` what c10's ``checked_convert`` does (c10/util/TypeCast.h).

    Infinities and NaN fit into floating dtypes; negative numbers wrap around in unsigned ones.

    Raises:
        LoweringError: `value` is a Python number that does not fit.
    """
    dtype = np.dtype(dtype)
    if dtype == np.bool_ or is_complex(dtype):
        return
    if is_float(dtype):
        if dtype.itemsize == 8 or (dtype.itemsize == 4 and not isinstance(value, float)):
            return
        high = float(jnp.finfo(dtype).max)
        low = -high
    else:
        if dtype.itemsize == 8 and not np.issubdtype(jnp.result_type(value), np.floating):
            return
        limits = np.iinfo(dtype)
        high, low = int(limits.max), int(limits.min) if limits.min < 0 else -int(limits.max)
    if isinstance(value, (bool, int, float)):
        if not (low <= value <= high) and not (is_float(dtype) and not math.isfinite(value)):
            raise LoweringError(f"{value} cannot be converted to {dtype} without overflow")
        return
    if is_complex(value.dtype):
        return
    exact = value.astype(jnp.float64) if is_float(value.dtype) else value.astype(jnp.int64)
    fits = (exact >= low) & (exact <= high)
    if is_float(dtype):
        fits = fits | ~jnp.isfinite(exact)
    require(fits, RuntimeError, f"value cannot be converted to {dtype} without overflow")
