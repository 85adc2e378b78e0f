"""A hash of a tensor's values: for comparing tensors by one number a slice."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..errors import LoweringError
from .common import Array, canonical_dims, is_complex, is_float
from .registry import lower


@lower("hash_tensor")
def hash_tensor(self: Array, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0) -> Array:
    """The exclusive or over `dim` (all dimensions if empty) of the values' bits, as float64 or int64: uint64."""
    if mode != 0 or is_complex(self.dtype):
        raise LoweringError(f"mode {mode} of a hash of {self.dtype}")
    wide = self.astype(jnp.float64 if is_float(self.dtype) else jnp.int64)
    axes = canonical_dims(dim, self.ndim)
    value = lax.reduce(lax.bitcast_convert_type(wide, jnp.uint64), np.uint64(0), lax.bitwise_xor, axes)
    return jnp.expand_dims(value, axes) if keepdim else value
