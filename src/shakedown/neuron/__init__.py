"""The ``neuron`` device: PyTorch operators lowered to StableHLO and run by PJRT.

``import torch`` is enough to use it (autoload). This package's names are loaded on first access, so that the autoload
entry point stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_EXPORTS = {
    "bucketed": "bucketing",
    "plan_buckets": "bucketing",
    "get_executed_ops": "device",
    "get_fallback_ops": "device",
    "clear_op_tracking": "device",
    "synchronize": "device",
    "compile_step": "device",
    "events": "",
    "errors": "",
    "config": "",
}
__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _EXPORTS[name]
    if not home:
        return import_module(f".{name}", __name__)
    import torch  # noqa: F401  (autoload registers the device that the functions below speak of)

    return getattr(import_module(f".{home}", __name__), name)
