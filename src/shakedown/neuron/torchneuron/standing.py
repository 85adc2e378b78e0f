"""Whether ``torch_neuronx`` is ours or AWS's: nothing that is installed under that name may be shadowed by a rehearsal."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import config

NAME = "torch_neuronx"
DISTRIBUTION = "torch-neuronx"
_MODULES = Path(__file__).parent / "modules"  # the submodules of torch_neuronx, one file each


def elsewhere(ours: str) -> ModuleSpec | None:
    """Where another module of this name can be loaded from, on any part of the path; None where `ours` is to stand.

    ``SHAKEDOWN_DEVICE=rehearsal`` asks for ours even beside AWS's, so it is not looked for then.

    Raises:
        ModuleNotFoundError: there is no other, and this package does not provide the device either.
    """
    choice = config.DEVICE()
    if choice == "rehearsal":
        return None
    found = next((s for s in _specs() if not _is_ours(s, ours)), None)
    if found is not None:
        return found
    if choice == "off":
        raise ModuleNotFoundError(
            f"No module named {NAME!r}: {DISTRIBUTION} is not installed, and {config.DEVICE.name}=off switches its rehearsal off",
            name=NAME,
        )
    try:
        version = metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None
    raise ModuleNotFoundError(
        f"No module named {NAME!r}: {DISTRIBUTION} {version} is registered as installed, but its module is nowhere on the path. "
        f"Install it again, or set {config.DEVICE.name}=rehearsal to rehearse without it",
        name=NAME,
    )


def _specs() -> list[ModuleSpec]:
    """Everything of this name that the import system could find, in its order, each entry of the path by itself."""
    found: list[ModuleSpec | None] = []
    for finder in sys.meta_path:
        if finder is PathFinder:
            found += [PathFinder.find_spec(NAME, [entry]) for entry in sys.path]
        elif hasattr(finder, "find_spec"):
            found.append(finder.find_spec(NAME, None))
    return [s for s in found if s is not None and s.loader is not None and s.origin is not None]  # no bare folders


def _is_ours(spec: ModuleSpec, ours: str) -> bool:
    """Whether `spec` is the file `ours`, or a copy of it: a path may hold an installed and an editable one."""
    assert spec.origin is not None
    if os.path.realpath(spec.origin) == os.path.realpath(ours):
        return True
    if spec.submodule_search_locations is not None:
        return False
    try:
        return "from shakedown.neuron.torchneuron import standing" in Path(spec.origin).read_text(errors="replace")
    except OSError:
        return False


def load(spec: ModuleSpec) -> None:
    """Load the module of `spec` under its name, in the place of the one that is being imported."""
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module  # the import system gives out what lies here when the import is done
    spec.loader.exec_module(module)


class Rehearsal(ModuleType):
    """``torch_neuronx`` as this package provides it."""

    def __repr__(self) -> str:
        return f"<module {NAME!r}: a rehearsal by shakedown on the host's processor, not AWS's package, from {self.__file__!r}>"


def take(module: Any) -> None:
    """Make `module` the rehearsal: its version, where its submodules lie, and the device, if ``import torch`` left that open.

    Raises:
        ImportError: the device is another package's.
    """
    import torch

    from ..autoload import autoload

    autoload()  # does nothing where `import torch` has done it
    if not getattr(getattr(torch, "neuron", None), "__name__", "").startswith("shakedown."):
        raise ImportError(f"{NAME} cannot be rehearsed: the device neuron is not the one of shakedown", name=NAME)
    module.__class__ = Rehearsal
    module.__path__ = [str(_MODULES)]
    module.__version__ = version()
    from . import of_the_device

    vars(module).update(of_the_device())


def version() -> str:
    """The release whose surface this is (TorchNeuron 2.33, ``<torch>.3.0``), as a local version that says what it is."""
    import torch

    import shakedown

    family = ".".join(torch.__version__.split(".")[:2])
    return f"{family}.3.0+rehearsal.shakedown.{shakedown.__version__}"


class RehearsalFinder:
    """Finds our ``torch_neuronx`` before AWS's, for a process that asked for the rehearsal beside it."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != NAME:
            return None
        return importlib.util.spec_from_file_location(NAME, Path(__file__).parents[3] / f"{NAME}.py")
