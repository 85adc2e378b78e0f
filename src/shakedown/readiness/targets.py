"""What differs from one target to the next: device string, compile backend, modes and how they are switched on, how
completion is awaited, what can be observed, what is labelled.

This is the only file that knows target names. Nothing here imports torch until a worker asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from .errors import BadInput

Family = Literal["rehearsal", "native", "legacy", "none"]
Observable = Literal[
    "operators",
    "fallbacks",
    "bytes moved",
    "operator time",
    "user lines",
    "compilations",
    "graph breaks",
    "recompiles",
    "fusion groups",
    "device memory",
    "cache state",
]
OBSERVABLES: tuple[Observable, ...] = get_args(Observable)
MODES = ("eager", "compiled", "adaptive")
# What switches adaptive eager on before Python starts. A process gets all of them: which package answers for `neuron` is
# known only inside it. Ours goes by the first; the second is the switch of AWS's public snapshot of April 2026, the name
# of which in the release is not documented.
MODE_VARIABLES = ("SHAKEDOWN_ADAPTIVE", "TORCH_NEURONX_ENABLE_CONCATENATION")


@dataclass(frozen=True)
class Target:
    """One kind of device. ``backend`` is the ``torch.compile`` backend that "compiled" means there."""

    name: str
    device: str
    backend: str
    backend_note: str
    asynchronous: bool
    persistent_cache: bool
    modes: tuple[str, ...] = ("eager", "compiled")
    whole_step: bool = False  # whether forward, backward and optimizer can be one compiled program

    def environment(self, mode: str) -> dict[str, str]:
        """Variables that a process in `mode` starts with; set in every mode, so that the caller's own switch decides
        nothing.
        """
        switch = "1" if mode == "adaptive" and "adaptive" in self.modes else "0"
        return dict.fromkeys(MODE_VARIABLES, switch)


_CAPTURE_ONLY = "capture only; operators run as in eager"
_INDUCTOR = "PyTorch's default compiler"
_TARGETS = {
    target.name: target
    for target in (
        Target(
            "neuron",
            "neuron",
            "neuron",
            "one program per captured graph",
            asynchronous=True,
            persistent_cache=True,
            modes=MODES,
            whole_step=True,
        ),
        Target("cuda", "cuda", "inductor", _INDUCTOR, asynchronous=True, persistent_cache=False),
        Target("xpu", "xpu", "inductor", _INDUCTOR, asynchronous=True, persistent_cache=False),
        Target("mps", "mps", "aot_eager", _CAPTURE_ONLY, asynchronous=True, persistent_cache=False),
        Target("cpu", "cpu", "aot_eager", _CAPTURE_ONLY, asynchronous=False, persistent_cache=False),
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


def lacks(target: Target, mode: str) -> str:
    """Why `mode` cannot be run on `target`; empty when it can. Such a cell stays untested, with this reason."""
    return "" if mode in target.modes else f"the target {target.name} has no {mode} mode"


def require(target: Target) -> None:
    """Ask whether the target's device is there, without starting it.

    Raises:
        BadInput: PyTorch was not built for such a device, or this machine has none.
    """
    import torch

    if target.name == "cpu":
        return
    if target.name == "neuron":
        _bring_neuron()
        there = hasattr(torch, "neuron") and torch.neuron.is_available()
    else:
        there = getattr(torch.backends if target.name == "mps" else torch, target.name).is_available()
    if not there:
        raise BadInput(_absent(target))


def _bring_neuron() -> None:
    """The embedded device, where no package has registered one with ``import torch``."""
    import torch

    from .observe import paths

    if not hasattr(torch, "neuron"):
        paths.register_embedded_device()


def _absent(target: Target, why: str = "") -> str:
    import torch

    if not why and family(target) == "legacy":
        why = "AWS's legacy package is installed; it is built on PyTorch/XLA, which this trial does not drive"
    if target.name == "neuron":
        why = why or "no package has registered one (SHAKEDOWN_DEVICE=off leaves the embedded one out)"
    why = why or f"PyTorch {torch.__version__} sees none"
    return f"no {target.name} device can be used here: {why}; choose a --target that this machine has"


def open_device(target: Target) -> Any:
    """Make the target's first tensor and return its ``torch.device``.

    Raises:
        BadInput: there is no such device, or it does not answer; the message is one line with the backend's own reason.
    """
    import torch

    require(target)
    try:
        torch.ones(1, device=target.device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        lines = str(error).strip().splitlines() or [""]
        raise BadInput(_absent(target, f"{type(error).__name__}: {lines[0]}")) from error
    return torch.device(target.device)


def wait(target: Target) -> None:
    """Return once everything queued on the target is complete.

    Not through ``torch.accelerator``, which knows one accelerator per process: with the embedded device registered beside
    a GPU it would wait for the wrong one, at once.
    """
    if target.asynchronous:
        import torch

        torch.get_device_module(target.device).synchronize()


def completion(target: Target) -> str:
    """How the end of a step is known, in words."""
    if target.asynchronous:
        return f"torch.{target.device}.synchronize() after the last operation, inside the timed span"
    return "calls on this target return when their work is complete; nothing is awaited"


def family(target: Target) -> Family:
    """Which product answers for the target: ours (rehearsal), AWS's native or legacy package, or none of them.

    AWS ships two products under one distribution name: one built on PyTorch/XLA (legacy), one that registers the native
    device (TorchNeuron). What registered ``torch.neuron`` decides, not the name on the wheel (``observe/family.py``).
    """
    if target.name != "neuron":
        return "none"
    import torch  # noqa: F401  (it registers the device: before, there is nothing to ask)

    from .observe import identity

    return identity.product(target).word


def observes(target: Target, product: Family) -> dict[Observable, str]:
    """What can be seen on `target` when `product` answers for it: empty where it can, else why it is unobservable.

    ``operators`` are calls counted by operator and phase, ``fallbacks`` operators that the device handed to the CPU. Times
    of operators, and user lines, belong to one step of their own that no timing uses.
    """
    seen = dict.fromkeys(OBSERVABLES, "")
    if product == "rehearsal":
        return seen
    if product == "legacy":
        return dict.fromkeys(
            OBSERVABLES, "AWS's legacy package is built on PyTorch/XLA, which this trial does not drive"
        )
    seen["compilations"] = f"{_speaker(target)} does not tell of single compilations"
    seen["fusion groups"] = f"the target {target.name} has no adaptive mode"
    seen["cache state"] = f"{_speaker(target)} does not tell what its cache held"
    if target.name == "neuron":
        private = "the public API of torch_neuronx has no inspection of it that is documented"
        seen["compilations"] = f"{private}: get_dynamo_metrics() lists compiled graphs, not operators' programs"
        seen["fusion groups"] = private
        seen["cache state"] = f"{private}; hits and compilations cannot be told apart from outside"
    elif target.name == "cpu":
        nothing = "everything runs on the CPU, so there is no device to leave"
        for kind in ("fallbacks", "bytes moved", "device memory", "cache state"):
            seen[kind] = nothing
    else:
        behind = "operators are counted where PyTorch dispatches them; a fallback behind that point"
        seen["fallbacks"] = f"{behind}, and what it moves, cannot be seen"
        if target.name == "mps":
            seen["device memory"] = "torch.mps tells the memory of the moment, not its peak"
    return seen


def unobservable(target: Target, product: Family) -> dict[Observable, str]:
    """What of :func:`observes` cannot be seen, each with the reason."""
    return {kind: why for kind, why in observes(target, product).items() if why}


def _speaker(target: Target) -> str:
    return "torch_neuronx" if target.name == "neuron" else f"PyTorch's {target.backend} backend"
