"""A patch of torch: a profile that asks for the device is told of the device's events.

PyTorch takes these from a C++ profiler of the device, of which there is none here, and asks no module of the device
when a profile is made: the constructor is the one place to notice it. For all other profiles it does what it did.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from .autoload import DEVICE_NAME


def close() -> None:
    """Wrap ``torch.autograd.profiler.profile.__init__``, which every profile goes through. Called once."""
    original = torch.autograd.profiler.profile.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("use_device") != DEVICE_NAME:
            return original(self, *args, **kwargs)
        kwargs["use_kineto"] = True  # without Kineto, a device needs a clock in C++: every operator would fail
        original(self, *args, **kwargs)
        if self.enabled:
            from .profiling import kineto

            try:
                kineto.attach(self)
            except (AttributeError, TypeError) as error:
                kineto.trouble("a profile", error)

    torch.autograd.profiler.profile.__init__ = init
