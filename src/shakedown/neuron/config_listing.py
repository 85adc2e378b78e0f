"""All settings together: the list of ``shakedown env``, what looks like one and is none, what is said when the device starts."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable
from typing import Any

from . import config, config_accepted
from .setting import Setting, text_of, variables


def every() -> list[Setting[Any]]:
    """All settings: those of :mod:`.config`, then TorchNeuron's that have no effect here."""
    found = [s for module in (config, config_accepted) for s in vars(module).values() if isinstance(s, Setting)]
    return list({s.name: s for s in found}.values())


# Read by the trial (shakedown.readiness), which has no part in the device; each is described where it is used.
_OF_THE_TRIAL = (
    "SHAKEDOWN_FAULT",
    "SHAKEDOWN_PARITY_DEVICE",
    "SHAKEDOWN_PARITY_DTYPE",
    "SHAKEDOWN_PARITY_LOSSES",
    "SHAKEDOWN_SPAWNED_AT",
)
_FAMILIES = ("SHAKEDOWN_", "TORCH_NEURONX_", "NEURON_")


def unknown() -> dict[str, str | None]:
    """Variables that are set and look like ours or TorchNeuron's but are neither, each with the name that may be meant."""
    known = [*_OF_THE_TRIAL, *(n for s in every() for n in s.names)]
    strange = sorted(n for n in variables() if n.startswith(_FAMILIES) and n not in known)
    return {n: next(iter(difflib.get_close_matches(n, known, 1, 0.75)), None) for n in strange}


def start(tell: Callable[[str], None]) -> None:
    """When the device starts: `tell` of every variable that is set and only accepted; called once in a process.

    Raises:
        ConfigError: one of TorchNeuron's variables, or the number of cores, cannot be read.
    """
    for setting in every():
        if setting.source and (name := setting.set_by()) is not None:
            value = setting()
            given = f"{name}={text_of(name)}"
            if setting.effect == "accepted":
                tell(f"{given} is accepted and has no effect here: {setting.help}")
            elif (setting is config.NUM_CORES and value > 1) or (setting is config.VISIBLE_CORES and len(value) > 1):
                warnings.warn(f"{given}: this process has one device, neuron:0, all the same", stacklevel=2)
