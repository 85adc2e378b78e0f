"""What lowerings share: dtypes of a computation and small reshapings."""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..dtypes import HALF, is_complex, is_float, is_integral, is_number, result_type, to_numpy, to_torch
from ..views import cast

Array: TypeAlias = jax.Array

__all__ = [
    "HALF",
    "Array",
    "canonical_dims",
    "cast",
    "computation",
    "float_computation",
    "is_complex",
    "is_float",
    "is_integral",
    "is_number",
    "number_as",
    "opmath",
    "quotient",
    "result_type",
    "to_numpy",
    "to_torch",
]


def opmath(dtype: Any) -> np.dtype[Any]:
    """The type that PyTorch's kernels compute in for values of `dtype`: float32 for half types, else `dtype` itself."""
    dtype = np.dtype(dtype)
    return np.dtype(np.float32) if dtype in HALF else dtype


def number_as(value: Any, dtype: Any) -> Array:
    """A number (Python or traced 0-d) or array as an array of `dtype`."""
    if isinstance(value, (bool, int, float, complex)):
        value = jnp.asarray(value)
    return cast(value, to_torch(dtype))


def quotient(a: Array, b: Any) -> Array:
    """``a / b``, rounded once, for arrays of one floating or complex dtype (`b` may be a Python number).

    XLA divides by one value for all elements, and by constants, as a product with the reciprocal, which rounds twice:
    7k / 7 would not be k. It does not see that the divisor is the same everywhere when NaNs choose themselves, and the
    comparison costs nothing beside the division.
    """
    b = jnp.asarray(b, a.dtype)
    return a / (jnp.where(a == a, b, a) if b.size == 1 else b)


def computation(*operands: Any) -> tuple[np.dtype[Any], tuple[Any, ...]]:
    """(common dtype, operands in its opmath type). None operands stay None. Follows PyTorch's promotion."""
    common = to_numpy(result_type(*operands))
    wide = opmath(common)
    return common, tuple(None if x is None else number_as(x, wide) for x in operands)


def float_computation(*operands: Any) -> tuple[np.dtype[Any], tuple[Any, ...]]:
    """As :func:`computation`, with integers promoted to the default dtype (what `sin`, `div`, `mean`-like operators do)."""
    common = to_numpy(result_type(*operands))
    if is_integral(common):
        common = to_numpy(torch.get_default_dtype())
    wide = opmath(common)
    return common, tuple(None if x is None else number_as(x, wide) for x in operands)


def canonical_dims(dims: Any, ndim: int) -> tuple[int, ...]:
    """Dimensions as sorted non-negative numbers; None or an empty list means all of them."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return tuple(range(ndim))
    if isinstance(dims, int):
        dims = (dims,)
    return tuple(sorted(d % max(ndim, 1) for d in dims)) if ndim else ()
