"""From one operator call to one program: how its arguments are keyed, what it writes, and what its outputs look like.

Output sizes, strides, dtypes, promotion and argument errors come from running the operator itself once on ``meta``
tensors. The key that finds a plan again is built in :mod:`.dispatch` from the same walk over the arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeAlias

import torch

from . import events, runtime
from .buffer import Template, storage_nbytes, template
from .errors import LoweringError
from .lowering import registry
from .program import Builder, Program, Ref, map_refs
from .transfer import adopt, is_dense
from .views import View

OpOverload: TypeAlias = torch._ops.OpOverload


class Role(IntEnum):
    """What an argument contributes to a plan."""

    STATIC = 0  # part of the key as it is
    TENSOR = 1  # view in the key, buffer as an input; a Python number here becomes an input keyed by its type
    TENSORS = 2
    NUMBER = 3  # an input, keyed by its type alone
    NUMBERS = 4
    GENERATOR = 5


_ROLES = (
    (re.compile(r"^(Optional\[)?Tensor\]?$"), Role.TENSOR),
    (re.compile(r"^(Optional\[)?List\[(Optional\[)?Tensor\]+$"), Role.TENSORS),
    (re.compile(r"^(Optional\[)?(number|float)\]?$"), Role.NUMBER),
    (re.compile(r"^(Optional\[)?List\[(number|float)\]+$"), Role.NUMBERS),
    (re.compile(r"^(Optional\[)?Generator\]?$"), Role.GENERATOR),
)


def _role(argument: Any) -> Role:
    text = str(argument.type)
    return next((role for pattern, role in _ROLES if pattern.match(text)), Role.STATIC)


def qualified_name(op: OpOverload) -> str:
    """``aten::add.Tensor``; the default overload has no suffix (``aten::linear``), as in PyTorch's schemas."""
    overload = op._schema.overload_name
    return f"{op._schema.name}.{overload}" if overload else op._schema.name


class Operator:
    """What all calls of one overload share: its schema read once, its lowering, and its plans."""

    __slots__ = (
        "decomposition",
        "functional",
        "kwarg_roles",
        "lowering",
        "name",
        "op",
        "plans",
        "random",
        "roles",
        "specialised",
        "tally",
        "written",
    )

    def __init__(self, op: OpOverload) -> None:
        self.op = op
        self.name = qualified_name(op)
        self.functional = registry.functional_of(op)
        found = registry.lowering_of(op)
        if found is None and self.functional is not None:
            found = registry.lowering_of(self.functional)
        self.lowering = found
        self.decomposition = None
        if found is None and self.functional is not None:
            self.decomposition = registry.decomposition_of(self.functional)
        self.random = found is not None and found.random
        # Number arguments become inputs only under a lowering: tracing a decomposition turns them into constants.
        self.specialised: dict[str, Callable[[Any], bool]] = dict(found.static) if found else {}
        roles = {}
        for argument in op._schema.arguments:
            role = _role(argument)
            if found is None and role in (Role.NUMBER, Role.NUMBERS):
                role = Role.STATIC
            roles[argument.name] = role
        self.roles = tuple((roles[a.name], self.specialised.get(a.name)) for a in op._schema.arguments)
        self.kwarg_roles = {a.name: (roles[a.name], self.specialised.get(a.name)) for a in op._schema.arguments}
        silent = found.mutates if found is not None and found.op is op else ()
        self.written = tuple(
            a.name
            for a in op._schema.arguments
            if (a.alias_info is not None and a.alias_info.is_write) or a.name in silent
        )
        self.plans: dict[Any, Any] = {}
        self.tally = events.tally(self.name)


class Plan:
    """A compiled operator call: ``run(*inputs)`` gives new buffers, ``finish`` puts them where they belong.

    ``single`` is the template of the result when the call writes nothing and returns one tensor: the common case, which
    the dispatcher handles without ``finish``.
    """

    __slots__ = ("finish", "program", "run", "single")

    def __init__(
        self,
        program: Program,
        run: Callable[..., Any],
        finish: Callable[[tuple[Any, ...], dict[str, Any], list[Any]], Any],
        single: Template | None,
    ) -> None:
        self.program, self.run, self.finish, self.single = program, run, finish, single


