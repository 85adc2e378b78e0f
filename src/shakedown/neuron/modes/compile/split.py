"""A captured graph as it runs: one program, or several with the operators between them that no program can hold.

An operator without a lowering, one that the active profile keeps off the device, or one whose lowering fails, stands
*outside*: it runs by its eager kernel, which is the CPU where the device has none. The rest is cut into as few programs
as the dependences on such operators allow: a value's stage is the number of outside operators that must run one after
another before it. What the graph writes to its inputs is written by the last program, after everything that may raise.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule, Node

from ... import config, dispatch, events, fallback, profiles, rng, transfer
from ...buffer import is_device_tensor
from ...errors import (
    GraphNotLowered,
    LoweringError,
    NEFFExecutionError,
    ProgramFailed,
    UnsupportedByProfile,
    UnsupportedCompileOption,
)
from ...graph import RANDOM_NUMBER
from ...graph_higher_order import is_random
from ...places import line_of_node
from .compiled import CompiledGraph
from .options import Options

# What can pass from one program to the next, or to an operator between them.
_VALUES = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, bool, int, float)


@dataclass(frozen=True)
class Outside:
    """An operator that no program holds. ``place`` is the line of the user's code that called it, "" where unknown."""

    operator: str
    reason: str
    place: str

    def __str__(self) -> str:
        return f"{self.operator} ({self.reason}){f' called at {self.place}' if self.place else ''}"


@dataclass(frozen=True)
class Split:
    """A graph that is not one program. ``programs`` is 0 where it runs operator by operator, for ``reason``."""

    graph: str
    programs: int
    outside: tuple[Outside, ...]
    reason: str = ""


splits: list[Split] = []  # of this process, in the order in which they were made


class Graph:
    """What a functional graph became; calling it runs it on a list of tensors and numbers and gives the list of results.

    `one_graph`: the user asked for ``fullgraph=True``. `key` of a call is the random key of a graph that this one is a
    piece of.

    Raises:
        GraphNotLowered: an operator has to run outside, with ``one_program``; or, when it is called, a program cannot be
            compiled, without ``fallback_execution``.
        NEFFExecutionError: a program breaks when it is called, without ``fallback_execution``.
        UnsupportedByProfile: the same under ``fullgraph=True`` and a support profile: there it is an error.
        UnsupportedCompileOption: sizes depend on data.
    """

    def __init__(
        self,
        name: str,
        module: GraphModule,
        options: Options,
        *,
        results_on_device: bool = False,
        one_graph: bool = False,
        made: CompiledGraph | None = None,
    ) -> None:
        self.name, self.module, self.options = name, module, options
        self.results_on_device, self.one_graph, self.is_piece = results_on_device, one_graph, made is not None
        _refuse_sizes_of_data(module)
        self.form: _Form = made or self._settle({})

    def __call__(self, arguments: list[Any], key: Any = None) -> list[Any]:
        form = self.form
        if not isinstance(form, CompiledGraph):
            return form(arguments, key)
        drawn = rng.default.offset if key is None and form.random else None
        try:
            return form(arguments, key)
        except LoweringError as error:  # found when it was traced for these inputs: nothing has run yet
            if drawn is not None:
                rng.default.place(rng.default.seed, drawn)
            if isinstance(error, ProgramFailed) and not self.options.fallback_execution:
                kind = NEFFExecutionError if error.ran else GraphNotLowered
                raise kind(
                    f"{error.reason}\n  {config.DISABLE_FALLBACK_EXECUTION.alias}=0, or the option fallback_execution=True, runs "
                    "the operators of such a graph one by one instead"
                ) from error
            if error.node is None:
                self.form = self._by_operator(error.reason)
            else:
                self.form = self._settle({error.node: error.reason})
        return self.form(arguments, key)

    def _settle(self, outside: dict[Node, str]) -> _Form:
        """One program if that is possible, else pieces; `outside` are nodes that are known to need it."""
        limit = config.MAX_PIECES()
        while True:
            try:
                if not outside:
                    return CompiledGraph(self.name, self.module, self.options, results_on_device=self.results_on_device)
                made = Pieces(self, outside)
                if len(made.programs) > limit:
                    why = f"{len(made.programs)} programs, more than {config.MAX_PIECES.name}={limit}"
                    return self._by_operator(why, _outside(outside))
                break
            except LoweringError as error:
                if error.node is None:
                    return self._by_operator(error.reason)
                outside[error.node] = error.reason
        self._announce(Split(self.name, len(made.programs), _outside(outside)))
        return made

    def _by_operator(self, reason: str, outside: tuple[Outside, ...] = ()) -> _Form:
        self._announce(Split(self.name, 0, outside, reason))
        module, host = self.module, _HostResults(self)

        def run(arguments: list[Any], key: Any = None) -> list[Any]:
            given, pairs = host.taken(arguments)
            return host.given_back(list(module(*given)), pairs)

        return run

    def _announce(self, split: Split) -> None:
        """Say once that this graph is not one program; or refuse it, where the user or the profile does not want that."""
        listed = "; ".join(map(str, split.outside[:4]))
        listed += f"; and {len(split.outside) - 4} more" if len(split.outside) > 4 else ""
        if self.options.one_program:
            raise GraphNotLowered(
                f'backend "neuron" cannot make one program of graph {self.name}, and the option one_program asks for that: '
                f"{listed or split.reason}"
            )
        if self.one_graph and profiles.active is not None:
            raise UnsupportedByProfile(
                f"profile {profiles.active.name}: fullgraph=True is an error where an operator cannot be lowered (graph "
                f"{self.name}): {listed or split.reason}"
            )
        splits.append(split)
        for one in split.outside:
            events.record("split", self.name, detail=str(one))
        if split.programs:
            plural = "s" if split.programs > 1 else ""
            text = f"splits graph {self.name} into {split.programs} program{plural} around {listed}"
        else:
            why = "; ".join(filter(None, (split.reason, listed)))
            text = f"runs graph {self.name} operator by operator, because it cannot be one program: {why}"
            if not split.outside:
                events.record("split", self.name, detail=why)
        file, _, line = (split.outside[0].place if split.outside else "").partition(" (")[0].rpartition(":")
        warn_at(f'backend "neuron" {text}', file or __file__, int(line or 1))


