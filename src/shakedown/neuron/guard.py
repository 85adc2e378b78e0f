"""The device guard that PyTorch's C++ asks for the device's type, and errors of hooks that it meets on its way.

Autograd leaves a node of the device through a guard whose destructor asks :meth:`Guard.type_`, in Python. When a hook of the
backward pass has raised (a tensor's, a saved tensor's, a checkpoint's), its error is still set in that moment, Python takes
any call that returns for failed, and PyTorch ends the process, because destructors must not fail. So the error is taken out
of the way, and :class:`Engine` raises it where PyTorch has lost it.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

import torch

# A call from C to C, of which Python checks whether an error is set when it returns: the cheapest way to ask.
_ask = partial(len, ())
_TYPE = torch._C._autograd.DeviceType.PrivateUse1
_met: deque[BaseException] = deque(maxlen=16)


class Guard(torch._C._acc.DeviceGuard):
    """``_DummyDeviceGuard`` of PyTorch, for calls with an error set too."""

    def type_(self) -> Any:
        try:
            _ask()
        except SystemError as error:  # "returned a result with an exception set", caused by that exception
            _met.append(error.__cause__ or error)
        return _TYPE


class Engine(torch._C._ImperativeEngine):
    """PyTorch's engine, that raises the error that :class:`Guard` took out of the way."""

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().run_backward(*args, **kwargs)
        except SystemError:  # returned NULL without setting an exception
            if not _met:
                raise
            error = _met.popleft()
        raise error


def close() -> None:
    """Have backward passes run by :class:`Engine`."""
    torch.autograd.Variable._execution_engine = Engine()
