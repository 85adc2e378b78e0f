"""Which operator lowers how: one entry per functional overload; in-place and ``out=`` forms follow from the schema.

A lowering is a function with the operator's own signature. Tensors arrive as ``jax.Array``s with the tensor's sizes, numbers
as Python numbers or 0-d traced values, everything else (sizes, dims, flags, dtypes) as PyTorch gives it. It returns what
the operator returns, in at least the operator's precision: the caller rounds to the operator's dtypes and checks sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, wraps
from typing import Any, TypeAlias

import torch

from ..errors import LoweringError

OpOverload: TypeAlias = torch._ops.OpOverload


@dataclass(frozen=True, slots=True)
class Lowering:
    """One operator's lowering.

    ``static``: number arguments that the lowering needs as Python values (they become part of the key), or a predicate
    ``name -> (value -> bool)`` that says which values to specialise on. ``random``: takes a ``key`` (uint32[4]) as its
    last keyword; ``draws``: a predicate of (args, kwargs) that says for which calls (others take no key). ``mutates``:
    arguments written although the schema does not say so; their new values follow the returns. ``takes_outputs``: wants
    the output :class:`~..views.View`\\ s as keyword ``outputs``; ``takes_inputs``: those of the tensor arguments as
    keyword ``inputs``, where values depend on strides. ``graph_only``: of a view, which eager execution leaves to
    PyTorch so that it keeps its aliasing. ``corrects``: a function of (arguments by name, what the meta kernel
    returned), all on meta tensors, that gives the outputs of the CPU kernel where the two kernels differ. ``of_user``: of an
    operator that the user has made for the device (:mod:`..kernels`), which never runs on the CPU instead.
    """

    op: OpOverload
    fn: Callable[..., Any]
    static: dict[str, Callable[[Any], bool]]
    random: bool = False
    mutates: tuple[str, ...] = ()
    takes_outputs: bool = False
    takes_inputs: bool = False
    graph_only: bool = False
    draws: Callable[[Sequence[Any], Mapping[str, Any]], bool] | None = None
    corrects: Callable[[dict[str, Any], Any], Any] | None = None
    of_user: bool = False

    def takes_key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        return self.random and (self.draws is None or self.draws(args, kwargs))


_lowerings: dict[OpOverload, Lowering] = {}
_composites: dict[OpOverload, Callable[..., Any]] = {}
_of_libraries: dict[str, Callable[..., Any]] = {}  # by schema, since the operator may not exist yet
_of_kernels: dict[OpOverload, Lowering] = {}  # of operators that the user makes


def overload(name: str) -> OpOverload:
    """``"add.Tensor"`` -> ``torch.ops.aten.add.Tensor``; a name without a dot means the default overload.

    Raises:
        AttributeError: this PyTorch has no such operator.
    """
    base, _, which = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), which or "default")


def _either(a: Callable[[Any], bool], b: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: a(value) or b(value)


def _refusing(op: OpOverload, fn: Callable[..., Any], refuses: dict[str, Callable[[Any], bool]]) -> Callable[..., Any]:
    names = [a.name for a in op._schema.arguments]

    @wraps(fn)
    def lowering(*args: Any, **kwargs: Any) -> Any:
        for name, value in (*zip(names, args), *kwargs.items()):
            if name in refuses and isinstance(value, (bool, int, float)) and refuses[name](value):
                raise LoweringError(f"{name}={value}")
        return fn(*args, **kwargs)

    return lowering


def lower(
    *names: str,
    static: tuple[str, ...] | dict[str, Callable[[Any], bool]] = (),
    random: bool = False,
    mutates: tuple[str, ...] = (),
    takes_outputs: bool = False,
    takes_inputs: bool = False,
    graph_only: bool = False,
    draws: Callable[[Sequence[Any], Mapping[str, Any]], bool] | None = None,
    corrects: Callable[[dict[str, Any], Any], Any] | None = None,
    refuses: dict[str, Callable[[Any], bool]] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the lowering of the ATen overloads `names`.

    ``refuses``: numbers that the operator does not accept, as a predicate for each argument. Such a call goes to the CPU
    kernel, which says what is wrong. (What depends on tensors or on several arguments is a demand: :mod:`.checks`.)

    Raises:
        ValueError: one of them has a lowering already.
    """
    chosen = dict(static) if isinstance(static, dict) else {name: lambda _: True for name in static}
    for name, refused in (refuses or {}).items():
        chosen[name] = _either(chosen[name], refused) if name in chosen else refused

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            op = overload(name)
            if op in _lowerings or (op in _composites and not graph_only):
                raise ValueError(f"aten.{name} has two lowerings: {fn.__module__}.{fn.__qualname__} is the second")
            unknown = [n for n in (*chosen, *mutates) if n not in {a.name for a in op._schema.arguments}]
            if unknown:
                raise ValueError(f"aten.{name} has no argument {unknown[0]!r}")
            given = _refusing(op, fn, refuses) if refuses else fn
            _lowerings[op] = Lowering(
                op, given, chosen, random, mutates, takes_outputs, takes_inputs, graph_only, draws, corrects
            )
        return fn

    return register


