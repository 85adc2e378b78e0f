"""Patches of torch for :mod:`.torch_gaps`: what ``torch.accelerator``, ``torch.Stream`` and ``torch.Event`` ask C++ for.

A device without a C++ device guard has neither devices nor streams there: PyTorch's own objects answer every question with a
constant. So those of this device are made by :mod:`.streams`; whatever is of another device stays PyTorch's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import streams
from .autoload import DEVICE_NAME

_originals: dict[str, Any] = {}


def close() -> None:
    """Apply every patch, once per process."""
    if not _originals:
        _close_accelerator()
        _close_general(torch.Stream, streams.Stream)
        _close_general(torch.Event, lambda device=None, **given: streams.Event(device=device, **given))


def _ours_is_current() -> bool:
    current = torch.accelerator.current_accelerator()
    return current is not None and current.type == DEVICE_NAME


def _close_accelerator() -> None:
    """``torch.accelerator`` asks C++ for what only a C++ device guard has; it is answered from ``torch.neuron``."""
    from . import device as ours

    accelerator = torch.accelerator

    def answer(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        _originals[f"{owner.__name__}.{name}"] = original

        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            return (replacement if _ours_is_current() else original)(*args, **kwargs)

        setattr(owner, name, function)

    def capability(device: Any = None, /) -> dict[str, Any]:
        ours._index(device)
        from .dtypes import TO_NUMPY

        return {"supported_dtypes": set(TO_NUMPY)}

    def set_index(device: Any, /) -> None:
        if not (isinstance(device, int) and device < 0):  # PyTorch's: a negative one changes nothing
            ours.set_device(device)

    def synchronize(device: Any = None, /) -> None:
        ours._index(device)
        ours._wait_for_all()

    # Not `torch.neuron`'s own functions, which ask these where they are captured.
    answer(accelerator, "synchronize", synchronize)
    answer(accelerator, "current_device_index", ours.current_device)
    answer(accelerator, "current_device_idx", ours.current_device)
    answer(accelerator, "set_device_index", set_index)
    answer(accelerator, "set_device_idx", set_index)
    answer(accelerator, "current_stream", streams.chosen_stream)
    answer(accelerator, "set_stream", streams.set_stream)
    answer(accelerator, "get_device_capability", capability)
    answer(accelerator.device_index, "__enter__", lambda self: ours.set_device(self.idx))
    answer(accelerator.device_index, "__exit__", lambda self, *exc: None)


def _close_general(original: Any, ours: Any) -> None:
    """``torch.Stream(device="neuron")`` and ``torch.Event`` make objects of this device's classes.

    The originals are C classes that nothing can be set on, so the names get a class around each, of which every object of the
    original counts as an instance. Classes that derive from it, and everything that C++ makes, are as they were.
    """
    name = original.__name__
    _originals[name] = original

    class General(type(original)):  # type: ignore[misc]
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls is not general:
                return super().__call__(*args, **kwargs)
            return (ours if _is_for_us(args, kwargs) else original)(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original) if cls is general else super().__instancecheck__(instance)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, original) if cls is general else super().__subclasscheck__(subclass)

    general: Any = General(name, (original,), {"__module__": "torch", "__doc__": original.__doc__})
    setattr(torch, name, general)


def _is_for_us(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    number = kwargs.get("device_type")
    if number is not None:
        return number == streams._type_number()
    device = args[0] if args else kwargs.get("device")
    if device is None or isinstance(device, int):
        return _ours_is_current()
    try:
        return torch.device(device).type == DEVICE_NAME
    except (TypeError, RuntimeError):
        return False  # the original says what is wrong with it
