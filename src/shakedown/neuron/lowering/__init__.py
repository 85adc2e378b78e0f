"""Lowerings, one module per family. Importing this package registers them all."""

from __future__ import annotations

import importlib
import pkgutil

_NOT_FAMILIES = {"registry", "common"}


def load() -> None:
    """Import every family module, which registers its lowerings."""
    for module in pkgutil.iter_modules(__path__):
        if module.name not in _NOT_FAMILIES:
            importlib.import_module(f"{__name__}.{module.name}")
