"""One operator call on the CPU, in float64 and on the device, compared under its contract."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ..evidence.probes import CallProbe, Comparison, OrderDependent, ProbeOutcome
from ..judge import contracts, legal
from ..requirements import Numerics
from . import neighbours
from .calls import Call, describe, kept, stretch
from .neighbours import Arguments

_CHEAP_TRUTH = 50_000_000  # elements; a larger call would need gigabytes in float64


class Bench:
    """Where calls are made: a device, and plain or through ``torch.compile``."""

    def __init__(self, device: Any, backend: str | None, wait: Callable[[], None], demand: Numerics) -> None:
        self.device, self.backend, self.wait, self.demand = torch.device(device), backend, wait, demand

    def probe(
        self, call: Call, variation: str, forms: list[Arguments], before_device: Callable[[], None] = lambda: None
    ) -> CallProbe:
        """Run one variation on both sides. Raises nothing that the operator raises: errors are results.

        `before_device` is called between the CPU's turn and the device's, so that whoever ends the process is known.
        """
        arguments, cpu, cpu_error = _first_accepted(call.operator, forms)
        truth = None if cpu is None else _truth(call.operator, arguments)
        doubt = "" if cpu is None else self._doubt(call, variation, arguments, cpu, truth)
        if doubt:
            return self._result(call, variation, arguments, outcome="untested", reason=doubt)
        before_device()
        start = time.perf_counter()
        device, device_error = self._attempt(call.operator, arguments)
        seconds = time.perf_counter() - start
        outcome: ProbeOutcome = "returned"
        if cpu_error and device_error:
            outcome = "both-raised"
        elif device_error:
            outcome = "device-raised"
        elif cpu_error:
            outcome = "cpu-raised"
        compared: list[Comparison] = []
        if cpu is not None and device is not None:
            compared = self._compared(call, arguments, cpu, device, truth)
        return self._result(
            call,
            variation,
            arguments,
            outcome=outcome,
            cpu_error=cpu_error,
            device_error=device_error,
            comparisons=compared,
            seconds=seconds,
        )

    @staticmethod
    def _result(call: Call, variation: str, arguments: Arguments, **found: Any) -> CallProbe:
        return CallProbe(
            operator=call.name,
            arguments=describe(*arguments)[:300],
            phase=call.phase,
            line=call.line,
            calls=call.calls,
            tags=call.tags,
            variation=variation,
            **found,
        )

    def _doubt(
        self,
        call: Call,
        variation: str,
        arguments: Arguments,
        cpu: list[Tensor | None],
        truth: list[Tensor | None] | None,
    ) -> str:
        """Why the CPU's answer is no yardstick. Below autograd some of its kernels read expanded memory as if it were
        contiguous, since what calls them sees to that; their answer is then compared with that for contiguous arguments.
        """
        if variation not in neighbours.LAYOUTS:
            return ""
        straight = neighbours.changed(arguments, lambda value: value.clone(memory_format=torch.contiguous_format))
        again = perform(call.operator, straight, None)
        wrong = [c for c in self._compared(call, arguments, again, cpu, truth) if c.margin > 1]
        return (
            f"PyTorch's own CPU kernel gives another answer for this order in memory: {wrong[0].text}" if wrong else ""
        )

    def _attempt(self, operator: Any, arguments: Arguments) -> tuple[list[Tensor | None] | None, str]:
        try:
            results = perform(operator, self._moved(arguments), self.backend)
            self.wait()
            return [None if value is None else value.cpu() for value in results], ""
        except Exception as error:  # whatever a backend raises is a result
            return None, said(error)

    def _moved(self, arguments: Arguments) -> Arguments:
        """Arguments on the device, strides and offsets as they are."""

        def move(value: Tensor) -> Tensor:
            if not value.numel() or (value.is_contiguous() and not value.storage_offset()):
                return value.to(self.device, copy=True)  # it may be written to
            offset = value.storage_offset()
            whole = torch.cat([stretch(value).new_zeros(offset), stretch(value)]).to(self.device)
            return whole.as_strided(value.shape, value.stride(), offset)

        args, kwargs = neighbours.changed(arguments, move)
        args, kwargs = tree_map(lambda leaf: self.device if isinstance(leaf, torch.device) else leaf, (args, kwargs))
        return args, kwargs

    def _compared(
        self,
        call: Call,
        arguments: Arguments,
        cpu: list[Tensor | None],
        device: list[Tensor | None],
        truth: list[Tensor | None] | None,
    ) -> list[Comparison]:
        shapes = [tuple(value.shape) for value in neighbours.tensors_of(arguments)]
        named = by_name(call.operator, arguments)
        compared = []
        for index, (mine, theirs) in enumerate(zip(cpu, device, strict=False)):
            if mine is None or theirs is None:
                continue
            dtype = str(mine.dtype).removeprefix("torch.")
            view = bool(getattr(call.operator, "is_view", False))
            promise = contracts.promise(call.name, call.tags, dtype, view, index)
            promise = legal.refined(call.name, named, promise, mine.is_floating_point())
            exact = truth[index] if truth is not None and index < len(truth) else None
            start = named.get("self")
            result = contracts.Result(
                index,
                dtype,
                array(mine),
                array(theirs),
                None if exact is None else array(exact),
                start if isinstance(start, np.ndarray) else None,
            )
            comparison = contracts.compare(result, promise, call.name, shapes, self.demand)
            if mine.dtype != theirs.dtype and not (index and _wider(theirs.dtype, mine.dtype)):
                text = f"dtype {str(theirs.dtype).removeprefix('torch.')}, not {dtype}"
                comparison = comparison.model_copy(update={"margin": 1e12, "text": text})
            elif promise.contract == "order-dependent" and mine.shape == theirs.shape:
                sides = [[array(value) for value in side if value is not None] for side in (cpu, device)]
                wrong = legal.illegal(call.name, named, index, sides[0], sides[1])
                comparison = contracts.with_illegal(comparison, wrong)
            compared.append(comparison)
        return compared


def order_dependent(call: Call) -> OrderDependent | None:
    """Whether the workload's own call leaves its answer open, with the line to look at."""
    why = legal.order_matters(call.name, by_name(call.operator, (call.args, call.kwargs)))
    if not why and contracts.promise(call.name, call.tags, "float32").contract == "random":
        why = "draws random numbers"
    return OrderDependent(operator=call.name, line=call.line, phase=call.phase, why=why) if why else None


