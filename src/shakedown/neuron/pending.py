"""A storage's value that adaptive eager has recorded but not computed yet, and how everybody else reads a storage.

Only the dispatcher, when it records, may take a storage's ``buffer`` as it is. Whoever needs the elements calls
:func:`value_of`, which has the recorded operators run first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Failed:
    """Stands for the value of an operator that was recorded and then failed, or was not run because one before it failed."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Pending:
    """Result `number` of the recording. ``value`` is None until it is computed, then a ``jax.Array`` or :class:`Failed`."""

    __slots__ = ("number", "value")

    flush: Callable[[str], None]  # runs everything recorded, for a reason; set by the recorder
    arrived: Callable[[int], None] | None = None  # told of each upload's bytes; set by the recorder
    trouble = False  # an operator failed in a flush that nobody called: the error waits for whoever reads a value

    def __init__(self, number: int) -> None:
        self.number = number
        self.value: Any = None

    def settle(self, reason: str) -> Any:
        """The value, computed now if need be.

        Raises:
            RuntimeError: its operator failed, or is being computed by the very call that asks.
        """
        if self.value is None or type(self.value) is Failed:  # who asks for a lost value gets the timer's error itself
            Pending.flush(reason)
        if isinstance(self.value, Failed):
            why = str(self.value.error) or type(self.value.error).__name__
            raise RuntimeError(f"this tensor has no value, because an operator before it failed: {why}")
        if self.value is None:
            raise RuntimeError("a tensor was read while the operators that compute it were being run")
        return self.value


def settled(buffer: Any, reason: str) -> Any:
    """`buffer`, or the value it stands for."""
    return buffer.settle(reason) if type(buffer) is Pending else buffer


def value_of(storage: torch.UntypedStorage, reason: str) -> Any:
    """The one-dimensional ``jax.Array`` with the elements of a device storage.

    `reason` is what the flush is called when adaptive eager has to run what it recorded: ``value read``, ``transfer``...
    """
    if Pending.trouble:
        Pending.flush(reason)
    return settled(storage.buffer, reason)
