"""What ``torch.neuron.get_device_properties`` tells; loaded when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from . import memory
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
    return DeviceProperties(f"{DEVICE_NAME}:{index}", memory.total_memory())
