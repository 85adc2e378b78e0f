"""One call's arguments: as parameters of a program, and as meta tensors on which PyTorch itself runs the operator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .errors import LoweringError
from .operators import Operator, Role
from .program import Ref, map_refs
from .views import View


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor stands among a call's arguments: positional (int) or keyword (str), and its place in a list."""

    argument: int | str
    member: int | None = None

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        value = kwargs[self.argument] if isinstance(self.argument, str) else args[self.argument]
        return value if self.member is None else value[self.member]


@dataclass(frozen=True, slots=True)
class Given:
    """A call's arguments without its values: what is needed, beside the values, to make the call again.

    ``template`` has a Ref, the number of a parameter, for each tensor and each number that is an input; ``views`` say how
    tensors lie on their buffers, ``storages`` the first parameter on the same storage, ``positional`` what was given so.
    """

    template: dict[str, Any]
    positional: tuple[str, ...]
    views: dict[int, View]
    storages: dict[int, int]


class Call:
    """One call's arguments as program parameters (`template`, with Refs) and as meta tensors (`meta`)."""

    def __init__(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.operator, self.args, self.kwargs = operator, args, kwargs
        self.kinds: list[Any] = []  # parameter kinds, in the order in which the dispatcher collects inputs
        self.tensors: dict[int, torch.Tensor] = {}  # parameter number -> tensor
        self.positions: dict[int, int] = {}  # parameter number -> place in its list, for members of lists
        self._storages: dict[int, torch.Tensor] = {}
        self.template: dict[str, Any] = {}
        self.meta: dict[str, Any] = {}
        schema = operator.op._schema.arguments
        given = [(a.name, value) for a, value in zip(schema, args)]
        given += list(kwargs.items())
        self.positional = tuple(name for name, _ in given[: len(args)])
        for name, value in given:
            role, specialise = operator.kwarg_roles[name]
            self.template[name], self.meta[name] = self._argument(role, specialise, value)
        if operator.random and (operator.draws is None or operator.draws(args, kwargs)):
            self.key: Ref | None = self._parameter("key")
        else:
            self.key = None

    def _parameter(self, kind: str) -> Ref:
        self.kinds.append(kind)
        return Ref(len(self.kinds) - 1)

    def _argument(self, role: Role, specialise: Callable[[Any], bool] | None, value: Any) -> tuple[Any, Any]:
        if value is None:
            return None, None
        if role is Role.GENERATOR:
            return None, None
        if role is Role.TENSOR:
            return self._tensor(value)
        if role is Role.TENSORS:
            pairs = [(None, None) if v is None else self._tensor(v) for v in value]
            self.positions.update({ref.index: place for place, (ref, _) in enumerate(pairs) if ref is not None})
            return [p[0] for p in pairs], [p[1] for p in pairs]
        if role is Role.NUMBER and not (specialise is not None and specialise(value)):
            return self._parameter("number"), value
        if role is Role.NUMBERS and not (specialise is not None and specialise(value)):
            return [self._parameter("number") for _ in value], value
        if isinstance(value, torch.device):
            return value, torch.device("meta")
        return value, value

    def _tensor(self, value: Any) -> tuple[Any, Any]:
        if not isinstance(value, torch.Tensor):
            return self._parameter("number"), value  # a wrapped number in a tensor's place
        if value.device.type == "cpu":
            return self._parameter("number"), value
        ref = self._parameter("buffer")
        self.tensors[ref.index] = value
        return ref, self._meta_tensor(value)

    def _meta_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        # Tensors that share a storage share their meta storage too, so that PyTorch sees overlapping writes.
        storage = tensor.untyped_storage()
        base = self._storages.get(id(storage))
        if base is None:
            base = torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta")
            self._storages[id(storage)] = base
        meta = torch.empty(0, dtype=tensor.dtype, device="meta")
        return meta.set_(base.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())

    def split(self, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """`values` by name as (args, kwargs), as they were given."""
        args = [values[n] for n in self.positional if n in values]
        return args, {n: v for n, v in values.items() if n not in self.positional}

    def given(self) -> Given:
        """What remains of the call when its tensors are let go."""
        first: dict[int, int] = {}
        storages = {i: first.setdefault(id(t.untyped_storage()), i) for i, t in self.tensors.items()}
        return Given(self.template, self.positional, {i: View.of(t) for i, t in self.tensors.items()}, storages)

    def metas(self) -> dict[int, torch.Tensor]:
        """Parameter number of each device tensor -> its meta twin."""
        found: dict[int, torch.Tensor] = {}
        pairs = [(ref, self.meta[name]) for name, ref in self.template.items()]
        for ref, meta in pairs:  # not a function that calls itself: it would hold the tensors until the next collection
            if isinstance(ref, Ref) and ref.index in self.tensors:
                found[ref.index] = meta
            elif isinstance(ref, list):
                pairs.extend(zip(ref, meta))
        return found

    def written_parameters(self) -> list[int]:
        """Numbers of the buffer parameters that the operator writes, in the schema's order."""
        found: list[int] = []

        def note(ref: Ref) -> None:
            if ref.index in self.tensors:
                found.append(ref.index)

        for name in self.operator.written:
            map_refs(self.template.get(name), note)
        return found

    def place_of(self, tensor: torch.Tensor) -> Place:
        """Where the argument `tensor` stands, to find its counterpart in another call."""
        places: list[tuple[int | str, Any]] = [*enumerate(self.args), *self.kwargs.items()]
        for argument, value in places:
            if value is tensor:
                return Place(argument)
            if isinstance(value, (list, tuple)):
                for member, item in enumerate(value):
                    if item is tensor:
                        return Place(argument, member)
        raise LoweringError(f"{self.operator.name}: a written tensor is not among the arguments")


@contextmanager
def _without_alerts() -> Iterator[None]:
    """Deterministic mode off: some of PyTorch's meta kernels take every tensor for CUDA's, and refuse what is not deterministic
    there (``histc``, ``median``). Here every operator is."""
    if not torch._C._get_deterministic_algorithms():
        yield
        return
    warns = torch._C._get_deterministic_algorithms_warn_only()
    torch._C._set_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(True, warn_only=warns)


@_without_alerts()
def run_meta(operator: Operator, call: Call) -> Any:
    args, kwargs = call.split(call.meta)
    if "pin_memory" in kwargs:
        kwargs["pin_memory"] = None
    if "device" in operator.kwarg_roles and kwargs.get("device") is None and not call.tensors:
        kwargs["device"] = torch.device("meta")
    if not any(a.is_out for a in operator.op._schema.arguments):
        outs, lowering = operator.op(*args, **kwargs), operator.lowering
        if lowering is None or lowering.corrects is None or lowering.op is not operator.op:
            return outs
        return lowering.corrects(call.meta, outs)
    with warnings.catch_warnings():  # each run warns of what it resizes, not only the one that makes the plan
        warnings.filterwarnings("ignore", message="An output with one or more elements was resized")
        outs = operator.op(*args, **kwargs)
    # Some meta kernels fill the outputs but return others.
    given = {tuple(a.alias_info.before_set): a.name for a in operator.op._schema.arguments if a.is_out}
    if isinstance(outs, tuple) and len(given) == len(outs):
        return tuple(call.meta[given[tuple(r.alias_info.before_set)]] for r in operator.op._schema.returns)
    return outs
