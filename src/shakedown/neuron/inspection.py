"""What ``torch.neuron`` tells of the device: profiles and support, operators that ran, programs, and ``torch.compile``'s record.

Imported by ``import torch`` as part of :mod:`.device`, and as light as that.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

from . import device, events

if TYPE_CHECKING:
    from .support import OperatorSupport


def profile() -> str:
    """Name of the active support profile; ``native``, without any limits, is the default."""
    device._start()
    from . import profiles

    return profiles.name()


def profile_identity() -> dict[str, str]:
    """The active support profile for a record: its name, and the hash of its text where there is one."""
    device._start()
    from . import profiles

    active = profiles.active
    return {"name": profiles.NATIVE} if active is None else {"name": active.name, "sha256": active.sha256}


def use_profile(name: str) -> AbstractContextManager[None]:
    """Context manager: imitate the documented limits of a TorchNeuron release (docs/profiles.md), then go back.

    `name` is a shipped profile, ``native``, or the path of a TOML file. The switch is for the whole process.

    Raises:
        ProfileError: (on entering) there is no such profile, or its file is wrong.
    """
    device._start()
    from . import profiles

    return profiles.use(name)


def profile_rules(name: str | None = None) -> list[dict[str, Any]]:
    """The rules of a support profile (None: the active one) as plain values, with source and date; ``native`` has none.

    Raises:
        ProfileError: there is no such profile, or its file is wrong.
    """
    device._start()
    from . import profiles

    chosen = profiles.active if name is None else profiles.load(name)
    return [] if chosen is None else [rule.model_dump(mode="json") for rule in chosen.rules]


def support_of(
    operator: str,
    input_dtypes: Iterable[str] = (),
    output_dtypes: Iterable[str] = (),
    *,
    contiguous: bool = True,
    mode: Literal["eager", "compile"] = "eager",
    profile: str | None = None,
) -> OperatorSupport:
    """What the device would do with calls of ``aten::name.overload`` on tensors like these, without calling it.

    Conditions of a profile's rules are decided from the dtypes of inputs and results, by name, and whether all inputs are
    contiguous. `profile` None is the active one. What depends on sizes or values cannot be told in advance.

    Raises:
        ProfileError: there is no such profile, or its file is wrong.
    """
    device._start()
    from . import support

    return support.support_of(operator, input_dtypes, output_dtypes, contiguous=contiguous, mode=mode, profile=profile)


def count_programs() -> AbstractContextManager[list[dict[str, Any]]]:
    """Context manager: count the programs that run inside, and what each costs. The list is filled when it closes.

    One row for each program and phase: ``name``, ``phase``, ``calls``; of one call ``flops``, ``transcendentals`` and
    ``bytes_accessed`` as XLA analyses the executable, ``argument_bytes``, ``output_bytes``, ``temp_bytes``; from the traced
    program ``matrix_flops`` (by dtype, two a multiply-add), ``least_bytes`` (that must be read and written) and ``unseen``
    (operations without a figure); ``operators`` of a fused program, by name. Nothing is timed. Programs made inside are not
    counted, so run the same step once before.
    """
    device._start()
    from . import costs

    return costs.counted()


def get_executed_ops() -> list[str]:
    """Distinct operators that ran on the device since the last :func:`clear_op_tracking`, as ``aten::name.overload``."""
    return events.names("execute")


def get_fallback_ops() -> list[str]:
    """Distinct operators that ran on the CPU instead, as ``aten::name.overload``."""
    return events.names("fallback")


def clear_op_tracking() -> None:
    """Forget which operators were executed and which fell back."""
    events.clear("execute", "fallback")


def compile_report() -> dict[str, list[Any]]:
    """What became of functions under ``torch.compile(backend="neuron")`` in this process, as plain values.

    ``graphs``: each with the function that it begins in, its operators, Dynamo's compile id. ``breaks``: where capture
    stopped, PyTorch's reason and what it saw there, the line, how often; ``skipped`` means that the whole function runs as
    written. ``recompiles``: function, and the guard that did not hold, with the old and the new value. ``limits``: functions
    that met Dynamo's recompile limit, with the calls that ran eager since. ``skipped``: functions that cannot be compiled,
    and why; ``ran_eager`` is None where calls cannot be counted. ``splits``: graphs that were captured and are not one
    program: the operators that run outside (name, reason, line), and the number of programs, 0 where it runs operator by
    operator. ``unseen``: what this version of PyTorch does not show.
    """
    module = _compile_mode()
    return module.breaks.report.rows()


def reset_compile_report() -> None:
    """Forget what :func:`compile_report` has told so far."""
    _compile_mode().breaks.report.clear()


def operators_between_graphs() -> AbstractContextManager[list[dict[str, Any]]]:
    """Context manager: count the operators that run between two compiled graphs, or before the first and after the last.

    The list is filled when it closes: one row for each pair of graphs that followed each other, ``after``, ``before``
    (names; "" for none) and ``operators`` (name -> calls; ``transfer ...`` for what moves between host and device). Operators
    on the CPU's own tensors are not the device's.
    """
    return _compile_mode().breaks.between_graphs()


def get_dynamo_metrics() -> list[Any]:
    """One record for each program that ``torch.compile`` made, once the device has finished: name, operators, and the
    microseconds that its stages took (TorchNeuron's fields).
    """
    device.synchronize()
    return list(_compile_mode().metrics.records)


def reset_dynamo_metrics() -> None:
    """Forget the records of :func:`get_dynamo_metrics`."""
    _compile_mode().metrics.records.clear()


def _compile_mode() -> Any:
    device._start()
    from .modes import compile

    return compile
