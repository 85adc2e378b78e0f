"""Every exception this device raises by itself; whatever PyTorch would raise, PyTorch's own kernels raise.

ShakedownError
├── ConfigError            a variable or argument of ours has a value we cannot use
│   └── ProfileError           a support profile cannot be found, or its file is wrong
├── DeviceConflict         the device name is taken by another package
├── LoweringError          an operator has no StableHLO form for these arguments: the caller falls back to the CPU
├── UnsupportedByProfile   the active support profile refuses what was asked for
├── UnsupportedCompileOption   torch.compile was asked for what the backend refuses
└── GraphNotLowered        a captured graph cannot be compiled in full, and fallback_execution is off
"""

from __future__ import annotations

from typing import Any


class ShakedownError(RuntimeError):
    """Base of the device's own errors."""


class ConfigError(ShakedownError, ValueError):
    """A setting has a value that cannot be used. The message names the variable, the value and what is allowed."""


class ProfileError(ConfigError):
    """A support profile cannot be found or read, or its file is wrong. The message names file and line."""


class DeviceConflict(ShakedownError):
    """Another package has registered the ``neuron`` device, or PrivateUse1 under another name."""


class LoweringError(ShakedownError):
    """No program can be built for this call; ``reason`` goes into the fallback record.

    ``node`` is the node of a captured graph that is to blame, where there is one (a ``torch.fx.Node``).
    """

    def __init__(self, reason: str, node: Any = None) -> None:
        super().__init__(reason)
        self.reason, self.node = reason, node


class UnsupportedByProfile(ShakedownError, NotImplementedError):
    """The active support profile refuses the call. The message names the profile, its rule and the rule's source."""


class UnsupportedCompileOption(ShakedownError):
    """``torch.compile(backend="neuron")`` was given an option that the backend refuses."""


class GraphNotLowered(ShakedownError):
    """``torch.compile`` with ``fallback_execution`` off met a graph that cannot be one program. The message says why."""


def said_by(error: Exception) -> str:
    """``ValueError: the first line of its message``, for reasons."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
