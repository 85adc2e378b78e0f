"""Patches of torch for random numbers and autocast: what PyTorch asks of a device's C++, or keeps in its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import torch_gaps

_generator = torch._C.Generator


def close() -> None:
    """Have ``torch.Generator(device="neuron")`` make the device's; the class stays PyTorch's own, and so do its other instances.

    ``torch.Generator`` itself cannot be changed, but its metaclass is a Python class, which it shares with the classes of
    opaque objects: calls of those go on to ``type.__call__``, where they went before. Where a PyTorch has no such metaclass,
    its NotImplementedError stands, and a CPU generator does the same work.
    """
    metaclass = type(_generator)
    if metaclass is type or "__call__" in vars(metaclass):
        return

    def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is _generator:
            device = kwargs["device"] if "device" in kwargs else args[0] if args else None
            if type(device) is int:  # of the current accelerator
                device = torch.device(device)
            if torch_gaps.is_ours(device):
                from .generator import Generator

                return Generator(*args, **kwargs)
        return type.__call__(cls, *args, **kwargs)

    metaclass.__call__ = call
    torch_gaps.when_loaded("torch._dynamo.variables.builder", _show_to_dynamo)


def _show_to_dynamo(module: Any) -> None:
    """Dynamo breaks the graph at an operator that is given a generator, but knows generators by their exact class.

    It takes another class for an opaque object that a graph may hold, and then fails. Where its table of classes is not as
    expected, a generator of the device in a compiled function is the error that it is without this.
    """
    from .generator import Generator

    builder = module.VariableBuilder
    original = getattr(getattr(builder, "_type_dispatch", None), "__func__", None)
    if original is None:
        return

    def table(cls: Any) -> dict[object, Any]:
        found: dict[object, Any] = original(cls)
        found.setdefault(Generator, cls.wrap_user_defined)
        return found

    builder._type_dispatch = classmethod(table)


def clear_casts_with(clear: Callable[[], None]) -> None:
    """Call `clear` too when PyTorch clears the casts that its C++ keeps: at the end of an outermost region of autocast."""
    original = torch.clear_autocast_cache

    @functools.wraps(original)
    def clear_autocast_cache() -> None:
        clear()
        original()

    torch.clear_autocast_cache = clear_autocast_cache
