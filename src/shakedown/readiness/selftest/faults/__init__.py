"""Every fault, by name. One file per group; importing this one registers all of them."""

from __future__ import annotations

from ..fault import FAULTS as FAULTS
from . import dtypes, numbers, operation, paths, places, processes  # noqa: F401
