"""From one operator call to one program: how its arguments enter, what it writes, and what its outputs look like.

Output sizes, strides, dtypes, promotion and argument errors come from running the operator itself once on ``meta``
tensors. The key that finds a plan again is built in :mod:`.dispatch` from the same walk over the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from . import profiles, refusals, runtime
from .buffer import Template, storage_nbytes, template
from .call import Call, Given, Place, run_meta
from .errors import LoweringError
from .operators import Operator, Role
from .program import Builder, Program, Ref, map_refs
from .transfer import adopt, is_dense, warn_of_resize
from .views import View

# (args, kwargs, buffers of a run) -> what the operator returns
_Finish: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any], list[Any]], Any]


class Plan:
    """A compiled operator call: ``run(*inputs)`` gives new buffers, ``place`` puts them where they belong.

    ``layout`` is the template of the result when the call writes nothing and returns one tensor: the common case, which
    needs no ``place``. ``finish`` and ``single`` are the same two for whoever runs the program: where it has demands of its
    data, ``finish`` looks whether they are met. ``rewrites`` pairs each result that becomes a storage's new buffer with the
    parameter that held the old one. ``temp`` is the working memory of the program in bytes, known once it has been compiled, and
    ``needs`` what a call asks for: its new results and that. ``mark`` is a number that depends on the key alone
    (:mod:`.modes.adaptive.cuts`).
    """

    __slots__ = (
        "finish",
        "given",
        "layout",
        "mark",
        "nbytes",
        "needs",
        "operator",
        "place",
        "program",
        "results",
        "rewrites",
        "run",
        "single",
        "sizes",
        "tally",
        "temp",
        "unique",
    )

    def __init__(
        self,
        operator: Operator,
        program: Program,
        run: Callable[..., Any],
        place: _Finish,
        layout: Template | None,
        *,
        given: Given,
        rewrites: tuple[tuple[int, int], ...],
        sizes: tuple[int, ...],
    ) -> None:
        self.operator, self.program, self.run = operator, program, run
        self.finish = self.place = place
        self.single = self.layout = layout
        self.given, self.rewrites = given, rewrites
        self.results = len(program.results)
        self.sizes = sizes  # bytes of each result
        self.nbytes = sum(sizes) - sum(sizes[result] for result, _ in rewrites)  # of memory that was not there before
        self.needs, self.temp = self.nbytes, 0
        self.unique = frozenset(i for i, kind in enumerate(program.parameters) if kind != "buffer")
        self.tally = operator.tally
        self.mark = 0

    def guard(self) -> None:
        """After the first run: if the program has demands of its data, read whether they are met before finishing.

        Where they are not, nothing has been put in place yet, and the CPU kernel raises what PyTorch raises.
        """
        demands = self.program.demands
        if not demands:
            return

        from . import failures  # which needs this module

        def finish(args: tuple[Any, ...], kwargs: dict[str, Any], buffers: list[Any]) -> Any:
            broken = runtime.read_int(buffers.pop())
            if broken:
                return failures.unmet(self.operator, args, kwargs, demands[broken - 1].message)
            return self.place(args, kwargs, buffers) if self.layout is None else self.layout.new(buffers[0])

        self.finish, self.single = finish, None


class FallbackPlan:
    """The decision that calls of this key run on the CPU, with the reason.

    ``stage``: where the first of them failed (:mod:`.failures`); empty where there was nothing to fail.
    """

    __slots__ = ("reason", "stage")

    def __init__(self, reason: str, stage: str = "") -> None:
        self.reason, self.stage = reason, stage


# --- building ---------------------------------------------------------------------------------------------------------


def _flatten(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [t for r in result for t in _flatten(r)]
    return []


def example(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What this call returns, as meta tensors; raises what PyTorch raises for these arguments."""
    return run_meta(operator, Call(operator, args, kwargs))


