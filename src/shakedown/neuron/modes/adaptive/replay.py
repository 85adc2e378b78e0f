"""The error of a recorded operator: PyTorch's own, raised by its CPU kernel for the same values, with the place named."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ... import fallback
from ...buffer import template
from ...dtypes import to_torch
from ...plan import Plan
from ...program import Ref, map_refs
from ...transfer import set_storage
from .segment import OperatorFailed, Segment


def error_of(segment: Segment, failure: OperatorFailed, line: str | None) -> Exception:
    """What to raise for `failure`; `line` is where the operator was recorded, when that is known."""
    plan = segment.entries[failure.index][0]
    where = f"(in {plan.operator.name}, recorded by adaptive eager{f' at {line}' if line else ''})"
    if failure.demand is None:
        return RuntimeError(f"an operator takes a tensor that has no value: {failure.cause} {where}")
    try:
        args, kwargs = _arguments(plan, segment.inputs_of(failure.index))
        fallback.run(plan.operator, args, kwargs, failure.demand.message)
    except (IndexError, ValueError, RuntimeError) as error:
        try:
            return type(error)(f"{error} {where}")
        except TypeError:  # a class with a constructor of its own
            error.add_note(where)
            return error
    # The CPU kernel accepts what the lowering does not.
    return failure.demand.error(f"{failure.demand.message} {where}")


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
