"""What ``torch.neuron`` tells of its devices, and makes current; docs/devices.md.

What is here may stand in a function that Dynamo captures, so that it must not lie in the device's own directory, which Dynamo
passes by: a graph would end there. ``import torch`` loads it.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

DEVICE_NAME = "neuron"


def is_available() -> bool:
    """True: the device is there as soon as its name is."""
    return True


def device_count() -> int:
    """Devices of this process: one, with the number 0."""
    return 1


def current_device() -> int:
    """The number of the device that this thread has chosen: 0, since there is no other."""
    return 0


def index_of(device: Any) -> int:
    """The index meant by an int, a string, a ``torch.device`` or None (the current one).

    Raises:
        ValueError: the device is of another type, or its index is out of range.
    """
    if device is None:
        return 0
    if isinstance(device, int):
        index = device
    else:
        try:
            parsed = torch.device(device)
        except RuntimeError as error:  # a string that is no device
            raise ValueError(f"expected a {DEVICE_NAME} device, got {device!r}: {error}") from None
        if parsed.type != DEVICE_NAME:
            raise ValueError(f"expected a {DEVICE_NAME} device, got {parsed}")
        index = parsed.index or 0
    if not 0 <= index < device_count():
        raise ValueError(
            f"Device index {index} is out of range: this process has {device_count()} {DEVICE_NAME} device(s), numbered from 0"
        )
    return index


def set_device(device: Any) -> None:
    """Make `device`, a number or a device, this thread's current one; None changes nothing. There is no other than 0.

    Raises:
        ValueError: there is no such device, or it is of another type.
    """
    index_of(device)


class device:
    """Context manager that makes a device current and restores the previous one.

    Raises:
        ValueError: there is no such device, or it is of another type.
    """

    def __init__(self, device: Any) -> None:
        self.idx = index_of(device)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        return None


def get_device_name(device: Any = None) -> str:
    """``neuron:0``. ValueError for a device that is not there."""
    return f"{DEVICE_NAME}:{index_of(device)}"


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that autocast may compute in, and float32."""
    return [torch.float32, torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True, as on Trainium."""
    return True


# --- waiting, and the current stream: in a captured function what PyTorch captures of any accelerator -----------------------


def synchronize(device: Any = None) -> None:
    """Wait until all work queued on the device, on any stream, has finished.

    Raises:
        Exception: the first error of an operator that ran after its call had returned (docs/errors.md).
    """
    index = index_of(device)
    if torch.compiler.is_dynamo_compiling():
        torch.accelerator.synchronize(index)
        return
    from .neuron import device as ours

    ours._wait_for_all()


def current_stream(device: Any = None) -> Any:
    """The stream that this thread has chosen, or the default stream."""
    index = index_of(device)
    if torch.compiler.is_dynamo_compiling():
        return torch.accelerator.current_stream(index)
    from .neuron import streams

    return streams.chosen_stream(device)


def stream(stream: Any) -> Any:
    """Context manager: `stream` is current inside. ``stream(None)`` changes nothing."""
    if torch.compiler.is_dynamo_compiling():
        return contextlib.nullcontext() if stream is None else stream
    from .neuron import streams

    return streams.StreamContext(stream)
