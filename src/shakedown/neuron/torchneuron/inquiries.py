"""What ``torch_neuronx.utils`` tells."""

from __future__ import annotations

import torch

from .. import config, config_accepted


def get_neuron_registered_ops(as_sorted: bool = False, keep_variant: bool = False) -> set[str] | list[str]:
    """Operators with a kernel of their own on the device, as ``aten::add``, or ``aten::add.Tensor`` with `keep_variant`.

    A set, or a list in order with `as_sorted`. What is not in it runs by PyTorch's decomposition, or on the CPU.
    """
    torch.neuron.init()
    names = set(torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1"))
    if not keep_variant:
        names = {name.partition(".")[0] for name in names}
    return sorted(names) if as_sorted else names


def use_mlir_aten_ops() -> bool:
    """What ``TORCH_NEURONX_MLIR_ATEN_OPS`` says. Operators have one lowering here, to StableHLO, whatever it says."""
    return config_accepted.MLIR_ATEN_OPS()


def is_sync_mode_enabled() -> bool:
    """Whether each operator is complete when its call returns (``NEURON_LAUNCH_BLOCKING``)."""
    return config.LAUNCH_BLOCKING()


def get_logical_neuron_cores() -> str:
    """The logical-core configuration that is rehearsed, ``NEURON_LOGICAL_NC_CONFIG``: part of every executable's key."""
    return str(config.LOGICAL_CORES())


def get_platform_target() -> str:
    """The platform that is rehearsed, ``trn2`` or ``trn3`` (``SHAKEDOWN_PLATFORM_TARGET``): the code is the host processor's."""
    return config.PLATFORM()


def is_neff_cache_disabled() -> bool:
    """Whether programs of eager operators are not kept in memory (``TORCH_NEURONX_DISABLE_NEFF_CACHE``)."""
    return config.DISABLE_MEMORY_CACHE()
