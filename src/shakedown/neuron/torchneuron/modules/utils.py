"""``torch_neuronx.utils``: what is registered, and how the process is set up."""

from shakedown.neuron.torchneuron.inquiries import (
    get_logical_neuron_cores,
    get_neuron_registered_ops,
    get_platform_target,
    is_neff_cache_disabled,
    is_sync_mode_enabled,
    use_mlir_aten_ops,
)

__all__ = [
    "get_logical_neuron_cores",
    "get_neuron_registered_ops",
    "get_platform_target",
    "is_neff_cache_disabled",
    "is_sync_mode_enabled",
    "use_mlir_aten_ops",
]
