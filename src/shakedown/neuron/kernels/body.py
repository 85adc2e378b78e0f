"""The function of an operator as a program on arrays: traced on fake tensors, made functional, lowered node by node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .. import profiles
from ..buffer import DEVICE
from ..dtypes import to_torch
from ..errors import KernelError, LoweringError
from ..program import Builder, Program, Ref

if TYPE_CHECKING:
    from .lowered import BodyLowering


@dataclass(frozen=True)
class Slot:
    """Where array number `index` stands among the arguments."""

    index: int


@dataclass(frozen=True)
class Call:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    key: str

    def given(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """(args, kwargs) with `values` in the slots."""
        return [_filled(a, values) for a in self.args], {n: _filled(a, values) for n, a in self.kwargs.items()}


def _filled(tree: Any, values: Sequence[Any]) -> Any:
    if isinstance(tree, Slot):
        return values[tree.index]
    return [_filled(t, values) for t in tree] if isinstance(tree, list) else tree


def flattened(args: Sequence[Any], kwargs: dict[str, Any], name: str) -> tuple[list[Any], Call]:
    """The arrays of a call of the operator `name`, and the call with slots in their place.

    Raises:
        LoweringError: a number is not known when the program is made.
    """
    arrays: list[Any] = []

    def slot(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [slot(v) for v in value]
        if not hasattr(value, "aval") and not hasattr(value, "__jax_array__") and not hasattr(value, "weak_type"):
            return value
        if getattr(value, "weak_type", False) and value.ndim == 0:
            raise LoweringError(f"{name} takes numbers as constants, and one is only known when the program runs")
        arrays.append(value)
        return Slot(len(arrays) - 1)

    call_args, call_kwargs = tuple(map(slot, args)), {n: slot(v) for n, v in kwargs.items()}
    return arrays, Call(call_args, call_kwargs, repr((call_args, sorted(call_kwargs.items()))))


def leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in leaves(v)] if isinstance(value, (list, tuple)) else []


def traced(lowering: BodyLowering, call: Call, arrays: Sequence[Any]) -> Program:
    """The program of ``lowering.body`` for `call`: arrays in; what the operator returns, then what it writes, out.

    Raises:
        LoweringError: an operator within it cannot be part of a program.
        KernelError: a kernel does not accept its arguments.
    """
    from ..graph import GraphLowering

    slots = _written(lowering, call)
    module = _graph(lowering, call, [(tuple(a.shape), to_torch(a.dtype)) for a in arrays], slots)
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.as_strided.default and node.args[0].op == "placeholder":
            raise LoweringError(f"{lowering.name}: as_strided of an argument, whose strides are not part of a program")
    builder = Builder(lowering.name.replace("::", "."), profiles.active)
    parameters = [builder.parameter("number") for _ in arrays]
    try:
        results = GraphLowering(builder, None, profiles.active).run(module.graph, parameters)
    except LoweringError as error:
        raise LoweringError(f"in {lowering.name}: {error.reason}") from error
    if not all(isinstance(r, Ref) for r in results):
        raise LoweringError(f"{lowering.name} returns what is no tensor")
    return builder.finish(list(results))


def _written(lowering: BodyLowering, call: Call) -> list[int]:
    """Numbers of the arrays that the operator writes, in its schema's order."""
    found: list[int] = []

    def note(tree: Any) -> None:
        if isinstance(tree, Slot):
            found.append(tree.index)
        elif isinstance(tree, list):
            for item in tree:
                note(item)

    given = {**dict(zip(lowering.parameters, call.args)), **call.kwargs}
    for name in lowering.written:
        note(given.get(name))
    return found


def _name_of(lowering: BodyLowering, call: Call, number: int) -> str:
    """The parameter that array `number` was given for, in quotes."""
    given = {**dict(zip(lowering.parameters, call.args)), **call.kwargs}
    return next((repr(n) for n, v in given.items() if repr(Slot(number)) in repr(v)), "an argument")


def _graph(
    lowering: BodyLowering, call: Call, kinds: Sequence[tuple[tuple[int, ...], torch.dtype]], written: Sequence[int]
) -> torch.fx.GraphModule:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch._subclasses.functional_tensor import dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from ..lowering import registry

    body = lowering.body
    assert body is not None

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        args, kwargs = call.given(tensors)
        before = [t._version for t in tensors]
        returned = leaves(body(*args, **kwargs))
        for number, tensor in enumerate(tensors):
            if tensor._version != before[number] and number not in written:  # the program would not write it
                raise KernelError(
                    f"{lowering.name} writes to {_name_of(lowering, call, number)}, which mutates_args does not name"
                )
        return [*returned, *(tensors[i] for i in written)]

    functional = dispatch_functionalize(run)
    decompositions = registry.decomposition_table()
    if profiles.active is not None:
        decompositions = profiles.active.kept_whole(decompositions)
    with _disable_current_modes(), torch.no_grad():
        mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True, allow_non_fake_inputs=True)
        with mode:
            fakes = [torch.empty(shape, dtype=dtype, device=DEVICE) for shape, dtype in kinds]
            module = make_fx(
                lambda *flat: functional(*flat),
                decomposition_table=decompositions,
                tracing_mode="real",
                _allow_non_fake_inputs=True,
            )(*fakes)
    module.graph.eliminate_dead_code()
    return module
