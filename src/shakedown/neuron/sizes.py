"""Sizes in words, as PyTorch writes them; needs neither torch nor JAX."""

from __future__ import annotations

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def readable(nbytes: float) -> str:
    """``24.00 GiB``; whole bytes below 1 KiB."""
    unit = 0
    while abs(nbytes) >= 1024 and unit < len(_UNITS) - 1:
        nbytes, unit = nbytes / 1024, unit + 1
    return f"{nbytes:.2f} {_UNITS[unit]}" if unit else f"{nbytes:.0f} bytes"
