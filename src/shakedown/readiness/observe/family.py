"""Which product answers for the device ``neuron``: AWS's native package, its legacy one on PyTorch/XLA, ours, or none.

AWS publishes both products under the distribution name ``torch-neuronx`` ("different products with different APIs and
version lineages", AWS Neuron documentation, Training paths, October 2026), so a name proves nothing. Two witnesses are heard:
what is installed (entry points, requirements, files), and what happened in the process (who registered ``torch.neuron``,
whether PyTorch/XLA is there instead). Where they contradict each other, the report says so.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path, PurePosixPath

from ..evidence.identity import Family, FamilyWord

DISTRIBUTION = "torch-neuronx"
MODULE = "torch_neuronx"
# Signs of the legacy product: what it is built on, and the folder of its implementation of PyTorch/XLA's operators.
_LEGACY_REQUIREMENTS = ("torch-xla", "libneuronxla")
_LEGACY_FOLDER = PurePosixPath(MODULE, "xla_impl")
_OURS = (
    Path(__file__).parents[3] / f"{MODULE}.py"
)  # this package's own module of that name, which steps aside for AWS's
# Signs of the native one: it registers the device with `import torch`, and a backend with torch.compile.
_NATIVE_GROUPS = ("torch.backends", "torch_dynamo_backends")


def tell(environment: Mapping[str, str]) -> Family:
    """The family, after ``import torch``. `environment` is asked for this package's own switch and for PyTorch/XLA's."""
    installed, signs = by_metadata()
    acting, seen = by_behaviour(environment)
    # The legacy product has no torch.neuron that could act; a registered device is never only a file.
    word: FamilyWord = acting or ("legacy" if installed == "legacy" else "none")
    return Family(
        word=word,
        by_metadata=installed,
        by_behaviour=acting or "nothing registered the device",
        signs=signs + seen,
        disagreement=_disagreement(installed, acting, environment),
    )


def by_metadata() -> tuple[str, list[str]]:
    """What the installed files say, in a word, and the signs that it was read from.

    ``native``, ``legacy``, ``native and legacy`` (files of both, a broken installation), ``unclear`` (the name without a
    sign of either), ``rehearsal`` (this package alone), ``none``.
    """
    try:
        found = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return _without_distribution()
    signs = [f"{DISTRIBUTION} {found.version} is installed"]
    native = [
        f"it registers {point.name} = {point.value} in {point.group}"
        for point in found.entry_points
        if point.group in _NATIVE_GROUPS and point.value.split(":")[0].split(".")[0] == MODULE
    ]
    legacy = [f"it requires {text}" for text in found.requires or [] if _name(text) in _LEGACY_REQUIREMENTS]
    if any(_LEGACY_FOLDER in file.parents for file in found.files or []):
        legacy.append(f"it has the folder {_LEGACY_FOLDER}")
    words = [word for word, of in (("native", native), ("legacy", legacy)) if of]
    return " and ".join(words) or "unclear", signs + native + legacy


def _without_distribution() -> tuple[str, list[str]]:
    signs = [f"no distribution {DISTRIBUTION} is installed"]
    if _findable(MODULE):
        signs.append(f"{MODULE} can be imported all the same, from a folder without metadata")
        return "unclear", signs
    points = [p for p in metadata.entry_points(group="torch.backends") if p.value.startswith("shakedown.")]
    signs += [f"shakedown registers {point.value} in torch.backends" for point in points]
    return "rehearsal" if points else "none", signs


def _name(requirement: str) -> str:
    """``torch_xla>=2.9; extra == "x"`` to ``torch-xla``."""
    end = next((i for i, c in enumerate(requirement) if not (c.isalnum() or c in "-_.")), len(requirement))
    return requirement[:end].lower().replace("_", "-").replace(".", "-")


def by_behaviour(environment: Mapping[str, str]) -> tuple[FamilyWord | None, list[str]]:
    """What answers in this process, or None where nothing does, and the signs of it."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None, ["torch is not imported, so nothing was asked"]
    module = getattr(getattr(torch, "neuron", None), "__name__", "")
    name = torch._C._get_privateuse1_backend_name()
    if module:
        signs = [f"torch.neuron is the module {module}", f"PyTorch's PrivateUse1 device is called {name}"]
        if module.split(".")[0] == "shakedown":
            return "rehearsal", signs
        if module.split(".")[0] == MODULE:
            return "native", signs
        return None, [*signs, f"{module} belongs to none of the known products"]
    signs = ["torch.neuron does not exist"]
    if "torch_xla" in sys.modules or _findable("torch_xla"):
        chosen = environment.get("PJRT_DEVICE", "")
        signs.append("torch_xla is there, and owns the device" + (f" (PJRT_DEVICE={chosen})" if chosen else ""))
        return "legacy" if _findable(MODULE) else None, signs
    return None, signs


def _findable(module: str) -> bool:
    """Whether `module` could be imported, without importing it. Our own rehearsal of ``torch_neuronx`` does not count."""
    try:
        spec = util.find_spec(module)
    except (ImportError, ValueError):
        return module in sys.modules
    return spec is not None and spec.origin != str(_OURS)


def _disagreement(installed: str, acting: str | None, environment: Mapping[str, str]) -> str:
    if installed == "native and legacy":
        return f"{DISTRIBUTION} has the signs of both products: it is a mixture of two installations"
    if installed in ("native", "legacy") and acting not in (installed, None):
        switch = environment.get("SHAKEDOWN_DEVICE")
        asked = f", as SHAKEDOWN_DEVICE={switch} asks" if acting == "rehearsal" and switch == "rehearsal" else ""
        return f"the installed {DISTRIBUTION} is {installed}, but {acting} answers for the device{asked}"
    if installed in ("native", "unclear") and acting is None:
        return f"the installed {DISTRIBUTION} is {installed}, but nothing registered the device neuron"
    if installed in ("none", "rehearsal") and acting in ("native", "legacy"):
        return f"{acting} answers for the device, though no distribution {DISTRIBUTION} is installed"
    return ""