def composite(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function on *tensors* that runs an operator as several others, because its output sizes depend on data.

    The function runs in place of the kernel, below autograd; each operator it calls is dispatched as usual. The same
    operator may have a ``graph_only`` lowering for the calls whose sizes do not depend on data.
    """

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            op = overload(name)
            if op in _composites or (op in _lowerings and not _lowerings[op].graph_only):
                raise ValueError(f"aten.{name} has two lowerings: {fn.__module__}.{fn.__qualname__} is the second")
            _composites[op] = fn
        return fn

    return register


def lower_custom(schema: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the lowering of a library's own operator, ``torch.library.custom_op``, that graphs may hold.

    `schema` is the operator's whole schema as PyTorch prints it: the library need not be imported, and a version of it
    with another schema has no lowering. Eager execution runs the library's own kernel.

    Raises:
        ValueError: it has a lowering already.
    """

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        if schema in _of_libraries:
            raise ValueError(f"{schema} has two lowerings: {fn.__module__}.{fn.__qualname__} is the second")
        _of_libraries[schema] = fn
        return fn

    return register


def lower_kernel(
    op: OpOverload, fn: Callable[..., Any], *, static: tuple[str, ...] = (), takes_outputs: bool = False
) -> None:
    """Register the lowering of an operator that the user has made (:mod:`..kernels`)."""
    _of_kernels[op] = Lowering(
        op, fn, {name: lambda _: True for name in static}, takes_outputs=takes_outputs, of_user=True
    )


def lowering_of(op: OpOverload) -> Lowering | None:
    """The lowering registered for just this overload."""
    found = _lowerings.get(op) or _of_kernels.get(op)
    if found is None and op.namespace != "aten" and (custom := _of_libraries.get(str(op._schema))) is not None:
        return Lowering(op, custom, {})
    return found


def composite_of(op: OpOverload) -> Callable[..., Any] | None:
    return _composites.get(op)


def lowered() -> list[OpOverload]:
    """Every overload with a lowering of its own, in order of registration."""
    return list(_lowerings)


def composites() -> list[OpOverload]:
    return list(_composites)


_UNUSUAL_FUNCTIONAL = {"normal_": "normal_functional"}


def _signature(op: OpOverload) -> tuple[tuple[str, str], ...]:
    return tuple((a.name, str(a.real_type)) for a in op._schema.arguments if not a.is_out)


@cache
def functional_of(op: OpOverload) -> OpOverload | None:
    """The overload without side effects that computes what `op` writes; `op` itself if it writes nothing.

    ``add_.Tensor`` -> ``add.Tensor``; ``add.out`` -> ``add.Tensor``; None where PyTorch has no such form.
    """
    arguments = op._schema.arguments
    if not any(a.alias_info is not None and a.alias_info.is_write for a in arguments):
        return op
    base = op._schema.name.split("::")[1]
    packet_name = _UNUSUAL_FUNCTIONAL.get(
        base, base.removesuffix("_") if not any(a.is_out for a in arguments) else base
    )
    packet = getattr(getattr(torch.ops, op.namespace), packet_name, None)
    if packet is None:
        return None
    wanted = _signature(op)
    for name in packet.overloads():
        candidate = getattr(packet, name)
        written = any(a.alias_info is not None and a.alias_info.is_write for a in candidate._schema.arguments)
        if not written and _signature(candidate) == wanted:
            return candidate
    return None


@lru_cache(maxsize=1)
def _decompositions() -> dict[OpOverload, Callable[..., Any]]:
    from torch._decomp import core_aten_decompositions, decomposition_table

    from . import load

    load()  # the table leaves out what has a lowering
    table: dict[OpOverload, Callable[..., Any]] = {}
    for source in (decomposition_table, core_aten_decompositions()):
        for op, fn in source.items():
            if isinstance(op, torch._ops.OpOverload) and op not in _lowerings:
                table[op] = fn
    return table


def decomposition_of(op: OpOverload) -> Callable[..., Any] | None:
    """PyTorch's own decomposition of `op`, unless `op` has a lowering here."""
    return _decompositions().get(op)


def decomposition_table() -> dict[OpOverload, Callable[..., Any]]:
    """Decompositions for every operator that has no lowering here: what graph capture is to use."""
    return _decompositions()
