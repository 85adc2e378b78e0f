"""Number formats, as far as judging needs them: roundoff, rounding, spacing, and the name of an observed precision."""

from __future__ import annotations

import math

import numpy as np

# Bits of the significand, the hidden one included.
BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
# Precisions that a device may silently use; tf32 has the significand of float16 with the range of float32.
_NAMED = {53: "float64", 24: "float32", 16: "three bfloat16 passes", 11: "tf32 or float16", 8: "bfloat16", 4: "float8"}
_LEAST_EXPONENT = {"float64": -1022, "float32": -126, "float16": -14, "bfloat16": -126}


def roundoff(dtype: str) -> float:
    """Unit roundoff u: the largest relative error of rounding to nearest."""
    return 2.0 ** -BITS[dtype]


def spacing(values: np.ndarray, dtype: str) -> np.ndarray:
    """Distance between neighbouring numbers of `dtype` (one ULP) at each of `values`."""
    _, exponent = np.frexp(values)
    return np.ldexp(1.0, np.maximum(exponent, _LEAST_EXPONENT[dtype] + 1) - BITS[dtype])


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """`values` rounded to the nearest number of `dtype`, ties to even, as float64."""
    step = spacing(values, dtype)
    return np.rint(values / step) * step


def nearest(observed: float) -> str:
    """Name the format whose roundoff is closest to `observed`, in bits of significand."""
    if not observed > 0 or not math.isfinite(observed):
        return "no known format"
    bits = -math.log2(observed)
    closest = min(_NAMED, key=lambda known: abs(known - bits))
    return f"{_NAMED[closest]} ({closest}-bit significand; observed {bits:.1f} bits)"
