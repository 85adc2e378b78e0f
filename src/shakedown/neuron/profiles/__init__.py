"""Support profiles: documented limits of a TorchNeuron release that the device imitates on request.

``native``, the default, imposes nothing and costs nothing: rules are consulted only where a plan is built, and plans made
under one profile are put aside while another is active. A profile is a TOML file (docs/profiles.md); this module holds
which one is active, :mod:`.document` reads files, :mod:`.rules` applies them, :mod:`.apis` refuses whole APIs.

Imported by ``import torch``: light. Whatever a profile needs is imported when one is asked for.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .rules import Profile

NATIVE = "native"
FOLDER = Path(__file__).parent

active: Profile | None = None  # None: native
_guards = ExitStack()
_lock = threading.RLock()


def shipped() -> list[str]:
    """Names that need no path."""
    return [NATIVE, *sorted(p.stem for p in FOLDER.glob("*.toml"))]


def load(name: str) -> Profile | None:
    """The profile called `name`, or read from the TOML file at that path; None for ``native``.

    Raises:
        ProfileError: there is no such profile, or its file is wrong; the message names file and line.
    """
    if name == NATIVE:
        return None
    from .rules import read

    return read(name)


def name() -> str:
    """Name of the active profile."""
    return NATIVE if active is None else active.name


@contextmanager
def use(name: str) -> Iterator[None]:
    """Work under the profile `name` (or a path), then under the one before.

    The switch is for the whole process, so no other thread may use the device meanwhile. Functions that ``torch.compile``
    has compiled are compiled again, because some rules bite there.

    Raises:
        ProfileError: there is no such profile, or its file is wrong.
    """
    chosen, before = load(name), active
    _switch(chosen)
    try:
        yield
    finally:
        _switch(before)


def _switch(profile: Profile | None) -> None:
    if profile is active:
        return
    activate(profile)
    if "shakedown.neuron.modes.compile" in sys.modules:
        import torch._dynamo

        torch._dynamo.reset()


def activate(profile: Profile | None) -> None:
    """Make `profile` (None: native) the active one, without recompiling anything: before the device's first use."""
    global active
    from .. import dispatch

    with _lock:
        _guards.close()
        try:
            if profile is not None:
                _guards.enter_context(profile.guards())
        except BaseException:
            if active is not None:
                _guards.enter_context(active.guards())
            raise
        dispatch.set_plans_aside(active, profile)
        active = profile
