"""What differs from one target to the next: device string, compile backend, how completion is awaited, what is
labelled.

This is the only file that knows target names. Nothing here imports torch until a worker asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata, util
from typing import Any, Literal

from .errors import BadInput

Family = Literal["rehearsal", "native", "legacy", "none"]
MODES = ("eager", "compiled", "adaptive")
NOT_BUILT = {"adaptive": "adaptive eager is not part of this version of the trial"}


@dataclass(frozen=True)
class Target:
    """One kind of device. ``backend`` is the ``torch.compile`` backend that "compiled" means there."""

    name: str
    device: str
    backend: str
    backend_note: str
    asynchronous: bool
    persistent_cache: bool


_TARGETS = {
    target.name: target
    for target in (
        Target(
            "neuron", "neuron", "neuron", "one program per captured graph", asynchronous=True, persistent_cache=True
        ),
        Target("cuda", "cuda", "inductor", "PyTorch's default compiler", asynchronous=True, persistent_cache=False),
        Target("xpu", "xpu", "inductor", "PyTorch's default compiler", asynchronous=True, persistent_cache=False),
        Target(
            "mps",
            "mps",
            "aot_eager",
            "capture only; operators run as in eager",
            asynchronous=True,
            persistent_cache=False,
        ),
        Target(
            "cpu",
            "cpu",
            "aot_eager",
            "capture only; operators run as in eager",
            asynchronous=False,
            persistent_cache=False,
        ),
    )
}


def names() -> list[str]:
    """Targets that can be asked for."""
    return list(_TARGETS)


def get(name: str) -> Target:
    """The target called `name`. Raises :class:`BadInput` with the list when there is none."""
    if name not in _TARGETS:
        raise BadInput(f"unknown target {name!r}; choose among {', '.join(_TARGETS)}")
    return _TARGETS[name]


def open_device(target: Target) -> Any:
    """Make the target's first tensor and return its ``torch.device``; raises what the backend raises."""
    import torch

    from .observe import paths

    if target.name == "neuron" and not hasattr(torch, "neuron"):
        paths.register_embedded_device()
    torch.ones(1, device=target.device).cpu()
    return torch.device(target.device)


def wait(target: Target) -> None:
    """Return once everything queued on the target is complete."""
    if target.asynchronous:
        import torch

        torch.accelerator.synchronize()


def completion(target: Target) -> str:
    """How the end of a step is known, in words."""
    if target.asynchronous:
        return "torch.accelerator.synchronize() after the last operation, inside the timed span"
    return "calls on this target return when their work is complete; nothing is awaited"


def family(target: Target) -> Family:
    """Which product answers for the target: ours (rehearsal), AWS's native or legacy package, or none of them.

    AWS ships two products under one distribution name: one built on PyTorch/XLA (legacy), one that registers the native
    device (TorchNeuron). What registered ``torch.neuron`` decides, not the name on the wheel.
    """
    if target.name != "neuron":
        return "none"
    import torch

    module = getattr(getattr(torch, "neuron", None), "__name__", "")
    if module.startswith("shakedown."):
        return "rehearsal"
    if hasattr(torch, "neuron"):
        return "native"
    return "legacy" if util.find_spec("torch_xla") and _installed("torch-neuronx") else "none"


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
