"""Every fault, by name. One file per group; importing this one registers all of them."""

from __future__ import annotations

from typing import get_args

from .. import fault
from . import dtypes, numbers, operation, paths, places, processes  # noqa: F401

FAULTS: dict[str, fault.Fault] = {
    name: one for group in get_args(fault.Group) for name, one in fault.FAULTS.items() if one.group == group
}
