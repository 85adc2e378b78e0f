"""Makes the embedded device wrong on purpose, in every Python process that finds this file on its PYTHONPATH.

``FAULT_OF_TEST`` names the fault. Lowerings are replaced while the device's own files register them, so that nothing in the
product knows of it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
from typing import Any

# fault -> (operator, what becomes of its result)
LOWERED: dict[str, tuple[str, Any]] = {
    "gelu": ("gelu", lambda r: r * 1.002),
    "layer_norm": ("native_layer_norm", lambda r: (r[0].at[0, 3].set(0.0), *r[1:])),
    "softmax_gradient": ("_log_softmax_backward_data", lambda r: r * 1.002),
    "update": ("_foreach_addcdiv.ScalarList", lambda r: [t + 1e-3 for t in r]),
}
COMPILED = "compiled_gelu"
FUSED = "fused_gelu"
FAULT = os.environ.get("FAULT_OF_TEST", "")


def after_registry(module: Any) -> None:
    """Wrap the decorator that registers lowerings."""
    if FAULT not in LOWERED:
        return
    name, change = LOWERED[FAULT]
    lower = module.lower

    def faulty(*names: str, **options: Any) -> Any:
        register = lower(*names, **options)
        if name not in names:
            return register

        def decorate(fn: Any) -> Any:
            def wrong(*args: Any, **kwargs: Any) -> Any:
                return change(fn(*args, **kwargs))

            register(wrong)
            return fn

        return decorate

    module.lower = faulty


def after_graph(module: Any) -> None:
    """Graphs alone take a wrong lowering; eager execution keeps the right one."""
    if FAULT != COMPILED:
        return
    registry = module.registry

    def lowering_of(op: Any) -> Any:
        found = registry.lowering_of(op)
        if str(op) != "aten.gelu.default":
            return found
        import dataclasses

        return dataclasses.replace(found, fn=lambda *args, **kwargs: found.fn(*args, **kwargs) * 1.002)

    module.registry = types.SimpleNamespace(**{**vars(registry), "lowering_of": lowering_of})


def after_fusion(module: Any) -> None:
    """Fused programs take a wrong result of one member; the same operator alone is right."""
    if FAULT != FUSED:
        return
    original = module.fuse

    def fuse(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    module.fuse = fuse


AFTER = {
    "shakedown.neuron.lowering.registry": after_registry,
    "shakedown.neuron.graph": after_graph,
}


class Finder(importlib.abc.MetaPathFinder):
    """Lets the usual machinery find a module, and runs a hook once it has been executed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in AFTER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            AFTER[name](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if FAULT:
    sys.meta_path.insert(0, Finder())
