"""Every exception this device raises by itself; whatever PyTorch would raise, PyTorch's own kernels raise.

ShakedownError
├── ConfigError            a variable or argument of ours has a value we cannot use
│   └── ProfileError           a support profile cannot be found, or its file is wrong
├── CompilationFailed      the compiler refused a program
├── DeviceConflict         the device name is taken by another package
├── FallbackRefused        an operator with a lowering failed, and a setting forbids its retreat to the CPU
├── KernelError            a custom kernel does not accept its arguments, or does not do what was said of it
├── LoweringError          an operator has no StableHLO form for these arguments: the caller falls back to the CPU
│   └── ProgramFailed          a captured graph's program was refused by the compiler, or broke
├── UnsupportedByProfile   the active support profile refuses what was asked for
├── UnsupportedCompileOption   torch.compile was asked for what the backend refuses
├── NEFFExecutionError     a compiled graph cannot be run: its program breaks
│   └── InputsOnSeveralDevices  its results are to go back to the device of its inputs, and these are on several
├── UnsupportedStep        compile_step was given a step that cannot be one program
├── GraphNotLowered        a captured graph cannot be compiled, or not in full, and options say that this is an error
└── BucketingError         a call cannot be padded to a bucket as asked
    ├── TooLong                it is longer than the largest bucket, and such calls are to be refused
    ├── TooManyPrograms        it would be one program more than `max_programs`
    └── PaddingChangesResults  check=True: the padded call does not give what the unpadded one gives
"""

from __future__ import annotations

from typing import Any


class ShakedownError(RuntimeError):
    """Base of the device's own errors."""


class ConfigError(ShakedownError, ValueError):
    """A setting has a value that cannot be used. The message names the variable, the value and what is allowed."""


class ProfileError(ConfigError):
    """A support profile cannot be found or read, or its file is wrong. The message names file and line."""


class CompilationFailed(ShakedownError):
    """The compiler refused a program. The message begins with ``COMPILATION FAILED`` and names it."""


class FallbackRefused(ShakedownError):
    """An operator that has a lowering failed, and a setting forbids its retreat to the CPU.

    The message has the stage, the operator, the reason, what was tried last, the arguments, the setting, and the user's lines
    where stack traces are on.
    """


class DeviceConflict(ShakedownError):
    """Another package has registered the ``neuron`` device, or PrivateUse1 under another name."""


class KernelError(ShakedownError):
    """A custom kernel failed while it was traced. The message names kernel, arguments, the user's line and the reason."""


class LoweringError(ShakedownError):
    """No program can be built for this call; ``reason`` goes into the fallback record.

    ``node`` is the node of a captured graph that is to blame, where there is one (a ``torch.fx.Node``).
    """

    def __init__(self, reason: str, node: Any = None) -> None:
        super().__init__(reason)
        self.reason, self.node = reason, node


class ProgramFailed(LoweringError):
    """The program of a captured graph was refused by the compiler, or broke as it ran; its operators may run one by one.

    ``reason`` begins with ``COMPILATION FAILED`` or ``EXECUTION FAILED``, and names the graph; `ran`: it is the latter.
    """

    def __init__(self, reason: str, *, ran: bool = False) -> None:
        super().__init__(reason)
        self.ran = ran


class UnsupportedByProfile(ShakedownError, NotImplementedError):
    """The active support profile refuses the call. The message names the profile, its rule and the rule's source."""


class UnsupportedCompileOption(ShakedownError):
    """``torch.compile(backend="neuron")`` was given an option that the backend refuses."""


class NEFFExecutionError(ShakedownError):
    """A compiled graph cannot be run: its program breaks, or ``retain_device`` finds its inputs on several devices.

    The name is TorchNeuron's, for scripts that catch it; there are no NEFF files here.
    """


class InputsOnSeveralDevices(NEFFExecutionError, UnsupportedCompileOption):
    """``retain_device`` has no one device to return results to. The message names the devices and the variables."""


class UnsupportedStep(ShakedownError):
    """``compile_step`` was given a step that cannot be one program. The message says why, and what to do instead."""


class GraphNotLowered(ShakedownError):
    """A graph of ``torch.compile`` has no program that works, without ``fallback_execution``; or it is not one program, with
    ``one_program``. The message says why.
    """


def said_by(error: Exception) -> str:
    """``ValueError: the first line of its message``, for reasons."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


class BucketingError(ShakedownError, ValueError):
    """A call of a ``bucketed`` function cannot be padded as asked. The message names the argument and what to give."""


class TooLong(BucketingError):
    """A request is longer than the largest bucket, and ``longer="error"``."""


class TooManyPrograms(BucketingError):
    """A call would be one program more than ``max_programs``. The message says in what it differs from those before."""


class PaddingChangesResults(BucketingError):
    """With ``check=True``: the padded call and the unpadded one differ. The message says by how much, and why, probably."""
