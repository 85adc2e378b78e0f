"""Two faults as patches of torch in the test's own process; the trial's own, in real processes, are ``readiness/selftest``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional as F


@contextmanager
def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace ``owner.name`` by ``make(original)`` for a while."""
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def scaled() -> Any:
    """An activation comes out 0.2 % too large."""
    return patched(F, "gelu", lambda original: lambda x: original(x) * 1.002)


def moved_wrongly() -> Any:
    """A weight changes while it is moved to the device."""

    def make(original: Any) -> Any:
        def to(self: Any, *args: Any, **kwargs: Any) -> Any:
            moved = original(self, *args, **kwargs)
            if args and isinstance(args[0], torch.device):
                with torch.no_grad():
                    next(moved.parameters())[0, 0] += 1e-3
            return moved

        return to

    return patched(torch.nn.Module, "to", make)
