"""``torch.neuron``'s functions about random numbers: seeds and states of the device's default stream.

Imported by ``import torch`` as part of :mod:`.device`, and as light as that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from . import device as _device

if TYPE_CHECKING:
    from .generator import Generator

_generators: tuple[Generator, ...] = ()


def manual_seed(seed: int) -> None:
    """Start the stream of `seed` (taken modulo 2**64) on the current device; ``torch.manual_seed`` does it too."""
    from . import rng

    rng.seed(seed)


def manual_seed_all(seed: int) -> None:
    """:func:`manual_seed` on every device."""
    manual_seed(seed)


def seed() -> None:
    """Start a stream that nobody can predict, as a process does that sets no seed."""
    from . import rng

    rng.seed(rng.from_system())


def seed_all() -> None:
    """:func:`seed`, with one seed for all devices."""
    seed()


def initial_seed() -> int:
    """The seed of the current device's stream."""
    from . import rng

    return rng.state()[0]


def get_rng_state(device: Any = None) -> torch.Tensor:
    """State of a device's random stream: 16 bytes (uint8, on the CPU), an 8-byte seed and an 8-byte offset."""
    _device._index(device)
    from . import generator, rng

    return generator.state_tensor(rng.default)


def get_rng_state_all() -> list[torch.Tensor]:
    """:func:`get_rng_state` of every device."""
    return [get_rng_state(index) for index in range(_device.device_count())]


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Restore :func:`get_rng_state`'s 16 bytes; 8 bytes are a seed with offset 0.

    Raises:
        TypeError: `new_state` is not a tensor of bytes.
        RuntimeError: it has neither 16 nor 8 of them.
        ValueError: there is no such device.
    """
    _device._index(device)
    from . import generator, rng

    generator.restore(rng.default, new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restore :func:`get_rng_state_all`; errors as in :func:`set_rng_state`."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def default_generators() -> tuple[Generator, ...]:
    """``torch.neuron.default_generators``: for each device the ``torch.Generator`` whose stream is the default one."""
    global _generators
    if not _generators:
        from .generator import of_default_stream

        _generators = (of_default_stream(),)
    return _generators