def warn_at(text: str, file: str, line: int) -> None:
    """Warn as if the user's own line had: what is on the stack now is Dynamo."""
    warnings.warn_explicit(text, UserWarning, file, line)


_Form: TypeAlias = Callable[..., list[Any]]
_Pairs: TypeAlias = list[tuple[torch.Tensor, torch.Tensor]]


def _refuse_sizes_of_data(module: GraphModule) -> None:
    for node in module.graph.nodes:
        if node.op == "call_function" and any(isinstance(n, torch.SymInt) for t in _leaves(node) for n in t.shape):
            place = line_of_node(node)
            raise UnsupportedCompileOption(
                f'backend "neuron" compiles programs of fixed sizes, but the size of what {node.target} gives depends on '
                f"data{f' (called at {place})' if place else ''}.\n"
                "  Hint: leave fullgraph and torch._dynamo.config.capture_dynamic_output_shape_ops unset: Dynamo then ends the "
                "graph there, and the operator runs between two graphs.\n"
                "  Hint: keep the size fixed: torch.where with three arguments, a mask, or torch.nonzero_static."
            )


def _leaves(node: Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    return [v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, torch.Tensor)]


def _outside(reasons: dict[Node, str]) -> tuple[Outside, ...]:
    return tuple(
        Outside(str(node.target), why.removeprefix(f"{node.target}: "), line_of_node(node))
        for node, why in reasons.items()
    )


# --- pieces -----------------------------------------------------------------------------------------------------------


class _HostResults:
    """CPU tensors given to a graph, and CPU results that its capture has: moved at its two ends, not at each piece's."""

    def __init__(self, graph: Graph) -> None:
        nodes = graph.module.graph.nodes
        placeholders = [n for n in nodes if n.op == "placeholder"]
        self.written = [placeholders.index(n.args[0]) for n in nodes if _writes(n)]
        outputs = next(n for n in reversed(nodes) if n.op == "output").args[0]
        self.on_host = [
            number
            for number, node in enumerate(outputs)
            if isinstance(node, Node)
            and isinstance(value := node.meta.get("val"), torch.Tensor)
            and value.device.type == "cpu"
            and not graph.results_on_device
        ]

    def taken(self, arguments: Sequence[Any]) -> tuple[list[Any], _Pairs]:
        """The arguments on the device; and the CPU tensors among them that are written, each with its device tensor."""
        given = list(arguments)
        pairs: _Pairs = []
        for number, value in enumerate(given):
            if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                given[number] = transfer.to_device(value)
                if number in self.written:
                    pairs.append((value, given[number]))
        return given, pairs

    def given_back(self, results: list[Any], pairs: _Pairs) -> list[Any]:
        """The results where the capture has them, once the CPU tensors in `pairs` are up to date."""
        with torch.no_grad():
            for host, device in pairs:
                host.copy_(device)
        for number in self.on_host:
            if is_device_tensor(results[number]):
                results[number] = transfer.to_host(results[number])
        return results


