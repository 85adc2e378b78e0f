"""What pointwise families share: operands rounded to their common dtype, and registering a table of functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .common import Array, computation, float_computation, number_as, opmath
from .registry import lower


def common_values(*operands: Any) -> tuple[np.dtype[Any], tuple[Any, ...]]:
    """As :func:`.common.computation`, with numbers rounded to the common dtype first.

    ATen's sum and product kernels keep a number in opmath precision; all others see it in the tensor's dtype, so that
    ``bfloat16(0.1) == 0.1`` holds.
    """
    common, _ = computation(*operands)
    wide = opmath(common)
    return common, tuple(None if x is None else number_as(number_as(x, common), wide) for x in operands)


def float_values(*operands: Any) -> tuple[np.dtype[Any], tuple[Any, ...]]:
    """As :func:`.common.float_computation`, with numbers rounded to the common dtype first."""
    common, _ = float_computation(*operands)
    wide = opmath(common)
    return common, tuple(None if x is None else number_as(number_as(x, common), wide) for x in operands)


def lower_floats(table: Mapping[str, Callable[..., Array]]) -> None:
    """Register ``name -> function`` of floats: integers are promoted, half types computed in float32."""

    def lowering(fn: Callable[..., Array]) -> Callable[..., Array]:
        def on_floats(*operands: Any) -> Array:
            return fn(*float_values(*operands)[1])

        on_floats.__name__ = getattr(fn, "__name__", "on_floats")
        return on_floats

    for name, fn in table.items():
        lower(name)(lowering(fn))