def build(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
    """The plan of one call.

    Raises:
        LoweringError: the call has no program; the reason says why.
        Exception: whatever PyTorch raises for these arguments on meta tensors.
    """
    if operator.lowering is None and operator.decomposition is None:
        raise LoweringError("no lowering")
    call = Call(operator, args, kwargs)
    metas = call.metas()
    sizes_before = {index: tuple(meta.shape) for index, meta in metas.items()}
    outs = run_meta(operator, call)
    writes = call.written_parameters()
    _keep_sizes(operator, call, metas, sizes_before)
    alias = _overlaps(call, writes)
    refusals.check(operator, args, kwargs, list(call.tensors.values()), alias)
    written = [metas[i] for i in writes]
    fresh = [t for t in _flatten(outs) if not any(t is w for w in written)]
    if writes and fresh and not (operator.lowering is not None and operator.lowering.op is operator.op):
        raise LoweringError("the functional form does not tell returns from writes")

    builder = Builder(operator.name.replace("::", "."), profiles.active)
    for kind in call.kinds:
        builder.parameter(kind)
    # A lowering gives the returns first, then the new values of what it writes. (A functional form returns the latter.)
    fresh_views = [_apart(t) for t in fresh]
    written_views, resized_views = _out_views(operator, call, written)
    values = _values(builder, operator, call, (*fresh_views, *written_views))
    results, stores = _stores(builder, call, writes, resized_views, sizes_before, values[len(fresh) :])
    templates = []
    for layout, value in zip(fresh_views, values):
        results.append(builder.pack(value, layout))
        templates.append(template(layout.dtype, layout.size, layout.stride))
    if not results:
        raise LoweringError("writes nothing and returns no tensor")
    program = builder.finish(results)
    place = _finisher(stores, templates, _assembler(call, outs, fresh, metas))
    only = templates[0] if isinstance(outs, torch.Tensor) and not stores else None
    # Lists of results are faster to compile as graphs are; what is more than arithmetic must be, to round as in a segment.
    simple = len(results) == 1 and operator.arithmetic
    run = runtime.compile(program, program.name, holds="arithmetic" if simple else "graph")
    rewrites = tuple((r, index) for r, (index, (_, resized)) in enumerate(zip(writes, stores)) if resized is None)
    sizes = [
        call.tensors[index].untyped_storage().nbytes() if resized is None else resized.nbytes
        for index, (_, resized) in zip(writes, stores)
    ]
    sizes += [t.nbytes for t in templates]
    return Plan(operator, program, run, place, only, given=call.given(), rewrites=rewrites, sizes=tuple(sizes))


def _apart(meta: torch.Tensor) -> View:
    """The layout of a fresh tensor whose meta twin is `meta`: no two elements in one place, whatever a meta kernel says."""
    if any(n > 1 and s == 0 for n, s in zip(meta.shape, meta.stride())):
        meta = torch.empty_like(meta)
    return View(meta.dtype, tuple(meta.shape), tuple(meta.stride()))


def _out_views(operator: Operator, call: Call, written: list[torch.Tensor]) -> tuple[list[View], list[View]]:
    """Of each written tensor: (dtype in which its values are computed, layout if it has to be resized).

    The functional form knows both: pointwise operators round to their own result's dtype before they convert it to that
    of an ``out=``, and the meta kernels of some ``out=`` forms resize without regard to the inputs' strides.
    """
    found = [View.of(t) for t in written]
    plain = [View(t.dtype, tuple(t.shape), tuple(t.stride())) for t in written]
    outs = {a.name for a in operator.op._schema.arguments if a.is_out}
    if not outs or operator.functional is None or operator.functional is operator.op:
        return found, plain
    args, kwargs = call.split({n: v for n, v in call.meta.items() if n not in outs})
    try:
        made = _flatten(operator.functional(*args, **kwargs))
    except Exception:  # an input was resized as the output that it also is, or there is no meta kernel
        return found, plain
    if [tuple(t.shape) for t in made] != [v.size for v in plain]:
        return found, plain
    for i, (view, own) in enumerate(zip(plain, map(_apart, made))):
        plain[i] = View(view.dtype, own.size, own.stride)
        if torch.Tag.pointwise in operator.op.tags:
            found[i] = View(own.dtype, view.size, view.stride, found[i].offset)
    return found, plain


def _stores(
    builder: Builder,
    call: Call,
    writes: list[int],
    resized_views: list[View],
    sizes_before: dict[int, tuple[int, ...]],
    values: list[Ref],
) -> tuple[list[Ref], list[tuple[Place, Template | None]]]:
    """Add the writes to the program: one result a written tensor, and where it goes (a template: into a new storage)."""
    results: list[Ref] = []
    stores: list[tuple[Place, Template | None]] = []
    latest: dict[int, Ref] = {}  # id of a storage -> its buffer after the writes so far
    for index, layout, value in zip(writes, resized_views, values):
        tensor = call.tensors[index]
        place = call.place_of(tensor)
        if layout.size != sizes_before[index]:  # an `out=` that had to be resized
            results.append(builder.pack(value, layout))
            stores.append((place, template(layout.dtype, layout.size, layout.stride)))
            continue
        storage = id(tensor.untyped_storage())
        latest[storage] = builder.write(latest.get(storage, Ref(index)), View.of(tensor), value)
        results.append(latest[storage])
        stores.append((place, None))
    # Where written tensors share a storage, each of them must end with the buffer after the last write.
    for position, (index, (_, resized)) in enumerate(zip(writes, stores)):
        if resized is None:
            results[position] = latest[id(call.tensors[index].untyped_storage())]
    return results, stores


def _keep_sizes(
    operator: Operator, call: Call, metas: dict[int, torch.Tensor], sizes_before: dict[int, tuple[int, ...]]
) -> None:
    """Refuse an in-place call whose result has other sizes: some meta kernels resize what only an ``out=`` may be."""
    outs: set[int] = set()
    for argument in operator.op._schema.arguments:
        if argument.is_out:
            map_refs(call.template.get(argument.name), lambda ref: outs.add(ref.index))
    for index, meta in metas.items():
        if tuple(meta.shape) != sizes_before[index] and index not in outs:
            raise LoweringError("an in-place result of other sizes")


def _overlaps(call: Call, writes: list[int]) -> bool:
    """Whether a tensor is both read and written, as the same view: some operators refuse it, their CPU kernels know.

    (``meta`` kernels skip the check, which looks at addresses.) Operators on lists write one member after the other, so
    there a member that another one reads matters too.

    Raises:
        LoweringError: the call writes memory that it sees twice in another way, which PyTorch forbids or defines by order.
    """
    alias = False
    for index in writes:
        tensor = call.tensors[index]
        if any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride())):
            raise LoweringError("the written tensor overlaps itself")
        first, last = _extent(tensor)
        for other_index, other in call.tensors.items():
            if other_index == index or other.untyped_storage() is not tensor.untyped_storage():
                continue
            same = View.of(other) == View.of(tensor)
            aligned = call.positions.get(index) in (None, call.positions.get(other_index))
            if same and other_index not in writes and aligned:
                alias = True
                continue  # read before it is written, by the same member
            a, b = _extent(other)
            if a > last or b < first:
                continue
            if len(writes) > 1 or (not same and is_dense(tensor) and is_dense(other)):
                raise LoweringError("the written tensor overlaps another argument")
    return alias


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First and last byte of the storage that `tensor` touches."""
    start = tensor.storage_offset() * tensor.dtype.itemsize
    return start, start + storage_nbytes(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())) - 1


_COMPUTED_IN_OUT = {"aten::sum", "aten::nansum", "aten::prod", "aten::mean"}  # in the dtype of their ``out=``


def _values(builder: Builder, operator: Operator, call: Call, expected: tuple[View, ...]) -> list[Ref]:
    """Add the computation to the program; one Ref for each expected tensor."""
    reads: dict[int, Ref] = {}

    def logical(ref: Ref) -> Ref:
        if ref.index not in call.tensors:
            return ref
        if ref.index not in reads:
            reads[ref.index] = builder.read(ref, View.of(call.tensors[ref.index]))
        return reads[ref.index]

    ignored = {a.name for a in operator.op._schema.arguments if a.is_out}
    if operator.lowering is not None:
        ignored |= {n for n, (role, _) in operator.kwarg_roles.items() if role is Role.GENERATOR}
    given = {n: map_refs(v, logical) for n, v in call.template.items() if n not in ignored}
    if operator.op._schema.name in _COMPUTED_IN_OUT and "out" in ignored and given.get("dtype") is None:
        given["dtype"] = call.meta["out"].dtype
    args, kwargs = call.split(given)
    if operator.lowering is None:
        from .graph import inline_decomposition

        example = call.split({n: call.meta[n] for n in given})
        return inline_decomposition(builder, operator, example, args, kwargs)
    if call.key is not None:
        kwargs["key"] = call.key
    if operator.lowering.takes_outputs:
        kwargs["outputs"] = expected
    if operator.lowering.takes_inputs:
        found: list[View] = []
        for name in given:
            map_refs(call.template[name], lambda ref: found.append(View.of(call.tensors[ref.index])))
        kwargs["inputs"] = tuple(found)
    whole = builder.call(str(operator.lowering.op), operator.lowering.fn, args, kwargs, expected)
    return [builder.get(whole, i) for i in range(len(expected))]


def _assembler(
    call: Call, outs: Any, fresh: list[torch.Tensor], metas: dict[int, torch.Tensor]
) -> Callable[[tuple[Any, ...], dict[str, Any], list[torch.Tensor]], Any]:
    """Builds the operator's return value out of its arguments, its fresh tensors and constants."""
    if isinstance(outs, (list, tuple)) and len(outs) == len(fresh) and all(o is f for o, f in zip(outs, fresh)):
        return (lambda args, kwargs, new: new) if isinstance(outs, list) else (lambda args, kwargs, new: tuple(new))
    number_of_fresh = {id(t): n for n, t in enumerate(fresh)}
    parameter_of_meta = {id(t): index for index, t in metas.items()}
    return _item(outs, call, number_of_fresh, parameter_of_meta)


