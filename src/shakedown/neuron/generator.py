"""``torch.Generator(device="neuron")``: a random stream of its own, as seeded as the default one and independent of it.

PyTorch asks a device's C++ for its generators, and this device has none. So a generator of the device is one of the CPU's
with another face: operators of every device accept it, and those of this one find its stream by its address
(:func:`.rng.key_from_generator`). :mod:`.torch_gaps_random` has ``torch.Generator`` return it.

What differs from a CUDA generator: a CPU operator accepts it too (CUDA's is refused) and draws from the CPU generator
underneath, which has the same seed but is not part of :meth:`Generator.get_state`. That is what lets samplers, ``random_split``
and ``DataLoader``, which draw on the host, take any generator of a script.
"""

from __future__ import annotations

from typing import Any

import torch

from . import rng
from .buffer import DEVICE

_DEFAULT_SEED = 67280421310721  # of every new torch.Generator (c10/core/GeneratorImpl.h, default_rng_seed_val)


def state_tensor(stream: rng.Stream) -> torch.Tensor:
    """The state of `stream` as PyTorch hands states about: uint8[16] on the CPU."""
    return torch.frombuffer(bytearray(stream.to_bytes()), dtype=torch.uint8)


def restore(stream: rng.Stream, state: torch.Tensor) -> None:
    """Restore what :func:`state_tensor` gave; 8 bytes are a seed with offset 0.

    Raises:
        TypeError: `state` is not a tensor of bytes.
        RuntimeError: it has neither 16 nor 8 of them.
    """
    if not isinstance(state, torch.Tensor) or state.dtype is not torch.uint8:
        found = state.dtype if isinstance(state, torch.Tensor) else type(state).__name__
        raise TypeError(f"RNG state must be a torch.ByteTensor, got {found}")
    stream.from_bytes(bytes(state.cpu().contiguous().numpy()))


class Generator(torch._C.Generator):
    """A ``torch.Generator`` of the device. State: 16 bytes (uint8), an 8-byte seed and an 8-byte offset."""

    stream: rng.Stream

    def __new__(cls, device: Any = DEVICE) -> Generator:
        """`device`: of this device type.

        Raises:
            ValueError: the device is of another type, or there is none of its index.
        """
        from .device import _index

        _index(device)
        made = super().__new__(cls, "cpu")
        made.stream = rng.Stream(_DEFAULT_SEED)
        rng.of_address[made._cdata] = made
        return made

    def __init__(self, device: Any = DEVICE) -> None:
        pass

    @property
    def device(self) -> torch.device:
        return DEVICE

    def manual_seed(self, seed: int) -> Generator:
        """Start the stream of `seed`, the values that ``torch.neuron.manual_seed(seed)`` gives. RuntimeError: over 64 bits."""
        super().manual_seed(seed)
        self.stream.start(seed)
        return self

    def seed(self) -> int:
        """Start the stream of a seed from the operating system, and return it."""
        found = super().seed()
        self.stream.start(found)
        return found

    def initial_seed(self) -> int:
        return self.stream.seed

    def get_offset(self) -> int:
        """How many keys were drawn since the seed was set."""
        return self.stream.offset

    def set_offset(self, offset: int) -> None:
        self.stream.place(self.stream.seed, offset)

    def get_state(self) -> torch.Tensor:
        return state_tensor(self.stream)

    def set_state(self, new_state: torch.Tensor) -> Generator:
        """Restore :meth:`get_state`; errors as in :func:`restore`. What is drawn on the host begins anew with the seed."""
        restore(self.stream, new_state)
        super().manual_seed(self.stream.seed)
        return self

    def clone_state(self) -> Generator:
        """A new generator at the same place."""
        other = Generator()
        torch._C.Generator.set_state(other, super().get_state())
        other.stream.place(self.stream.seed, self.stream.offset)
        return other

    def graphsafe_get_state(self) -> Generator:
        """A new generator that shares this one's stream: what either draws, the other has drawn too."""
        other = Generator()
        other.stream = self.stream
        return other

    def graphsafe_set_state(self, state: torch._C.Generator) -> Generator:
        """Share the stream of `state` from now on. TypeError: it is not a generator of this device."""
        if not isinstance(state, Generator):
            raise TypeError(f"expected a generator of device {DEVICE}, got one of {state.device}")
        self.stream = state.stream
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return torch._C.Generator, (DEVICE,), (self.stream.seed, self.stream.offset, self.get_state())

    def __setstate__(self, state: tuple[int, int, torch.Tensor]) -> None:
        self.set_state(state[2])


def of_default_stream() -> Generator:
    """The generator whose stream is the device's default one."""
    made = Generator()
    made.stream = rng.default
    return made
