"""What ``torch.neuron.get_device_properties`` tells; loaded by ``import torch``, and light."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .autoload import DEVICE_NAME


@dataclass(frozen=True, repr=False)
class DeviceProperties:
    """``name``; ``total_memory`` in bytes: the limit that was set for the device, or else the host's memory."""

    name: str
    total_memory: int

    def __repr__(self) -> str:
        mib = self.total_memory >> 20
        return f"DeviceProperties(name={self.name!r}, total_memory={mib}MiB, a rehearsal on the host)"


def properties_of(index: int) -> DeviceProperties:
    return DeviceProperties(f"{DEVICE_NAME}:{index}", _total_memory())


def _total_memory() -> int:
    from . import config, device
    from .ledger import ledger

    limit = ledger.limit
    if limit is None and not device.is_initialized():
        limit = config.MEMORY_LIMIT()  # which counts from the first use
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if limit is None else limit