def _is_of_a_stream(node: Node) -> bool:
    """Whether this is what Dynamo captures of events and streams, by itself or tied to what it comes after."""
    return getattr(node.target, "namespace", "") == "streams" or str(node.target) == "control_deps"


def _writes(node: Node) -> bool:
    """Whether this is one of the copies into the graph's inputs that end a functional graph."""
    return node.target is torch.ops.aten.copy_.default and _node(node.args[0]).op == "placeholder"


def _node(value: Any) -> Node:
    assert isinstance(value, Node)
    return value


@dataclass
class _Program:
    """One program of a graph: its inputs and outputs are values of the whole graph."""

    graph: Graph
    inputs: list[Node]
    outputs: list[Node]


@dataclass
class _Operator:
    """One operator between programs. `forced` is the profile's reason to run it on the CPU."""

    node: Node
    forced: str | None


class Pieces:
    """A graph as programs and the operators between them, in the order in which they run.

    Raises:
        LoweringError: a program cannot be built: ``node`` has to be outside as well, or, without one, nothing helps.
    """

    def __init__(self, whole: Graph, outside: Iterable[Node]) -> None:
        graph = whole.module.graph
        self.name = whole.name
        self.placeholders = [n for n in graph.nodes if n.op == "placeholder"]
        self.returned = list(next(n for n in reversed(graph.nodes) if n.op == "output").args[0])
        self.host = _HostResults(whole)
        self.constants = {n: _constant(whole.module, n) for n in graph.nodes if n.op == "get_attr"}
        self.outside = dict.fromkeys(outside)
        # An operator outside draws for itself, when it runs.
        self.random = _number_random((n for n in graph.nodes if n not in self.outside), whole.is_piece)
        stages = self._stages(graph)
        # Storages that the last program writes: nobody may take a view of one for a value.
        self.written = {s for n in graph.nodes if _writes(n) for s in _storages([_node(n.args[0])])}
        self.kept = [
            n
            for n in dict.fromkeys(n for n in self.returned if isinstance(n, Node))
            if (n.op == "placeholder" or n in self.outside) and self.written & _storages([n])
        ]
        self.programs: list[Graph] = []
        self.steps: list[_Program | _Operator] = []
        last = max(stages.values(), default=0)
        for stage in range(last + 1):
            members = [n for n, s in stages.items() if s == stage and n not in self.outside]
            if members:
                self._add_program(whole, members)
            self.steps += [
                _Operator(n, _forced(n)) for n in graph.nodes if stages.get(n) == stage and n in self.outside
            ]
        self.dead = self._last_uses()

    def _stages(self, graph: torch.fx.Graph) -> dict[Node, int]:
        stages: dict[Node, int] = {}
        latest = -1  # of the operators outside so far: they keep their order
        first = 0  # that what comes now may be in: an event marks a place between what is before it and what is after
        writes: list[Node] = []
        for node in graph.nodes:
            if node.op != "call_function":
                continue
            if _writes(node):
                writes.append(node)
                continue
            if node.target is getitem and node.args[0] in self.outside:
                self.outside[node] = None
            if node in self.outside and _is_mutable(node):
                raise LoweringError(f"{node.target} writes to its arguments")
            stage = first
            for source in node.all_input_nodes:
                if source in stages:
                    later = source in self.outside and node.target is not getitem
                    stage = max(stage, stages[source] + later)
            if node in self.outside:
                if _is_of_a_stream(node):
                    stage = max((stage, *stages.values()))
                    first = stage + 1
                stage = latest = max(stage, latest)
            stages[node] = stage
        stages.update(dict.fromkeys(writes, latest + 1))
        return stages

    def _add_program(self, whole: Graph, members: list[Node]) -> None:
        inside = set(members)
        needed = [n for m in members for n in m.all_input_nodes if n not in inside and n.op != "get_attr"]
        inputs = list(dict.fromkeys(needed))
        returned = {n for n in self.returned if isinstance(n, Node)}
        outputs = [m for m in members if not _writes(m) and (m in returned or any(u not in inside for u in m.users))]
        if not outputs and not any(_writes(m) for m in members):
            return  # nobody wants it
        for value in (*inputs, *outputs):
            if not isinstance(value.meta.get("val"), _VALUES):
                raise LoweringError(f"{value.target} gives what cannot pass from one program to the next")
        name = f"{self.name}.{len(self.programs)}"
        module, back = _module_of(whole.module, members, inputs, outputs)
        try:
            made = CompiledGraph(name, module, whole.options, results_on_device=True, written=frozenset(self.written))
        except LoweringError as error:
            if error.node is not None:
                error.node = back[error.node]
            raise
        piece = Graph(name, module, whole.options, results_on_device=True, one_graph=whole.one_graph, made=made)
        self.programs.append(piece)
        self.steps.append(_Program(piece, inputs, outputs))

    def _last_uses(self) -> list[list[Node]]:
        """For each step, the values that nobody asks for after it, so that their memory is free on the way."""
        seen = {n for n in self.returned if isinstance(n, Node)} | set(self.kept)
        dead: list[list[Node]] = []
        for step in reversed(self.steps):
            used = step.inputs if isinstance(step, _Program) else step.node.all_input_nodes
            dead.append([n for n in dict.fromkeys(used) if n not in seen and n not in self.constants])
            seen.update(used)
        return dead[::-1]

    def __call__(self, arguments: list[Any], key: Any = None) -> list[Any]:
        given, pairs = self.host.taken(arguments)
        arguments.clear()
        values: dict[Any, Any] = {**self.constants, **dict(zip(self.placeholders, given))}
        given.clear()
        if not self.random or key is not None:
            return self._run(values, pairs, key)
        try:
            return self._run(values, pairs, rng.next_key(self.random))
        except torch.OutOfMemoryError:
            rng.give_back(None, self.random)
            raise

    def _run(self, values: dict[Any, Any], pairs: Any, key: Any) -> list[Any]:
        """The steps one after the other, on `values` of the placeholders and constants."""
        kept: dict[Node, Any] = {}
        for number, (step, dead) in enumerate(zip(self.steps, self.dead)):
            if number == len(self.steps) - 1:
                kept = {n: values[n].clone() for n in self.kept}
            if isinstance(step, _Program):
                # Nothing here holds the inputs while the program runs, or after it.
                values.update(zip(step.outputs, step.graph(_taken(values, step.inputs, dead), key)))
            else:
                values[step.node] = run_node(step.node, step.forced, values)
                for node in dead:
                    del values[node]
        values.update(kept)
        return self.host.given_back([values[n] if isinstance(n, Node) else n for n in self.returned], pairs)


