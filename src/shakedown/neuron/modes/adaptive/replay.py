"""A recorded operator that fails when it is run: its error, or its results from the CPU.

What only the values show is PyTorch's own error, raised by the CPU kernel for the same values, with the place named. A program
that could not be compiled or run is computed on the CPU, as in plain eager execution, unless a setting forbids it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ... import failures, fallback, runtime
from ...buffer import template
from ...dtypes import to_torch
from ...errors import FallbackRefused, ShakedownError, said_by
from ...places import innermost
from ...plan import Plan
from ...program import Ref, map_refs
from ...transfer import set_storage, to_host
from .segment import OperatorFailed, Segment


def error_of(segment: Segment, failure: OperatorFailed, stack: str | None) -> Exception:
    """What to raise for `failure`; `stack` is where the operator was recorded, when that is known."""
    plan = segment.entries[failure.index][0]
    where = _where(plan, stack)
    if failure.demand is None:
        return RuntimeError(f"an operator takes a tensor that has no value: {failure.cause} {where}")
    args, kwargs = _arguments(plan, segment.inputs_of(failure.index))
    try:
        failures.unmet(plan.operator, args, kwargs, failure.demand.message)
    except FallbackRefused as error:
        return _noted(error, stack)
    except (IndexError, ValueError, RuntimeError) as error:
        return _late(error, where, stack)
    # The CPU kernel accepts what the lowering does not.
    return _late(failure.demand.error(failure.demand.message), where, stack)


def failed_together(name: str, operators: tuple[str, ...], error: Exception) -> Exception:
    """What to raise when a fused program fails that has consumed its inputs, so that nothing can be run again."""
    if isinstance(error, failures.PASSED_ON):
        return error
    shown = ", ".join(operators[:3]) + (f" and {len(operators) - 3} more" if len(operators) > 3 else "")
    return ShakedownError(f"EXECUTION FAILED: adaptive::{name}, a program of {shown}: {said_by(error)}")


def recovered(segment: Segment, index: int, inputs: list[Any], error: Exception, stack: str | None) -> list[Any]:
    """The results of entry `index` on `inputs`, computed on the CPU because its program raised `error`.

    Raises:
        FallbackRefused: a setting forbids it.
        Exception: the CPU kernel's own error, or `error`, where it is one that is to be seen.
    """
    plan = segment.entries[index][0]
    args, kwargs = _arguments(plan, inputs)
    try:
        failures.check(plan.operator, args, kwargs, error, True, stack)
        result = fallback.run(plan.operator, args, kwargs, failures.reason_of(error))
    except (FallbackRefused, torch.OutOfMemoryError) as refused:
        raise _noted(refused, stack) from error
    except Exception as own:
        raise _late(own, _where(plan, stack), stack) from None
    plan.tally.runs -= 1  # it was counted when it was recorded, and is a fallback now
    # The same call with marks for results says where each result belongs, and in which layout it was promised.
    marks = [object() for _ in range(plan.results)]
    twin_args, twin_kwargs = _arguments(plan, inputs)
    promised = plan.layout.new(marks[0]) if plan.layout is not None else plan.place(twin_args, twin_kwargs, marks)
    found: dict[int, Any] = {}
    pairs = zip(failures.tensors_in((twin_args, twin_kwargs, promised)), failures.tensors_in((args, kwargs, result)))
    for wanted, made in pairs:
        found.setdefault(id(wanted.untyped_storage().buffer), _buffer_like(wanted, made))
    return [found[id(mark)] for mark in marks]


def _buffer_like(wanted: torch.Tensor, made: torch.Tensor) -> Any:
    """The buffer of `made` as one of the storage that `wanted` is on."""
    storage = made.untyped_storage()
    if made.stride() == wanted.stride() and storage.nbytes() == wanted.untyped_storage().nbytes():
        return storage.buffer
    host = torch.empty_strided(wanted.shape, wanted.stride(), dtype=wanted.dtype).copy_(to_host(made))
    length = wanted.untyped_storage().nbytes() // wanted.dtype.itemsize
    return runtime.upload(host.as_strided((length,), (1,)))


def _where(plan: Plan, stack: str | None) -> str:
    line = innermost(stack)
    return f"(in {plan.operator.name}, recorded by adaptive eager{f' at {line}' if line else ''})"


def _noted(error: Exception, stack: str | None) -> Exception:
    """`error`, with the lines that led to the call below it in a traceback."""
    if stack is not None:
        error.add_note(f"recorded at {stack}")
    return error


def _late(error: Exception, where: str, stack: str | None) -> Exception:
    """`error` as one that comes after its call: with the place in its text, and a RuntimeError too."""
    try:
        return _noted(_late_kind(type(error))(f"{error} {where}"), stack)
    except TypeError:  # a class with a constructor of its own
        error.add_note(where)
        return _noted(error, stack)


_late_kinds: dict[str, type[Exception]] = {}


def _late_kind(kind: type[Exception]) -> type[Exception]:
    """`kind`, which PyTorch raises for the mistake, that is a RuntimeError as well, as TorchNeuron's late errors are."""
    if issubclass(kind, RuntimeError):
        return kind
    name = f"Late{kind.__name__}"
    if name not in _late_kinds:
        _late_kinds[name] = type(
            name, (kind, RuntimeError), {"__module__": __name__, "__doc__": f"A late {kind.__name__}."}
        )
    return _late_kinds[name]


def _arguments(plan: Plan, inputs: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the call of `plan` that took `inputs`, on tensors of their own."""
    given = plan.given
    storages: dict[int, torch.UntypedStorage] = {}

    def value(ref: Ref) -> Any:
        held = inputs[ref.index]
        if ref.index not in given.views:
            return np.asarray(held).item()
        dtype = to_torch(held.dtype)
        flat = template(dtype, (held.size,), (1,)).new(held)
        storage = storages.setdefault(given.storages[ref.index], flat.untyped_storage())
        view = given.views[ref.index]
        made = template(view.dtype, (0,), (1,)).new(held)
        return set_storage(made, storage, view.offset, view.size, view.stride)

    values = map_refs(given.template, value)
    args = tuple(values[n] for n in given.positional)
    return args, {n: v for n, v in values.items() if n not in given.positional}
