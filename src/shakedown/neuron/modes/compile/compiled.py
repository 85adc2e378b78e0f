"""One functional graph and the programs made of it, called with PyTorch's tensors."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NoReturn, TypeAlias

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ... import config, events, failures, lazy, profiles, rng, runtime
from ...buffer import storage_nbytes, template
from ...errors import CompilationFailed, KernelError, LoweringError, ProgramFailed, said_by
from ...graph import GraphLowering
from ...graph_higher_order import is_random
from ...lowering.checks import Demand
from ...memory_limit import Needs
from ...pending import Pending, settled, value_of
from ...program import Builder, Program, Ref
from ...transfer import to_device
from ...views import View
from .. import adaptive
from ..adaptive.interrupts import HeldBack
from . import artefacts, metrics
from . import outputs as outputs_of
from .consumed import OF_A_BUFFER, references
from .metrics import Stopwatch
from .options import Options
from .outputs import Output

graphs: weakref.WeakSet[Any] = weakref.WeakSet()  # that are alive, and steps that are compiled whole

# As functions, for ``map``: a call of a graph takes every parameter of a model.
_storage_of, _stride_of, _offset_of = torch.Tensor.untyped_storage, torch.Tensor.stride, torch.Tensor.storage_offset
_buffer_of = attrgetter("buffer")

# What to call; numbers of the inputs that it writes, which are its first results; how to make the outputs; the program;
# how much memory it needs.
_Entry: TypeAlias = tuple[Callable[..., Any], list[int], list[Output], Program, Needs]

_NOTHING_HELD = contextlib.nullcontext()


class CompiledGraph:
    """A graph and its programs, one per combination of input strides and offsets.

    Inputs may be CPU tensors, which are copied to the device, and back when the graph writes them. `results_on_device`:
    such a graph, captured for the CPU, keeps its results on the device. Otherwise they are where the capture has them.
    `written`: example storages (``_cdata``) that something else writes after this graph, so that no result may share them.

    Raises:
        LoweringError: it cannot be one program; ``node`` is to blame, where there is one. A call raises the same where that
            comes out for the inputs at hand, before anything has run (:class:`.split.Graph` knows what to do then).
    """

    def __init__(
        self,
        name: str,
        module: torch.fx.GraphModule,
        options: Options,
        *,
        results_on_device: bool = False,
        written: frozenset[int] = frozenset(),
    ) -> None:
        graphs.add(self)
        self.name, self.module, self.options = name, module, options
        self.results_on_device, self.written = results_on_device, written
        self.profile = profiles.active  # for good: another profile gets graphs of its own
        self.placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.stage = name.rpartition("_")[2]  # forward, backward or inference; a piece of a graph has another end
        # Inputs that the profile's release would copy on every call; what the graph writes must stay itself.
        self.copied = (
            _strided(self.placeholders) if self.profile is not None and self.profile.copies_strided_inputs else []
        )
        self.tangents = _tangents(self.placeholders)
        self.apart = _without_examples_storage(module.graph)
        self.tally = events.tally(f"graph::{name}")
        self.random = sum(map(is_random, module.graph.nodes))  # operators that draw
        self.recorded = adaptive.enabled()  # for good: inputs may be values that are recorded and not computed yet
        self.programs: dict[Any, _Entry] = {}
        self.recent: tuple[list[Any] | None, _Entry | None] = (
            None,
            None,
        )  # layouts of the last call's inputs, and its program
        # Lower once for the captured layouts, so that an operator without a lowering is known at compile time.
        views = [View.of(v) if isinstance(v := n.meta.get("val"), torch.Tensor) else None for n in self.placeholders]
        start_ns = time.perf_counter_ns()
        self._lower(views)
        self.passes_ns = time.perf_counter_ns() - start_ns

    def __call__(self, arguments: list[Any], random_key: Any = None) -> list[Any]:
        """Run the graph; `random_key` is the whole graph's where this one is a piece of it."""
        hosts: dict[int, torch.Tensor] = {}
        if self.copied:
            for i in self.copied:
                arguments[i] = arguments[i].contiguous()
        for i, conjugate, negative in self.tangents:
            tangent = arguments[i]
            if tangent is None:  # nothing of the graph, or of this piece of it, needs it
                continue
            if tangent.is_conj() is not conjugate or tangent.is_neg() is not negative:
                arguments[i] = lazy.marked(lazy.materialised(tangent), conjugate, negative)
        try:
            # This is on the path of every call, for every parameter of a model.
            storages = list(map(_storage_of, arguments))
            buffers = list(map(_buffer_of, storages))
            layouts = [*map(_stride_of, arguments), *map(_offset_of, arguments)]
        except (AttributeError, TypeError):  # a tensor of the CPU, or a number
            storages, buffers, layouts = self._moved(arguments, hosts)
        if self.recorded and Pending in set(map(type, buffers)):
            buffers = [settled(b, "compiled graph") for b in buffers]
        entry = self.recent[1] if layouts == self.recent[0] else None
        if entry is None:
            entry = self.programs.get(tuple(layouts))
        start_ns = time.perf_counter_ns() if events.listening else 0
        if entry is None:
            entry, results = self._first(arguments, layouts, storages, buffers, hosts, random_key)
        else:
            run, mutated, _, program, needs = entry
            needs.begin()
            self.recent = layouts, entry
            try:
                if mutated:
                    results = self._consuming(run, program, storages, buffers, random_key)
                elif self.random:
                    results = run(*buffers, rng.next_key(self.random) if random_key is None else random_key)
                else:
                    results = run(*buffers)
            except Exception as error:
                failures.of_graph(self.tally.name, error, bool(mutated))
        _, mutated, outputs, program, _ = entry
        if type(results) is not list:
            results = [results]
        self.tally.runs += 1
        if events.listening:
            events.emit_execute(self.tally.name, start_ns)
        if program.demands:
            broken = runtime.read_int(results.pop())
            if broken:
                self._refuse(arguments, program.demands[broken - 1])
        if mutated:
            for number in mutated:
                if number in hosts:
                    with torch.no_grad():
                        hosts[number].copy_(arguments[number])
            results = results[len(mutated) :]
        return [make(arguments, results) for make in outputs]

    def _moved(self, arguments: list[Any], hosts: dict[int, torch.Tensor]) -> tuple[list[Any], list[Any], list[Any]]:
        """Storages, buffers and layouts of any arguments; CPU tensors among them are copied over, and go to `hosts`."""
        storages: list[Any] = []
        buffers: list[Any] = []
        strides: list[Any] = []
        offsets: list[Any] = []
        for i, value in enumerate(arguments):
            if isinstance(value, torch.Tensor):
                if value.device.type == "cpu":
                    hosts[i] = value
                    value = arguments[i] = lazy.marked(to_device(value), value.is_conj(), value.is_neg())
                storages.append(value.untyped_storage())
                buffers.append(value_of(storages[-1], "compiled graph"))
                strides.append(value.stride())
                offsets.append(value.storage_offset())
            else:
                # None is the token that orders operators with effects; nothing reads it.
                storages.append(None)
                buffers.append(runtime.number(0 if value is None else value))
        return storages, buffers, strides + offsets

    def _first(
        self,
        arguments: list[Any],
        layouts: list[Any],
        storages: list[Any],
        buffers: list[Any],
        hosts: dict[int, torch.Tensor],
        random_key: Any,
    ) -> tuple[Any, Any]:
        """Make the program for inputs of these layouts, and run it."""
        with _disable_current_modes():
            views = [View.of(a) if isinstance(a, torch.Tensor) else None for a in arguments]
            took = Stopwatch()
            with took.lowering():
                program, mutated, outputs = self._lower(views)
            needs = Needs(program)
            # What the graph writes it may as well consume: the memory becomes the result's.
            run = runtime.compile(program, program.name, holds="graph", donate=mutated)
            try:
                with took.first_run():
                    needs.learn(run, [*buffers, rng.example_key()] if self.random else buffers)
                    results = self._consuming(run, program, storages, buffers, random_key)
            except Exception as error:
                for i, host in hosts.items():
                    arguments[i] = host
                self._blame(error)
            if self.profile is not None:
                self.profile.announce()
            self._note(program, run, [s.buffer if b is None else b for s, b in zip(storages, buffers)], took)
        self.programs[tuple(layouts)] = entry = run, mutated, outputs, program, needs
        return entry, results

    def _consuming(
        self, run: Callable[..., Any], program: Program, storages: list[Any], buffers: list[Any], random_key: Any
    ) -> Any:
        """Run a program that writes some of its inputs, and put those in place.

        Memory that anything else refers to is copied first: another tensor may share the value of this one. Where the data
        do not meet a demand, the program gives what it consumed as it was.
        """
        consumed = [parameter for _, parameter in program.keeps]
        for i in consumed:
            if references(buffers, i) > OF_A_BUFFER:
                buffers[i] = runtime.private_copy(buffers[i])
        more = [rng.next_key(self.random) if random_key is None else random_key] if self.random else []
        with HeldBack() if consumed else _NOTHING_HELD:
            results = run(*buffers, *more)
            if type(results) is not list:
                results = [results]
            for number, buffer in zip(consumed, results):
                storages[number].buffer = buffer
                buffers[number] = None
        return results

    def _note(self, program: Program, run: Any, buffers: list[Any], took: Stopwatch) -> None:
        model, nth = self.options.model_name, len(self.programs)
        record = metrics.note(self.name, model, nth, self.module.graph.nodes, program.__str__, self.passes_ns, took)
        given = [*buffers, rng.example_key()] if self.random else buffers
        artefacts.lowered(self.module, program, run, given, record, took)

    def _blame(self, error: Exception) -> NoReturn:
        """Raise `error` of a first run: as a LoweringError that names the node, if it came from tracing a lowering."""
        if isinstance(error, CompilationFailed) and config.FALLBACK_ENABLED() and not config.STRICT_FALLBACK():
            raise ProgramFailed(str(error)) from error  # operator by operator it may do
        step = getattr(error, "failing_step", None)
        if step is None or isinstance(error, KernelError):
            raise error
        node = self.origin(step)
        if isinstance(error, LoweringError):
            raise LoweringError(error.reason, node) from None
        if config.STRICT_FALLBACK() and node is not None:
            failures.refuse_node(node, error)
        raise LoweringError(f"its lowering fails: {said_by(error)}", node) from error

    def _refuse(self, arguments: list[Any], broken: Demand) -> NoReturn:
        """Raise for data that an operator of the graph does not accept, before anything is put in place.

        The graph's operators, run one by one on the same data, raise what eager execution raises. Where a random value
        was to blame they may not, and then the demand itself is the error.
        """
        where = f"(in {broken.operator} of graph {self.name}{failures.called_at(self.module.graph, broken.operator)})"
        adaptive.flush("compiled graph")  # what was recorded before has errors of its own
        try:
            # The graph's own writes are its last nodes, so they come after whatever raises.
            self.module(*arguments)
            adaptive.flush("compiled graph")  # not recorded for later: the error is raised here
        except (IndexError, ValueError, RuntimeError) as error:
            raise type(error)(f"{error} {where}") from None
        raise broken.error(f"{broken.message} {where}")

    def _lower(self, views: list[View | None]) -> tuple[Program, list[int], list[Output]]:
        builder = Builder(self.name, self.profile)
        parameters = [builder.parameter("buffer" if v is not None else "number") for v in views]
        key = builder.parameter("key") if self.random else None
        values = [
            builder.unmarked(builder.read(p, v), n.meta.get("val")) if v is not None else p
            for p, v, n in zip(parameters, views, self.placeholders)
        ]
        lowering = GraphLowering(builder, key, self.profile)
        returned = lowering.run(self.module.graph, values)
        self.origin = lowering.node_of
        output_node = next(n for n in self.module.graph.nodes if n.op == "output")
        results: list[Ref] = []
        mutated: list[int] = []
        for number, value in lowering.mutations(self.placeholders).items():
            view = views[number]
            assert view is not None
            results.append(
                builder.write(
                    parameters[number], view, builder.unmarked(value, self.placeholders[number].meta.get("val"))
                )
            )
            mutated.append(number)
        shared = self._shared(builder, output_node, lowering) if self.stage in ("inference", "forward") else {}
        outputs = self._outputs(builder, list(output_node.args[0]), list(returned), results, mutated, shared)
        return builder.finish(results, keeps=list(enumerate(mutated))), mutated, outputs

    def _shared(
        self, builder: Builder, output_node: torch.fx.Node, lowering: GraphLowering
    ) -> dict[int, tuple[Ref, View]]:
        """Storages that several results lie in: storage (``_cdata``) -> (value, layout) of the node that fills all of it."""
        found: dict[int, tuple[Ref, View]] = {}
        tensors = [
            v
            for n in output_node.args[0]
            if isinstance(n, torch.fx.Node) and isinstance(v := n.meta.get("val"), torch.Tensor)
        ]
        storages = [t.untyped_storage()._cdata for t in tensors]
        for node, ref in lowering.values.items():
            example = node.meta.get("val")
            if not isinstance(example, torch.Tensor) or not isinstance(ref, Ref) or node in self.apart:
                continue
            storage = example.untyped_storage()
            if storages.count(storage._cdata) < 2 or storage._cdata in found:
                continue
            layout = View.of(example)
            if layout.offset == 0 and storage.nbytes() == storage_nbytes(layout.dtype, layout.size, layout.stride):
                found[storage._cdata] = builder.unmarked(ref, example), layout
        return found

    def _outputs(
        self,
        builder: Builder,
        nodes: list[Any],
        refs: list[Any],
        results: list[Ref],
        mutated: list[int],
        shared: dict[int, tuple[Ref, View]],
    ) -> list[Output]:
        """How to make each output; appends what has to be computed for them to `results`."""
        numbers: dict[int, int] = {}  # of the shared storages among the fresh buffers
        made: dict[torch.fx.Node, int] = {}  # numbers of the fresh buffers of nodes that are returned more than once
        examples = [n.meta.get("val") for n in self.placeholders]
        # What the graph writes to is rebound after the run, so it cannot stand for the value it had before.
        kept = {
            e.untyped_storage()._cdata: i
            for i, e in enumerate(examples)
            if isinstance(e, torch.Tensor) and i not in mutated and e.untyped_storage()._cdata not in self.written
        }
        first = len(results)
        written = self._written_from()
        outputs: list[Output] = []
        for node, ref in zip(nodes, refs):
            example = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
            if not isinstance(example, torch.Tensor):
                outputs.append(outputs_of.constant(ref))
                continue
            alone = node in self.apart
            source = None if alone else kept.get(example.untyped_storage()._cdata)
            if source is not None and node is self.placeholders[source]:
                outputs.append(outputs_of.argument(source))
            elif source is not None and example.dtype is examples[source].dtype:
                # A view of an input, kept for the backward pass: it shares the input's storage, nothing is copied.
                outputs.append(outputs_of.view_of_argument(source, View.of(example), examples[source].storage_offset()))
            elif source is None and not alone and (example.untyped_storage()._cdata, example.dtype) in written:
                # A view of what an input becomes: AOTAutograd makes its result by this tensor's strides and offset.
                number, offset = written[example.untyped_storage()._cdata, example.dtype]
                outputs.append(outputs_of.view_of_argument(number, View.of(example), offset))
            elif (
                source is None
                and not alone
                and (storage := example.untyped_storage()._cdata) in shared
                and (self.stage == "inference" or storage in numbers or View.of(example) == shared[storage][1])
            ):
                value, whole = shared[storage]
                known = storage in numbers
                if not known:
                    numbers[storage] = len(results) - first
                    results.append(builder.pack(value, whole))
                if self.stage == "inference":
                    outputs.append(outputs_of.view_of_fresh(numbers[storage], whole, View.of(example)))
                elif known:
                    # Saved for the backward pass, with the version of the result, so that autograd sees what a user writes.
                    outputs.append(
                        outputs_of.detached(numbers[storage], None if View.of(example) == whole else View.of(example))
                    )
                else:
                    outputs.append(outputs_of.kept(numbers[storage], template(whole.dtype, whole.size, whole.stride)))
            elif node in made:
                # A result that is also saved for the backward pass: one tensor, so that autograd sees what a user writes.
                outputs.append(outputs_of.again(made[node]))
            else:
                layout = View(example.dtype, tuple(example.shape), tuple(example.stride()))
                number, form = len(results) - first, template(layout.dtype, layout.size, layout.stride)
                if nodes.count(node) > 1:
                    made[node] = number
                    outputs.append(outputs_of.kept(number, form))
                else:
                    outputs.append(outputs_of.fresh(number, form))
                results.append(builder.pack(builder.unmarked(ref, example), layout))
            if lazy.is_lazy(example) and not (source is not None and node is self.placeholders[source]):
                outputs[-1] = outputs_of.marked(outputs[-1], example)
            if example.device.type == "cpu" and not self.results_on_device:
                outputs[-1] = outputs_of.on_host(outputs[-1])
        return outputs

    def _written_from(self) -> dict[tuple[int, torch.dtype], tuple[int, int]]:
        """Storages of values that inputs are overwritten with, in their layout: storage and dtype -> input, and offset there.

        After the run such a value lies in the input. Only while nothing is differentiated: later, AOTAutograd writes it.
        """
        found: dict[tuple[int, torch.dtype], tuple[int, int]] = {}
        if self.stage != "inference":
            return found
        inputs = {
            e.untyped_storage()._cdata for n in self.placeholders if isinstance(e := n.meta.get("val"), torch.Tensor)
        }
        for node in self.module.graph.nodes:
            if node.target is not torch.ops.aten.copy_.default or node.args[0] not in self.placeholders:
                continue
            target, value = (n.meta.get("val") if isinstance(n, torch.fx.Node) else None for n in node.args[:2])
            if not isinstance(target, torch.Tensor) or not isinstance(value, torch.Tensor):
                continue
            alike = (target.dtype, target.shape, target.stride()) == (value.dtype, value.shape, value.stride())
            if alike and value.untyped_storage()._cdata not in inputs and node.args[1] not in self.apart:
                key = value.untyped_storage()._cdata, value.dtype
                found[key] = self.placeholders.index(node.args[0]), value.storage_offset()
        return found


