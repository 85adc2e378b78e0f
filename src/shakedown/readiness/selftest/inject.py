"""Switching faults on in this process, before it opens the device. Off, nothing of this is imported.

``SHAKEDOWN_FAULT`` names them, with commas; the processes of a trial that open a target read it (the CPU's own do not), and
what they write says so. The product knows nothing of faults: modules are changed as they are imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

from ..errors import BadInput

VARIABLE = "SHAKEDOWN_FAULT"
PROPAGATE = Path(__file__).with_name(
    "propagate"
)  # its sitecustomize.py switches faults on in a process that is started
_NEURON = "shakedown.neuron"
Where = Literal["everywhere", "graphs", "fused"]
Change = Callable[..., Any]
_active: tuple[str, ...] = ()


def active() -> tuple[str, ...]:
    """Faults that are on in this process."""
    return _active


def named(text: str) -> tuple[str, ...]:
    """The faults that `text` names. Raises :class:`BadInput` on a name that is none."""
    from .faults import FAULTS

    names = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        known = ", ".join(FAULTS)
        raise BadInput(f"{VARIABLE} names {', '.join(unknown)}, which is no fault; choose among {known}")
    return names


def switch_on(environment: Mapping[str, str], role: str = "candidate", mode: str = "eager") -> None:
    """Switch on what `environment` asks for. `role` and `mode` are those of the process.

    Raises:
        BadInput: there is no such fault, or another product than the embedded device answers for ``neuron``.
    """
    global _active
    names = named(environment.get(VARIABLE, ""))
    if not names or _active:
        return
    from .faults import FAULTS

    if environment.get("SHAKEDOWN_DEVICE") == "off" or _vendor():
        raise BadInput(f"{VARIABLE} is for the embedded device only, and another product answers for neuron here")
    _active = names
    device = Device(role, mode, environment)
    for name in names:
        FAULTS[name].apply(device)
    device.install()


def _vendor() -> bool:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution("torch-neuronx")
    except PackageNotFoundError:
        return False
    return True


@dataclass
class Device:
    """What a fault may change. Nothing happens before :meth:`install`."""

    role: str
    mode: str
    environment: Mapping[str, str]
    _hooks: dict[str, list[Callable[[Any], None]]] = field(default_factory=dict)
    _lowered: list[tuple[str, Change, Where]] = field(default_factory=list)
    _calls: dict[str, list[Callable[[Any], Any]]] = field(default_factory=dict)

    @property
    def numpy(self) -> Any:
        """The numerical library of the lowerings; it is loaded when they run."""
        return sys.modules["jax.numpy"]

    def after(self, module: str, hook: Callable[[Any], None]) -> None:
        """Call ``hook(module)`` once the module of that name has been executed, or now if it has."""
        self._hooks.setdefault(module, []).append(hook)

    def patch(self, module: str, path: str, make: Callable[[Any], Any]) -> None:
        """Replace ``module.path`` by ``make(original)``; `path` may lead through a class."""

        def hook(loaded: Any) -> None:
            *owners, name = path.split(".")
            owner = loaded
            for part in owners:
                owner = getattr(owner, part)
            setattr(owner, name, make(getattr(owner, name)))

        self.after(module, hook)

    def lowering(self, name: str, change: Change, where: Where = "everywhere") -> None:
        """Replace what operator `name` computes by ``change(fn, *args, **kwargs)``, `fn` being right.

        In graphs, or in fused programs, alone: an operator that runs by itself stays right.
        """
        self._lowered.append((name, change, where))

    def result(self, name: str, change: Callable[[Any], Any], where: Where = "everywhere") -> None:
        """:meth:`lowering` that changes the result and nothing else."""
        self.lowering(name, lambda fn, *args, **kwargs: change(fn(*args, **kwargs)), where)

    def call(self, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace the kernel of operator `name` (``aten::gelu``) by ``wrap(kernel)``: what Python does at every call."""
        self._calls.setdefault(name, []).append(wrap)

    def install(self) -> None:
        """Make the changes, in modules that are loaded and in those to come."""
        if self._lowered:
            self.after(f"{_NEURON}.lowering.registry", self._in_registry)
            self.after(f"{_NEURON}.graph", self._in_graphs)
            self.after(f"{_NEURON}.modes.adaptive.fusion", self._in_fused)
        if any(where == "fused" for _, _, where in self._lowered):
            self.patch(f"{_NEURON}.config", "environment_of_compiler", _with_propagation)
        if self._calls:
            self.patch(f"{_NEURON}.dispatch", "kernel_of", self._kernels)
        for name, hooks in self._hooks.items():
            if name in sys.modules:
                for hook in hooks:
                    hook(sys.modules[name])
        sys.meta_path.insert(0, _Finder(self._hooks))

    # --- how -------------------------------------------------------------------------------------------------------------

    def _changed(self, name: str, fn: Change, *places: Where) -> Change:
        for wanted, change, where in self._lowered:
            if wanted == name and where in places:
                fn = _bound(change, fn)
        return fn

    def _in_registry(self, registry: Any) -> None:
        """Wrap the decorator that registers lowerings; one that several operators share is changed for one of them."""
        original = registry.lower
        mine = {name for name, _, where in self._lowered if where == "everywhere"}

        def lower(*names: str, **options: Any) -> Any:
            own = [name for name in names if name in mine]
            rest = [name for name in names if name not in mine]

            def register(fn: Change) -> Change:
                for name in own:
                    original(name, **options)(self._changed(name, fn, "everywhere"))
                if rest:
                    original(*rest, **options)(fn)
                return fn

            return register

        registry.lower = lower

    def _in_graphs(self, graph: Any) -> None:
        registry = graph.registry
        mine = {name for name, _, where in self._lowered if where == "graphs"}

        def lowering_of(op: Any) -> Any:
            found, name = registry.lowering_of(op), str(op).removeprefix("aten.").removesuffix(".default")
            if found is None or name not in mine:
                return found
            return replace(found, fn=self._changed(name, found.fn, "graphs"))

        if mine:
            graph.registry = SimpleNamespace(**{**vars(registry), "lowering_of": lowering_of})

    def _in_fused(self, fusion: Any) -> None:
        original = fusion.fuse

        def worse(step: Any) -> Any:
            name = step.name.removeprefix("aten.").removesuffix(".default")
            if step.lowering is None:
                return step
            return replace(step, lowering=self._changed(name, step.lowering, "fused"))

        def fuse(name: str, programs: Any, *rest: Any) -> Any:
            return original(name, [replace(p, steps=tuple(map(worse, p.steps))) for p in programs], *rest)

        fusion.fuse = fuse

    def _kernels(self, original: Any) -> Any:
        def kernel_of(operator: Any) -> Any:
            kernel = original(operator)
            for wrap in self._calls.get(operator.name, ()):
                kernel = wrap(kernel)
            return kernel

        return kernel_of


def _bound(change: Change, fn: Change) -> Change:
    def wrong(*args: Any, **kwargs: Any) -> Any:
        return change(fn, *args, **kwargs)

    return wrong


def _with_propagation(original: Callable[[], dict[str, str]]) -> Callable[[], dict[str, str]]:
    """The process that compiles fused programs finds ``sitecustomize.py``, and with it the fault."""

    def environment() -> dict[str, str]:
        found = original()
        path = os.pathsep.join(filter(None, (str(PROPAGATE), found.get("PYTHONPATH"))))
        return {**found, "PYTHONPATH": path}

    return environment


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the usual machinery find a module, and runs hooks once it has been executed."""

    def __init__(self, hooks: dict[str, list[Callable[[Any], None]]]) -> None:
        self.hooks = hooks

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name not in self.hooks:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for hook in self.hooks[name]:
                hook(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
