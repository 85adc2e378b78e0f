"""Comparing tensors bit by bit, and the distance in units in the last place where they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Difference:
    """`problem` in words. `ulps` is the largest distance in units in the last place when only values of floats differ."""

    problem: str
    ulps: int | None = None
    dtype: str = ""


def ulps(actual: torch.Tensor, expected: torch.Tensor) -> int:
    """Largest distance, in representable numbers, between two CPU tensors of one floating dtype; NaNs count as equal.

    A sign alone (0.0 and -0.0) counts as 1.
    """
    if expected.is_complex():
        return ulps(torch.view_as_real(actual), torch.view_as_real(expected))
    if actual.numel() == 0:
        return 0
    whole = _WHOLE[expected.dtype.itemsize]
    a, e = (t.contiguous().view(whole) for t in (actual, expected))
    differ = (a != e) & ~(actual.isnan() & expected.isnan())
    if not bool(differ.any()):
        return 0
    if bool((actual.isnan() ^ expected.isnan()).any()):
        return 1 << 62
    least = torch.iinfo(whole).min
    most = 0
    for x, y in zip(a[differ].tolist(), e[differ].tolist()):
        # Negative floats are ordered backwards, below zero.
        ordered = [least - n if n < 0 else n for n in (x, y)]
        most = max(most, abs(ordered[0] - ordered[1]), 1)
    return most


def difference(actual: Any, expected: Any) -> Difference | None:
    """What differs between two values (tensors on any device, or plain ones), or None."""
    if not isinstance(expected, torch.Tensor):
        same = repr(actual) == repr(expected)  # NaN as well as -0.0
        return None if same else Difference(f"{actual!r}, expected {expected!r}")
    for name in ("dtype", "shape", "requires_grad", "is_leaf"):
        if getattr(actual, name) != getattr(expected, name):
            return Difference(f"{name} {getattr(actual, name)}, expected {getattr(expected, name)}")
    if (actual.stride(), actual.storage_offset()) != (expected.stride(), expected.storage_offset()):
        return Difference(f"strides {actual.stride()}, expected {expected.stride()}")
    a, e = (t.detach().cpu().resolve_conj().resolve_neg() for t in (actual, expected))
    dtype = str(expected.dtype).removeprefix("torch.")
    if e.is_floating_point() or e.is_complex():
        far = ulps(a, e)
        return Difference(f"{far} ulp in {dtype}", far, dtype) if far else None
    return None if torch.equal(a, e) else Difference(f"other values of {dtype}", None, dtype)
