"""Discrete Fourier transforms: the three operators that every function of ``torch.fft`` ends in.

XLA transforms the last one to three dimensions, unscaled forward and divided by the number of elements backward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..dtypes import to_numpy
from ..errors import LoweringError
from ..views import View
from .common import Array
from .registry import lower

_BY_ROOT_N, _BY_N = 1, 2  # PyTorch's codes of normalisation; 0 leaves the sum as it is

_PRECISIONS = {np.dtype(t) for t in (np.float32, np.float64, np.complex64, np.complex128)}


def _checked(x: Array) -> None:
    if x.dtype not in _PRECISIONS:
        raise LoweringError(f"a Fourier transform of {x.dtype}")
    if x.size == 0:
        raise LoweringError("a Fourier transform of no signals")  # which MKL refuses


def _scaled(x: Array, normalization: int, n: int, *, divided: bool) -> Array:
    """`x` normalised for signals of `n` elements; `divided` says that it has been divided by n."""
    factor = {_BY_ROOT_N: 1 / math.sqrt(n), _BY_N: 1 / n}.get(normalization, 1.0) * (n if divided else 1)
    return (
        x if factor == 1 or (divided and normalization == _BY_N) else x * np.asarray(factor, jnp.finfo(x.dtype).dtype)
    )


def _at_the_end(x: Array, dims: Sequence[int]) -> Array:
    return jnp.moveaxis(x, dims, range(x.ndim - len(dims), x.ndim))


def _back(x: Array, dims: Sequence[int]) -> Array:
    return jnp.moveaxis(x, range(x.ndim - len(dims), x.ndim), dims)


def _complex(x: Array, dims: Sequence[int], forward: bool) -> Array:
    """The transform of complex `x` over `dims`, backward divided by their sizes."""
    kind = lax.FftType.FFT if forward else lax.FftType.IFFT
    dims = [d % x.ndim for d in dims]
    for start in range(0, len(dims), 3):
        some = dims[start : start + 3]
        moved = _at_the_end(x, some)
        x = _back(lax.fft(moved, kind, moved.shape[moved.ndim - len(some) :]), some)
    return x


@lower("_fft_c2c")
def _fft_c2c(self: Array, dim: Sequence[int], normalization: int, forward: bool) -> Array:
    _checked(self)
    if not dim:
        return self
    n = math.prod(self.shape[d] for d in dim)
    return _scaled(_complex(self, dim, forward), normalization, n, divided=not forward)


@lower("_fft_r2c")
def _fft_r2c(self: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    """`onesided` keeps the first half of the last of `dim`: the rest is its mirror image."""
    _checked(self)
    kind = jnp.result_type(self.dtype, jnp.complex64)
    last, n = dim[-1] % self.ndim, math.prod(self.shape[d] for d in dim)
    if not onesided:
        whole = self.astype(kind)
        return _scaled(_complex(whole, dim, True), normalization, n, divided=False)
    half = _back(lax.fft(_at_the_end(self, [last]), lax.FftType.RFFT, (self.shape[last],)), [last])
    return _scaled(_complex(half, dim[:-1], True), normalization, n, divided=False)


@lower("_fft_c2r")
def _fft_c2r(self: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    """The real signal of `last_dim_size` elements along the last of `dim`, of which `self` holds the first half."""
    _checked(self)
    last = dim[-1] % self.ndim
    size = [last_dim_size if d == last else s for d, s in enumerate(self.shape)]
    x = _at_the_end(_complex(self, dim[:-1], False), [last])[..., : last_dim_size // 2 + 1]
    missing = last_dim_size // 2 + 1 - x.shape[-1]
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
    x = _back(lax.fft(x, lax.FftType.IRFFT, (last_dim_size,)), [last])
    return _scaled(x, normalization, math.prod(size[d] for d in dim), divided=True)


@lower("fft_fftfreq", static=("d",), takes_outputs=True)
def fft_fftfreq(n: int, d: float = 1.0, *, outputs: tuple[View, ...], **_: Any) -> Array:
    """0, 1, ..., then the negative half, over ``n * d``. PyTorch's composite writes that half through a view of its own."""
    dtype = to_numpy(outputs[0].dtype)
    place = jnp.arange(n)
    return jnp.where(place < (n + 1) // 2, place, place - n).astype(dtype) * np.asarray(1.0 / (n * d), dtype)
