"""Makes the embedded device wrong on purpose, in every Python process that finds this file on its PYTHONPATH.

``FAULT_OF_TEST`` names the faults, with commas. Lowerings are replaced while the device's own files register them, so that
nothing in the product knows of it.
"""

from __future__ import annotations

import dataclasses
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
FAULTS = frozenset(filter(None, os.environ.get("FAULT_OF_TEST", "").split(",")))


def after_registry(module: Any) -> None:
    """Wrap the decorator that registers lowerings."""
    chosen = dict(LOWERED[fault] for fault in FAULTS & LOWERED.keys())
    lower = module.lower

    def faulty(*names: str, **options: Any) -> Any:
        register = lower(*names, **options)
        change = next((chosen[name] for name in names if name in chosen), None)
        if change is None:
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
    if COMPILED not in FAULTS:
        return
    registry = module.registry

    def lowering_of(op: Any) -> Any:
        found = registry.lowering_of(op)
        if str(op) != "aten.gelu.default":
            return found
        return dataclasses.replace(found, fn=lambda *args, **kwargs: found.fn(*args, **kwargs) * 1.002)

    module.registry = types.SimpleNamespace(**{**vars(registry), "lowering_of": lowering_of})


def after_fusion(module: Any) -> None:
    """Fused programs take a wrong result of one member; the same operator alone is right."""
    if FUSED not in FAULTS:
        return
    original = module.fuse

    def worse(step: Any) -> Any:
        if step.name != "aten.gelu.default":
            return step
        lowering = step.lowering
        return dataclasses.replace(step, lowering=lambda *args, **kwargs: lowering(*args, **kwargs) * 1.002)

    def fuse(name: str, programs: Any, *rest: Any) -> Any:
        changed = [dataclasses.replace(p, steps=tuple(worse(step) for step in p.steps)) for p in programs]
        return original(name, changed, *rest)

    module.fuse = fuse


AFTER = {
    "shakedown.neuron.lowering.registry": after_registry,
    "shakedown.neuron.graph": after_graph,
    "shakedown.neuron.modes.adaptive.fusion": after_fusion,
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


if FAULTS:
    sys.meta_path.insert(0, Finder())
