"""The program of a traced step: what the host computes for it, what it consumes, and running it."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx.node import map_arg

from ... import events, profiles, rng, runtime
from ...buffer import Template, template
from ...errors import LoweringError, UnsupportedStep
from ...graph import GraphLowering
from ...graph_higher_order import is_random
from ...lazy import marked
from ...lowering.checks import Demand
from ...memory_limit import Needs
from ...pending import Pending, value_of
from ...program import Builder, Program, Ref
from ...transfer import to_device
from ...views import View
from ..adaptive.interrupts import HeldBack
from .compiled import graphs
from .consumed import OF_A_BUFFER, references
from .step_trace import Subject, Traced

_READ = torch.ops.aten._local_scalar_dense.default
_ONLY = "step"  # the key of the one program, where :mod:`..costs` looks for it
_SYMBOLIC = (torch.SymFloat, torch.SymInt, torch.SymBool)


class _Lowering(GraphLowering):
    """Leaves out what nobody needs, or the host has computed."""

    def __init__(
        self, needed: set[Any], known: dict[Any, Ref], builder: Builder, key: Ref | None, profile: Any
    ) -> None:
        super().__init__(builder, key, profile)
        self.needed, self.known = needed, known

    def _node(self, node: torch.fx.Node, env: dict[torch.fx.Node, Any]) -> Any:
        if node in self.known:
            return self.known[node]
        if node not in self.needed:
            return None
        return super()._node(node, env)


def _closure(roots: Sequence[Any], stop: Callable[[Any], bool] = lambda _: False) -> set[Any]:
    """`roots` and every node that they depend on, not looking beyond those that `stop`."""
    seen: set[Any] = set()
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            if not stop(node):
                waiting.extend(node.all_input_nodes)
    return seen


def _is_number(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), _SYMBOLIC)


class _Host:
    """The arithmetic that an optimizer does on the host: its counters of steps, and numbers made of them and of its options.

    Done here and not in the program, where XLA would repeat it for every element of a parameter.
    Counters of equal value share one computation, since an optimizer has one for each parameter. ``same`` says which do.
    """

    def __init__(
        self,
        traced: Traced,
        counters: list[int],
        same: list[int],
        numbers: list[Any],
        reads: list[Any],
        written: dict[int, Any],
    ):
        placeholders = [n for n in traced.module.graph.nodes if n.op == "placeholder"]
        self.counters, self.same, self.kinds = counters, same, len(set(same))
        number_of = {placeholders[c]: s for c, s in zip(counters, same)}
        number_of.update({node: self.kinds + k for k, node in enumerate(numbers)})
        values = self.kinds + len(numbers)
        known: dict[Any, int] = {}  # what is computed -> its place, so that nothing is computed twice
        place: dict[Any, int] = dict(number_of)
        self.steps: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[int]]] = []
        wanted = _closure([*reads, *written.values()])
        for node in traced.module.graph.nodes:
            if node not in wanted or node in place:
                continue
            if node.op != "call_function":
                raise UnsupportedStep(
                    f"a step that reads {node.name} on the host cannot be one program: its control flow, or a number that "
                    "its optimizer computes with, depends on data of the device"
                )
            if node.target is _READ and node.args[0] in numbers:
                place[node] = place[node.args[0]]  # a number already
                continue
            args = map_arg(node.args, lambda n: _Place(place[n]))
            kwargs = map_arg(node.kwargs, lambda n: _Place(place[n]))
            said = (str(node.target), repr(args), repr(kwargs))
            if said not in known:
                known[said] = values + len(self.steps)
                self.steps.append((node.target, args, kwargs, []))
            place[node] = known[said]
        self.reads: list[int] = sorted({place[n] for n in reads})
        self.number_of_read = {n: self.reads.index(place[n]) for n in reads}
        self.written = [(c, place[node]) for c, node in written.items()]

    def still(self, tensors: Sequence[Tensor]) -> bool:
        """Whether counters that were equal are equal."""
        found: dict[int, Any] = {}
        for counter, number in zip(self.counters, self.same):
            value = tensors[counter].item() if tensors[counter].device.type == "cpu" else number
            if found.setdefault(number, value) != value:
                return False
        return True

    def run(self, tensors: Sequence[Tensor], numbers: Sequence[float]) -> list[Any]:
        """All values, each at its place: a counter of each kind, the numbers, and what is computed of them."""
        values: list[Any] = [*([None] * self.kinds), *numbers]
        for counter, number in zip(self.counters, self.same):
            if values[number] is None:
                values[number] = tensors[counter].cpu()
        for target, args, kwargs, _ in self.steps:
            values.append(target(*_filled(args, values), **_filled(kwargs, values)))
        return values

    def write(self, tensors: Sequence[Tensor], values: list[Any]) -> None:
        if not self.written:
            return
        into = [tensors[c] for c, _ in self.written]
        new = [values[place] for _, place in self.written]
        if all(t.device.type == "cpu" for t in into):
            torch._foreach_copy_(into, new)
        else:
            for t, value in zip(into, new):
                t.copy_(value)


class _Place(int):
    def __repr__(self) -> str:
        return f"place {int(self)}"


def _filled(tree: Any, values: list[Any]) -> Any:
    if isinstance(tree, _Place):
        return values[tree]
    if isinstance(tree, (list, tuple)):
        return [_filled(t, values) for t in tree]
    if isinstance(tree, dict):
        return {k: _filled(v, values) for k, v in tree.items()}
    return tree


class StepGraph:
    """One compiled step: calling it gives the outputs of the loss, and puts everything else in place.

    Memory that the step replaces is consumed. Where anything else holds on to such a buffer (a copy that shares it, a
    buffer of zeros), the program gets a copy of its own, so that nobody else's values are lost.

    Raises:
        UnsupportedStep: an operator has no lowering.
    """

    def __init__(self, name: str, traced: Traced, subject: Subject, same: list[int], counters: list[int]) -> None:
        self.name, self.traced = name, traced
        self.profile = profiles.active
        self.tally = events.tally(f"graph::{name}")
        self._prepare(subject, counters, same)
        self.programs: dict[str, tuple[Any, ...]] = {}
        try:
            program = self._lower(subject)
        except LoweringError as error:
            raise _unlowered(error) from error
        self.demands: list[Demand] = program.demands
        run = runtime.compile(program, program.name, holds="graph", donate=self.donated)
        self.programs[_ONLY] = run, self.donated, [], program
        self.needs = Needs(program)
        self.ran = False
        self.begun: list[Tensor] = []  # parameters whose state in the optimizer was made for the first run
        graphs.add(self)

    # --- making it ------------------------------------------------------------------------------------------------------

    def _prepare(self, subject: Subject, counters: list[int], same: list[int]) -> None:
        """Sort the graph's nodes: what the host computes, what the program needs, and what the step writes."""
        nodes = list(self.traced.module.graph.nodes)
        self.placeholders = [n for n in nodes if n.op == "placeholder"]
        returned = list(next(n for n in nodes if n.op == "output").args[0])
        total = len(subject.tensors())
        first = self.traced.outputs
        self.out_nodes, after = returned[:first], returned[first : first + total]
        self.fresh_nodes = returned[first + total : first + total + len(self.traced.fresh)]
        self.gradient_nodes = returned[first + total + len(self.traced.fresh) :]
        written = {i: node for i, node in enumerate(after) if node is not self.placeholders[i]}
        numbers = set(self.placeholders[total:])
        impure = [n for n in nodes if n.op == "call_function" and n.is_impure() and n.target is not _READ]
        on_host = {i for i in counters if i in written and subject.tensors()[i].device.type == "cpu"}
        for i in written:
            if subject.tensors()[i].device.type == "cpu" and i not in on_host:
                raise UnsupportedStep(f"a step that writes a CPU tensor of sizes {list(subject.tensors()[i].shape)}")
        roots = [*self.out_nodes, *self.fresh_nodes, *self.gradient_nodes, *impure]
        roots += [node for i, node in written.items() if i not in on_host]
        self.needed = _closure(roots, stop=_is_number)
        reads = [n for n in nodes if n in self.needed and _is_number(n)]
        behind = _closure(reads)
        used = [(i, s) for i, s in zip(counters, same) if self.placeholders[i] in behind or i in on_host]
        renumbered = {s: k for k, s in enumerate(dict.fromkeys(s for _, s in used))}
        self.host = _Host(
            self.traced,
            [i for i, _ in used],
            [renumbered[s] for _, s in used],
            self.placeholders[total:],
            reads,
            {i: written[i] for i in on_host},
        )
        self.written = {i: node for i, node in written.items() if i not in on_host}
        self.taken = [i for i in range(total) if self.placeholders[i] in self.needed or i in self.written]
        self.number_count = len(numbers)

    def _lower(self, subject: Subject) -> Program:
        tensors = subject.tensors()
        builder = Builder(self.name, self.profile)
        parameters: dict[int, Ref] = {}  # by storage
        self.pattern: list[
            int
        ] = []  # of each tensor that is taken, the number of its storage among the program's inputs
        seats: dict[int, int] = {}
        for i in self.taken:
            seat = tensors[i].untyped_storage()._cdata
            if seat not in seats:
                seats[seat] = len(seats)
                parameters[seat] = builder.parameter("buffer")
            self.pattern.append(seats[seat])
        self.firsts = [self.pattern.index(seat) for seat in range(len(seats))]  # where each storage comes first
        numbers = [builder.parameter("number") for _ in range(self.number_count)]
        reads = [builder.parameter("number") for _ in self.host.reads]
        self.random = sum(map(is_random, self.needed))  # operators that draw
        key = builder.parameter("key") if self.random else None
        known: dict[Any, Ref] = {n: reads[k] for n, k in self.host.number_of_read.items()}
        given: list[Any] = [None] * len(tensors)
        for i in self.taken:
            view = View.of(tensors[i])
            read = builder.read(parameters[tensors[i].untyped_storage()._cdata], view)
            given[i] = builder.unmarked(read, tensors[i])
        lowering = _Lowering(self.needed, known, builder, key, self.profile)
        outs = iter(lowering.run(self.traced.module.graph, [*given, *numbers]))
        results: list[Ref] = []
        values_out = [next(outs) for _ in self.out_nodes]
        after = [next(outs) for _ in tensors]
        buffers: dict[int, Ref] = {}
        _refuse_overlaps([(tensors[i].untyped_storage()._cdata, tensors[i]) for i in self.written])
        for i in self.written:
            seat = tensors[i].untyped_storage()._cdata
            base = buffers.get(seat, parameters[seat])
            buffers[seat] = builder.write(base, View.of(tensors[i]), builder.unmarked(after[i], tensors[i]))
        self.donated = [seats[s] for s in buffers]
        results.extend(buffers.values())
        self.makers: list[Template] = []
        for node, ref in [*zip(self.out_nodes, values_out), *zip((*self.fresh_nodes, *self.gradient_nodes), outs)]:
            example = node.meta["val"]
            layout = View(example.dtype, tuple(example.shape), tuple(example.stride()))
            self.makers.append(template(layout.dtype, layout.size, layout.stride))
            results.append(builder.pack(ref, layout))
        return builder.finish(results, keeps=list(enumerate(self.donated)))

    # --- running it -----------------------------------------------------------------------------------------------------

    def storages(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Those of the tensors that the program takes, in their order. CPU tensors are copied over."""
        given = [tensors[i] for i in self.taken]
        if any(t.is_cpu for t in given):
            given = [marked(to_device(t.detach()), t.is_conj(), t.is_neg()) if t.is_cpu else t for t in given]
        return [t.untyped_storage() for t in given]

    def seats(self, storages: list[Any]) -> bool:
        """Whether `storages` are shared among the tensors as they were when the program was made."""
        order: dict[int, int] = {}
        return [order.setdefault(id(s), len(order)) for s in storages] == self.pattern

    def straighten(self, tensors: Sequence[Tensor]) -> None:
        """Give what the step writes buffers of its own dtype (those that were loaded or copied whole are bytes)."""
        for i in self.written:
            storage, wanted = tensors[i].untyped_storage(), tensors[i].dtype
            buffer = value_of(storage, "compiled step")
            if buffer.dtype == np.uint8 and wanted.itemsize > 1 and storage.nbytes() % wanted.itemsize == 0:
                storage.buffer = runtime.reinterpreted(buffer, wanted)

    def __call__(
        self, tensors: Sequence[Tensor], storages: list[Any], numbers: Sequence[float]
    ) -> tuple[list[Tensor], Demand | None]:
        """(outputs of the loss, then fresh state, then gradients; the demand that the data broke, and nothing was written)."""
        self.needs.begin()
        hosted = self.host.run(tensors, numbers)
        seated = [storages[k] for k in self.firsts]
        buffers = [storage.buffer for storage in seated]
        if Pending in set(map(type, buffers)):
            for k, storage in enumerate(seated):
                if type(buffers[k]) is Pending:
                    buffers[k] = storage.buffer = value_of(storage, "compiled step")
        for seat in self.donated:
            if references(buffers, seat) > OF_A_BUFFER:
                buffers[seat] = runtime.private_copy(buffers[seat])
        more = [runtime.number(n) for n in numbers] + [runtime.number(hosted[r]) for r in self.host.reads]
        if self.random:
            more.append(rng.next_key(self.random))
        run = self.programs[_ONLY][0]
        start_ns = time.perf_counter_ns() if events.listening else 0
        with HeldBack():
            results = run(*buffers, *more) if self.ran else self._first(run, buffers, more)
            if type(results) is not list:
                results = [results]
            buffers.clear()
            for seat, made in zip(self.donated, results):
                seated[seat].buffer = made
        self.tally.runs += 1
        if events.listening:
            events.emit_execute(self.tally.name, start_ns)
        if self.demands:
            broken = runtime.read_int(results.pop())
            if broken:
                return [], self.demands[broken - 1]
        self.host.write(tensors, hosted)
        torch.autograd.graph.increment_version([tensors[i] for i in self.written])
        return [layout.new(value) for layout, value in zip(self.makers, results[len(self.donated) :])], None

    def _first(self, run: Callable[..., Any], buffers: list[Any], more: list[Any]) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
                self.needs.learn(run, [*buffers, *more])
                results = run(*buffers, *more)
        except torch.OutOfMemoryError:
            rng.give_back(None, self.random)
            raise
        except LoweringError as error:
            raise _unlowered(error) from error
        if self.profile is not None:
            self.profile.announce()
        self.ran, self.begun = True, []
        return results


def _unlowered(error: LoweringError) -> UnsupportedStep:
    return UnsupportedStep(
        f'this step cannot be one program: {error.reason}. Use torch.compile(model, backend="neuron") with the optimizer '
        "outside, which runs such an operator by itself"
    )


def _refuse_overlaps(written: list[tuple[int, Tensor]]) -> None:
    """Two written tensors may share a storage, but not an element of it."""
    for (seat, a), (other, b) in (
        itertools.combinations(written, 2) if len({s for s, _ in written}) < len(written) else ()
    ):
        if seat == other and _range(a)[0] < _range(b)[1] and _range(b)[0] < _range(a)[1]:
            raise UnsupportedStep(
                f"a step that writes two tensors which share memory, of sizes {list(a.shape)} and {list(b.shape)}"
            )


def _range(t: Tensor) -> tuple[int, int]:
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride()))
    first = t.storage_offset() * t.itemsize
    return first, first + (last + 1) * t.itemsize if t.numel() else first