def _taken(values: dict[Any, Any], nodes: list[Node], dead: list[Node]) -> list[Any]:
    found = [values[n] for n in nodes]
    for node in dead:
        del values[node]
    return found


def run_node(node: Node, forced: str | None, values: dict[Any, Any]) -> Any:
    """Run one operator between programs; `forced` is a reason for the CPU. (Whoever wants its line looks for this frame,
    as for that of ``torch.fx.Interpreter.run_node``.)
    """
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    if forced is not None:
        assert isinstance(node.target, torch._ops.OpOverload)
        return fallback.run(dispatch.operator_of(node.target), args, kwargs, forced)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _forced(node: Node) -> str | None:
    """Why the active profile has this operator run on the CPU, where its eager kernel would not ask."""
    if profiles.active is None or not isinstance(node.target, torch._ops.OpOverload):
        return None
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    return profiles.active.graph_reason(node.target, args, kwargs, node.meta.get("val"))


def _is_mutable(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _storages(nodes: Iterable[Node]) -> set[int]:
    """Identities of the example storages of these values: values that share memory have the same."""
    return {t.untyped_storage()._cdata for n in nodes for t in _leaves(n)}


def _number_random(nodes: Iterable[Node], numbered: bool) -> int:
    """Give each random operator its number in the whole graph, so that a piece of it draws what the whole would.

    `numbered`: this is a piece of a graph, and they have them. Returns how many there are.
    """
    random = [n for n in nodes if is_random(n)]
    if not numbered:
        for number, node in enumerate(random):
            node.meta[RANDOM_NUMBER] = number
    return len(random)


def _constant(module: GraphModule, node: Node) -> Any:
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    if isinstance(value, torch.Tensor) and value.device.type == "cpu":
        return transfer.to_device(value)
    return value


def _module_of(
    root: GraphModule, members: list[Node], inputs: list[Node], outputs: list[Node]
) -> tuple[GraphModule, dict[Node, Node]]:
    """These nodes as a graph of their own, and which node of the whole each of its nodes is."""
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in members:
        for source in node.all_input_nodes:
            if source.op == "get_attr" and source not in copies:
                copies[source] = graph.node_copy(source)
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[n] for n in outputs))
    return GraphModule(root, graph), {copy: node for node, copy in copies.items()}


def asked_for_one_graph() -> bool:
    """Whether Dynamo captures under ``fullgraph=True`` now; False where this PyTorch does not say (it is private there)."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        return bool(InstructionTranslator.current_tx().one_graph)
    except AttributeError:  # not within a capture, or another PyTorch
        return False