class FallbackPlan:
    """The decision that calls of this key run on the CPU, with the reason."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


# --- arguments ----------------------------------------------------------------------------------------------------------


class _Call:
    """One call's arguments as program parameters (`template`, with Refs) and as meta tensors (`meta`)."""

    def __init__(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.operator = operator
        self.kinds: list[Any] = []  # parameter kinds, in the order in which the dispatcher collects inputs
        self.tensors: dict[int, torch.Tensor] = {}  # parameter number -> tensor
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
        if operator.random:
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
        return (
            [values[n] for n in self.positional],
            {n: v for n, v in values.items() if n not in self.positional},
        )


def _run_meta(operator: Operator, call: _Call) -> Any:
    args, kwargs = call.split(call.meta)
    if "pin_memory" in kwargs:
        kwargs["pin_memory"] = None
    if "device" in operator.kwarg_roles and kwargs.get("device") is None and not call.tensors:
        kwargs["device"] = torch.device("meta")
    return operator.op(*args, **kwargs)


# --- building -----------------------------------------------------------------------------------------------------------


def _flatten(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [t for r in result for t in _flatten(r)]
    return []


def build(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
    """The plan of one call.

    Raises:
        LoweringError: the call has no program; the reason says why.
        Exception: whatever PyTorch raises for these arguments on meta tensors.
    """
    if operator.lowering is None and operator.decomposition is None:
        raise LoweringError("no lowering")
    call = _Call(operator, args, kwargs)
    before = {i: tuple(call_meta.shape) for i, call_meta in _metas(call)}
    outs = _run_meta(operator, call)

    _leave_overlaps_to_the_cpu(call, _written_parameters(operator, call))

    builder = Builder(operator.name.replace("::", "."))
    for kind in call.kinds:
        builder.parameter(kind)
    writes = _written_parameters(operator, call)
    metas = dict(_metas(call))
    reads: dict[int, Ref] = {}

    def logical(ref: Ref) -> Ref:
        if ref.index not in call.tensors:
            return ref
        if ref.index not in reads:
            reads[ref.index] = builder.read(ref, View.of(call.tensors[ref.index]))
        return reads[ref.index]

    outs_only = {a.name for a in operator.op._schema.arguments if a.is_out}
    given = {n: map_refs(v, logical) for n, v in call.template.items() if n not in outs_only}
    fresh = [t for t in _flatten(outs) if not _is_written(t, [metas[i] for i in writes])]
    if writes and fresh and not (operator.lowering is not None and operator.lowering.op is operator.op):
        raise LoweringError("the functional form does not tell returns from writes")
    # A lowering gives the returns first, then the new values of what it writes; a functional form gives the latter as returns.
    expected = tuple(View.of(t) for t in (*fresh, *(metas[i] for i in writes)))
    values = _call_values(builder, operator, call, given, expected)

    results: list[Ref] = []
    stores: list[tuple[Callable[..., Any], Template | None]] = []
    latest: dict[int, Ref] = {}
    for position, index in enumerate(writes):
        value = values[len(fresh) + position]
        tensor, meta = call.tensors[index], metas[index]
        access = _accessor(operator, args, kwargs, tensor)
        if tuple(meta.shape) != before[index]:
            resized = View(meta.dtype, tuple(meta.shape), tuple(meta.stride()))
            results.append(builder.pack(value, resized))
            stores.append((access, template(resized.dtype, resized.size, resized.stride)))
            continue
        storage = id(tensor.untyped_storage())
        base = latest.get(storage, Ref(index))
        latest[storage] = builder.write(base, View.of(tensor), value)
        results.append(latest[storage])
        stores.append((access, None))
    if len(latest) < sum(1 for _, resize in stores if resize is None):
        # Several written tensors share a storage: all of them get the buffer after the last write.
        shared = [i for i in writes if tuple(metas[i].shape) == before[i]]
        final = iter([latest[id(call.tensors[i].untyped_storage())] for i in shared])
        results = [r if s[1] is not None else next(final) for r, s in zip(results, stores)]
    templates = []
    for meta, value in zip(fresh, values):
        size, stride = tuple(meta.shape), tuple(meta.stride())
        results.append(builder.pack(value, View(meta.dtype, size, stride)))
        templates.append(template(meta.dtype, size, stride))
    if not results:
        raise LoweringError("writes nothing and returns no tensor")
    program = builder.finish(results)
    single = templates[0] if isinstance(outs, torch.Tensor) and not stores else None
    assemble = _assembler(operator, call, outs, fresh, metas, args, kwargs)
    return Plan(
        program, runtime.compile(program, program.name, single=True), _finisher(stores, templates, assemble), single
    )


def _metas(call: _Call) -> list[tuple[int, torch.Tensor]]:
    found: list[tuple[int, torch.Tensor]] = []

    def walk(ref: Any, meta: Any) -> None:
        if isinstance(ref, Ref) and isinstance(meta, torch.Tensor) and ref.index in call.tensors:
            found.append((ref.index, meta))
        elif isinstance(ref, list) and isinstance(meta, (list, tuple)):
            for r, m in zip(ref, meta):
                walk(r, m)

    for name, ref in call.template.items():
        walk(ref, call.meta[name])
    return found


def _written_parameters(operator: Operator, call: _Call) -> list[int]:
    """Numbers of the buffer parameters that the operator writes, in schema order."""
    order = [a.name for a in operator.op._schema.arguments if a.name in operator.written]
    found: list[int] = []
    for name in order:
        map_refs(call.template.get(name), lambda r: found.append(r.index) if r.index in call.tensors else None)
    return found


def _leave_overlaps_to_the_cpu(call: _Call, writes: list[int]) -> None:
    """Refuse writes into memory that the call sees twice: PyTorch forbids most, and its CPU kernels know which.

    (``meta`` kernels skip the check, which looks at addresses.)
    """
    for index in writes:
        tensor = call.tensors[index]
        if any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride())):
            raise LoweringError("the written tensor overlaps itself")
        first, last = _extent(tensor)
        for other_index, other in call.tensors.items():
            if other_index == index or other is tensor or other.untyped_storage() is not tensor.untyped_storage():
                continue
            same = View.of(other) == View.of(tensor)
            a, b = _extent(other)
            if not same and a <= last and first <= b and is_dense(tensor) and is_dense(other):
                raise LoweringError("the written tensor overlaps another argument")


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First and last byte of the storage that `tensor` touches."""
    start = tensor.storage_offset() * tensor.dtype.itemsize
    return start, start + storage_nbytes(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())) - 1


def _is_written(tensor: torch.Tensor, written: list[torch.Tensor]) -> bool:
    return any(tensor is w for w in written)


def _call_values(
    builder: Builder, operator: Operator, call: _Call, given: dict[str, Any], expected: tuple[View, ...]
) -> list[Ref]:
    """Add the computation to the program; one Ref per expected tensor."""
    positional, keywords = call.split({n: given.get(n) for n in call.template if n in given})
    positional = [given[n] for n in call.positional if n in given]
    if operator.lowering is not None:
        keywords = {n: v for n, v in keywords.items() if operator.kwarg_roles[n][0] is not Role.GENERATOR}
        names = [n for n in call.positional if n in given]
        positional = [v for n, v in zip(names, positional) if operator.kwarg_roles[n][0] is not Role.GENERATOR]
        if call.key is not None:
            keywords["key"] = call.key
        if operator.lowering.takes_outputs:
            keywords["outputs"] = expected
        name = str(operator.lowering.op)
        whole = builder.call(name, operator.lowering.fn, positional, keywords, expected)
        return [builder.get(whole, i) for i in range(len(expected))]
    from .graph import inline_decomposition

    return inline_decomposition(builder, operator, call.split({n: call.meta[n] for n in given}), positional, keywords)


def _accessor(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], tensor: torch.Tensor
) -> Callable[..., Any]:
    """How to find the argument `tensor` again in another call's (args, kwargs)."""
    for i, value in enumerate(args):
        if value is tensor:
            return lambda a, k, i=i: a[i]
        if isinstance(value, (list, tuple)):
            for j, item in enumerate(value):
                if item is tensor:
                    return lambda a, k, i=i, j=j: a[i][j]
    for name, value in kwargs.items():
        if value is tensor:
            return lambda a, k, n=name: k[n]
        if isinstance(value, (list, tuple)):
            for j, item in enumerate(value):
                if item is tensor:
                    return lambda a, k, n=name, j=j: k[n][j]
    raise LoweringError(f"{operator.name}: a written tensor is not among the arguments")


def _assembler(
    operator: Operator,
    call: _Call,
    outs: Any,
    fresh: list[torch.Tensor],
    metas: dict[int, torch.Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Callable[[tuple[Any, ...], dict[str, Any], list[torch.Tensor]], Any]:
    """Builds the operator's return value out of its arguments, its fresh tensors and constants."""

    def item(value: Any) -> Callable[..., Any]:
        if isinstance(value, torch.Tensor):
            for n, meta in enumerate(fresh):
                if meta is value:
                    return lambda a, k, new, n=n: new[n]
            for index, meta in metas.items():
                if meta is value:
                    access = _accessor(operator, args, kwargs, call.tensors[index])
                    return lambda a, k, new, access=access: access(a, k)
            raise LoweringError(f"{operator.name}: a returned tensor is neither new nor an argument")
        if isinstance(value, (list, tuple)):
            parts = [item(v) for v in value]
            kind = list if isinstance(value, list) else tuple
            return lambda a, k, new: kind(p(a, k, new) for p in parts)
        return lambda a, k, new: value

    return item(outs)


def _finisher(
    stores: list[tuple[Callable[..., Any], Template | None]], templates: list[Template], assemble: Callable[..., Any]
) -> Callable[[tuple[Any, ...], dict[str, Any], list[Any]], Any]:
    def finish(args: tuple[Any, ...], kwargs: dict[str, Any], buffers: list[Any]) -> Any:
        for (access, resize), buffer in zip(stores, buffers):
            tensor = access(args, kwargs)
            if resize is None:
                tensor.untyped_storage().buffer = buffer
            else:
                adopt(tensor, resize.new(buffer))
        new = [t.new(b) for t, b in zip(templates, buffers[len(stores) :])]
        return assemble(args, kwargs, new)

    return finish
