"""The public names of ``torch_neuronx``: which there are, where each comes from, and why one is missing.

``src/torch_neuronx.py`` is the module that is imported; its submodules lie in ``modules/``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Names of TorchNeuron's package that are those of torch.neuron.
OF_THE_DEVICE = (
    "Event",
    "NeuronProfiler",
    "Stream",
    "StreamContext",
    "clear_op_tracking",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_device_properties",
    "get_dynamo_metrics",
    "get_executed_ops",
    "get_fallback_ops",
    "is_neuron_runtime_initialized",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "nki_op",
    "reset_accumulated_memory_stats",
    "reset_dynamo_metrics",
    "reset_peak_memory_stats",
    "set_device",
    "set_stream",
    "stream",
    "synchronize",
    "wrap_nki",
)
_ELSEWHERE = {
    "NeuronProfiler": "profiling.NeuronProfiler",
    "is_neuron_runtime_initialized": "is_initialized",
}  # where torch.neuron has them
SUBMODULES = ("metrics", "neuron", "neuron_dynamo_backend", "profiling", "python_ops", "utils")
ABSENT = {
    "distributed": "torch_neuronx.distributed is not part of the rehearsal: there is one device in a process and no "
    "process-group backend for it yet. Ranks can be rehearsed on the CPU with gloo",
}


def find(name: str) -> Any:
    """The attribute `name` of ``torch_neuronx``.

    Raises:
        AttributeError: there is none; the message says why where TorchNeuron has one.
    """
    if name in SUBMODULES:
        try:
            return import_module(f"torch_neuronx.{name}")
        except ImportError as error:
            raise AttributeError(f"torch_neuronx.{name} is not part of the rehearsal: {error}") from error
    if name == "_autoload":
        from ..autoload import autoload

        return autoload
    if name in ABSENT:
        raise AttributeError(ABSENT[name])
    if name in OF_THE_DEVICE:
        found = _of_the_device(name)
        if found is not None:
            return found
        raise AttributeError(
            f"torch_neuronx.{name} is not part of the rehearsal: this version of the device has no {name}"
        )
    if name == "__all__":
        return present()
    raise AttributeError(f"module 'torch_neuronx' has no attribute {name!r}: it is no public name of TorchNeuron 2.33")


def _of_the_device(name: str) -> Any:
    import torch

    found: Any = torch.neuron
    for part in _ELSEWHERE.get(name, name).split("."):
        found = getattr(found, part, None)
    return found


def of_the_device() -> dict[str, Any]:
    """What :data:`OF_THE_DEVICE` names, as far as it is there."""
    return {name: found for name in OF_THE_DEVICE if (found := _of_the_device(name)) is not None}


def present() -> list[str]:
    """The public names that are there."""
    return sorted([*SUBMODULES, *of_the_device()])