def _item(
    value: Any, call: Call, number_of_fresh: dict[int, int], parameter_of_meta: dict[int, int]
) -> Callable[[tuple[Any, ...], dict[str, Any], list[torch.Tensor]], Any]:
    """The part of :func:`_assembler` for `value`, a part of what the operator returns."""
    if isinstance(value, torch.Tensor):
        if id(value) in number_of_fresh:
            number = number_of_fresh[id(value)]
            return lambda args, kwargs, new: new[number]
        if id(value) not in parameter_of_meta:
            raise LoweringError(f"{call.operator.name}: a returned tensor is neither new nor an argument")
        place = call.place_of(call.tensors[parameter_of_meta[id(value)]])
        return lambda args, kwargs, new: place.of(args, kwargs)
    if isinstance(value, (list, tuple)):
        kind = list if isinstance(value, list) else tuple
        parts = [_item(v, call, number_of_fresh, parameter_of_meta) for v in value]
        return lambda args, kwargs, new: kind(part(args, kwargs, new) for part in parts)
    return lambda args, kwargs, new: value


def _finisher(
    stores: list[tuple[Place, Template | None]], templates: list[Template], assemble: Callable[..., Any]
) -> _Finish:
    """Puts a run's buffers where they belong; in-place operators on one tensor and on a whole list take a short way."""
    places = [place for place, resized in stores if resized is None]
    if len(places) == len(stores) > 0 and not templates:
        first = places[0]
        if len(places) == 1 and first == Place(0):

            def one(args: tuple[Any, ...], kwargs: dict[str, Any], buffers: list[Any]) -> Any:
                args[0].untyped_storage().buffer = buffers[0]
                return assemble(args, kwargs, ())

            return one
        if places == [Place(0, member) for member in range(len(places))]:

            def whole_list(args: tuple[Any, ...], kwargs: dict[str, Any], buffers: list[Any]) -> Any:
                for tensor, buffer in zip(args[0], buffers):
                    tensor.untyped_storage().buffer = buffer
                return assemble(args, kwargs, ())

            return whole_list

    def finish(args: tuple[Any, ...], kwargs: dict[str, Any], buffers: list[Any]) -> Any:
        for (place, resized), buffer in zip(stores, buffers):
            tensor = place.of(args, kwargs)
            if resized is None:
                tensor.untyped_storage().buffer = buffer
            else:
                fresh = resized.new(buffer)
                if tensor.numel():
                    warn_of_resize(tensor, fresh)
                adopt(tensor, fresh)
        new = [t.new(b) for t, b in zip(templates, buffers[len(stores) :])]
        return assemble(args, kwargs, new)

    return finish
