"""A limit in words: bytes, a size, or the device memory that AWS publishes for one core of a chip.

The figures are those of ``instances.toml``, which projections use too: memory, physical cores, and how many of them make a
logical core. A logical core is given its share of its chip's memory. Needs neither torch nor JAX.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from .setting import size

_FILE = Path(__file__).parent.parent / "instances.toml"


def memory_of(text: str) -> int:
    """bytes, such as 25769803776 or 24GiB, or a core's memory, such as trn2 or trn2:lnc1"""
    if not is_name(text):
        try:
            return size(text)
        except ValueError:
            raise ValueError(_allowed()) from None
    name, colon, layout = text.strip().lower().partition(":")
    known = _chips()
    if name not in known or (colon and not re.fullmatch(r"lnc[1-9]", layout)):
        raise ValueError(_allowed())
    chip = known[name]
    together = int(layout[3:]) if colon else _logical(chip)
    if not 1 <= together <= _value(chip, "physical_cores_per_logical_core"):
        raise ValueError(_allowed())
    return _value(chip, "memory") * together // _value(chip, "physical_cores")


def is_name(text: str) -> bool:
    """Whether a limit that :func:`memory_of` accepts is the name of a core."""
    return text.strip()[:1].isalpha()


def names() -> list[str]:
    """Every name that :func:`memory_of` knows, without the layout of cores."""
    return list(_chips())


def _allowed() -> str:
    most = max(_value(chip, "physical_cores_per_logical_core") for chip in _chips().values())
    return (
        f"bytes above zero, such as 25769803776, 24GiB or 1.5 GB, or the memory of a core of {', '.join(names())}, each also "
        f"with its layout: {' or '.join(f':lnc{together}' for together in range(1, most + 1))}"
    )


def _logical(chip: dict[str, Any]) -> int:
    """Physical cores of a logical core: as this process is told, or else as they come."""
    from . import config  # which has its limit read here

    told = config.LOGICAL_CORES
    return told() if told.set_by() else _value(chip, "physical_cores_per_logical_core")


def _value(chip: dict[str, Any], figure: str) -> int:
    return int(chip[figure]["value"])


@functools.cache
def _chips() -> dict[str, dict[str, Any]]:
    """Chips by the name of their family, and by each instance that carries them."""
    import tomllib

    table = tomllib.loads(_FILE.read_text())
    families = {chip["family"]: chip for chip in table["chips"].values()}
    return families | {name: table["chips"][instance["chip"]] for name, instance in table["instances"].items()}
