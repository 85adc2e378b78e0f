"""The operators of one training step, found with tensors that have sizes and no values.

The model is built on the ``meta`` device and its tensors are given the target's *dispatch keys* without its storage
(PyTorch's fake tensors), so that the dispatcher decomposes, fuses and falls through exactly as it does for real tensors of
the target: ``linear`` stays one operator where the device has a kernel for it, attention takes the device's own form, and
optimizers choose their list (``foreach``) form. No kernel runs and no memory of the device is touched.

A trace follows the shapes. Where a shape or a branch depends on values (``nonzero``, a boolean index, ``.item()``) it goes on
with an unknown size as long as PyTorch can, and says where it had to stop. A floating number that the host reads (a loss that is
printed) is taken as 1.0, so branches on it are followed one way only; the call says ``host_read``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ..evidence import Frozen

if TYPE_CHECKING:
    from ..workload import Case, Workload

SCHEMA = "shakedown.meta-trace/1"
Phase = Literal["forward", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")


class Call(Frozen):
    """Equal calls of one operator in one phase.

    ``operator`` is the full name, ``aten::add.Tensor``; operators of other namespaces are somebody's own (a kernel).
    ``input_dtypes`` and ``output_dtypes`` are the distinct dtypes of tensors, sorted; ``contiguous`` is False where an input
    is not. ``data_dependent``: the sizes of the result depend on values. ``host_read``: the host waits for a value
    (``.item()``, ``.cpu()``). ``lines`` are ``file:line`` in the workload's own folder, without any for what autograd or an
    optimizer calls.
    """

    phase: Phase
    operator: str
    count: int
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    contiguous: bool = True
    data_dependent: bool = False
    host_read: bool = False
    lines: tuple[str, ...] = ()

    @property
    def own(self) -> bool:
        """Whether the operator is not PyTorch's: a kernel or an extension that the workload brings."""
        return is_own(self.operator)


class Input(Frozen):
    """One tensor of the batch."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Stop(Frozen):
    """Where the trace of a phase ended early, and why. ``operator`` is the one that was being called, if it was one."""

    phase: Phase | Literal["build"]
    kind: Literal["data-dependent", "no shape function", "error"]
    operator: str | None
    line: str | None
    why: str


class Traced(Frozen):
    """Operators of one training step of one case in one dtype. ``calls`` are in order of first appearance.

    ``device`` is the device whose dispatch was followed; nothing ran on it. ``built`` says how the model was made.
    ``noncontiguous`` names the inputs (batch entries and parameters) whose memory order is not their shape's.
    """

    schema_version: str = SCHEMA
    workload: str
    workload_sha256: str
    case: str
    dtype: str
    device: str
    torch: str
    built: str
    inputs: list[Input]
    calls: list[Call]
    stops: list[Stop]
    noncontiguous: list[str]

    @property
    def complete(self) -> bool:
        return not self.stops

    def phase(self, name: str) -> list[Call]:
        """The calls of one phase."""
        return [call for call in self.calls if call.phase == name]

    def operators(self) -> list[str]:
        """Distinct names, in order of first appearance."""
        return list(dict.fromkeys(call.operator for call in self.calls))


def is_own(operator: str) -> bool:
    """Whether an operator is not one that PyTorch brings."""
    return not operator.startswith(("aten::", "prim::", "prims::", "quantized::", "_c10d_functional::"))


def trace(workload: Workload, case: Case, dtype: str, device: str = "neuron") -> Traced:
    """Follow one training step of `case` in `dtype`, without values. Global state is put back.

    ``make_batch`` runs on the CPU, since it makes data, not results; ``build_model`` runs under ``meta``, or on the CPU where
    it needs values. `device` may be ``meta`` to follow PyTorch's own decompositions instead of the target's. A workload that
    raises does not raise here: it is a stop.
    """
    from .fakes import Tracing

    return Tracing(workload, case, dtype, device).run()
