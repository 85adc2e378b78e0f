"""What ``torch.neuron.get_device_properties`` tells; loaded when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from . import config, device, memory
from .autoload import DEVICE_NAME
from .ledger import ledger


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
    if ledger.limit is None and not device.is_initialized():
        limit = config.MEMORY_LIMIT()  # which counts from the first use
        if limit is not None:
            return limit
    return memory.total_memory()
