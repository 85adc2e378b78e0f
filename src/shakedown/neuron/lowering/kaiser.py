"""The Kaiser window. PyTorch makes the other windows out of operators that every device has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from ..views import View
from .common import Array, number_as, opmath, to_numpy
from .metas import meta
from .registry import lower

_FORMS = ("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta")


@meta(*_FORMS)
def _kaiser_window_meta(
    window_length: int,
    periodic: bool = True,
    beta: float = 12.0,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **_: Any,
) -> torch.Tensor:
    made = torch.empty(window_length, dtype=dtype, device="meta")
    if not made.is_floating_point():
        raise RuntimeError(f"kaiser_window expects floating point dtypes, got: {made.dtype}")
    return made


def _i0(x: Array) -> Array:
    return jnp.exp(jnp.abs(x)) * lax.bessel_i0e(x)


@lower(*_FORMS, takes_outputs=True)
def kaiser_window(
    window_length: int, periodic: bool = True, beta: Any = 12.0, *, outputs: Sequence[View], **_: Any
) -> Array:
    """``i0(beta * sqrt(1 - t * t)) / i0(beta)`` with t from -1 to 1 (Kaiser and Schafer, "On the use of the I0-sinh window
    for spectrum analysis", 1980); a periodic window leaves the last value out."""
    wide = opmath(to_numpy(outputs[0].dtype))
    if window_length <= 1:
        return jnp.ones(window_length, wide)
    beta = number_as(beta, wide)
    half = (window_length if periodic else window_length - 1) / 2
    t = (jnp.arange(window_length).astype(wide) - half) / half
    return _i0(beta * jnp.sqrt(jnp.maximum(1 - t * t, 0))) / _i0(beta)