@torch.no_grad()
def perform(operator: Any, arguments: Arguments, backend: str | None) -> list[Tensor | None]:
    """Call `operator`; give all that it returns, then what it wrote into its arguments and does not return."""
    args, kwargs = arguments
    if backend is None:
        result = operator(*args, **kwargs)
    else:
        torch._dynamo.reset()  # every probe is the same code object to Dynamo, whose limit would soon be reached
        leaves, shape = torch.utils._pytree.tree_flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

        def call(*inputs: Tensor) -> Any:
            filled = list(leaves)
            for place, value in zip(places, inputs):
                filled[place] = value
            inner_args, inner_kwargs = torch.utils._pytree.tree_unflatten(filled, shape)
            return operator(*inner_args, **inner_kwargs)

        result = torch.compile(call, backend=backend, dynamic=False)(*(leaves[place] for place in places))
    returned = [_tensor(leaf) for leaf in tree_leaves(result, is_leaf=lambda leaf: leaf is None)]
    if any(value.alias_info is not None and value.alias_info.is_write for value in operator._schema.returns):
        return returned  # what it writes is what it returns
    named, written = by_name(operator, arguments, convert=False), []
    for argument in operator._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += [leaf for leaf in tree_leaves(named.get(argument.name)) if isinstance(leaf, Tensor)]
    return returned + written


def _wider(one: torch.dtype, other: torch.dtype) -> bool:
    """Whether `one` is the wider of two floating dtypes: statistics that are kept for the backward pass may be."""
    return one.is_floating_point and other.is_floating_point and one.itemsize > other.itemsize


def _tensor(leaf: Any) -> Tensor | None:
    if leaf is None or isinstance(leaf, Tensor):
        return leaf
    return torch.tensor(leaf) if isinstance(leaf, (bool, int, float, complex)) else None


def _first_accepted(operator: Any, forms: list[Arguments]) -> tuple[Arguments, list[Tensor | None] | None, str]:
    """The first form that the CPU computes; where it computes none, the first one and the CPU's error."""
    first = ""
    for form in forms:
        try:
            return form, perform(operator, neighbours.changed(form, kept), None), ""
        except Exception as error:  # the CPU's refusal is what the device is compared with
            first = first or said(error)
    return forms[0], None, first


def _truth(operator: Any, arguments: Arguments) -> list[Tensor | None] | None:
    """The call in float64, None where PyTorch has none or it would not fit."""
    if sum(value.numel() for value in neighbours.tensors_of(arguments)) > _CHEAP_TRUTH:
        return None
    try:
        return perform(operator, neighbours.in_float64(arguments), None)
    except Exception:  # not every operator has a float64 form; the CPU's own answer then stands in
        return None


def array(value: Tensor) -> np.ndarray:
    """As NumPy, half precisions widened."""
    value = value.detach().cpu()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    if value.dtype in (torch.bfloat16, torch.float16):
        value = value.float()
    return value.resolve_neg().contiguous().numpy()


def by_name(operator: Any, arguments: Arguments, convert: bool = True) -> dict[str, Any]:
    """Arguments by the names of the schema, defaults included."""
    args, kwargs = arguments
    named: dict[str, Any] = {}
    for position, argument in enumerate(operator._schema.arguments):
        if position < len(args):
            named[argument.name] = args[position]
        elif argument.name in kwargs:
            named[argument.name] = kwargs[argument.name]
        elif argument.has_default_value():
            named[argument.name] = argument.default_value
    if convert:
        named = tree_map(lambda leaf: array(leaf) if isinstance(leaf, Tensor) else leaf, named)
    return named


def said(error: BaseException) -> str:
    """``Type: message``, its first two lines: a compiler's error has the cause in the second."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"[:300]