def _strided(placeholders: list[torch.fx.Node]) -> list[int]:
    """Numbers of the inputs that are captured without being contiguous, and that the graph does not write."""
    return [
        i
        for i, n in enumerate(placeholders)
        if isinstance(example := n.meta.get("val"), torch.Tensor)
        and not example.is_contiguous()
        and not lazy.is_lazy(example)  # a copy would not have its marks
        and not any(user.target is torch.ops.aten.copy_.default and user.args[0] is n for user in n.users)
    ]


def _tangents(placeholders: list[torch.fx.Node]) -> list[tuple[int, bool, bool]]:
    """Inputs that autograd makes when it calls: number, and whether conjugated and negated lazily when they were captured.

    Dynamo's guards hold all other inputs to that.
    """
    return [
        (i, example.is_conj(), example.is_neg())
        for i, n in enumerate(placeholders)
        if n.name.startswith("tangents_") and isinstance(example := n.meta.get("val"), torch.Tensor)
    ]


def _without_examples_storage(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Nodes whose examples do not tell by their storage what they share memory with: what operators that take graphs give.

    (PyTorch keeps the examples of a graph that is called twice, so that both calls seem to give the same tensors.)
    """
    found: set[torch.fx.Node] = set()

    def storage(node: torch.fx.Node) -> int | None:
        example = node.meta.get("val")
        return example.untyped_storage()._cdata if isinstance(example, torch.Tensor) else None

    for node in graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            found.add(node)
        elif found:
            given = [n for n in node.all_input_nodes if n in found]
            if any(storage(n) is None or storage(n) == storage(node) for n in given):
                found.add(node)
    return found
