"""Compiled mode: a program cannot be stopped inside, so the graph that is compiled is made smaller until it is right.

The graphs are captured by the same front end that the target's backend stands behind, with the values that they were given.
A part of a graph, fed with what eager execution of the operators before it gives, is compiled by the target's backend and
compared with the same operators one by one and with float64. Halving finds the shortest beginning that differs, then the
latest start from which it still differs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from . import again, trees
from .case import Bench, Line, Name, Program
from .lab import Lab
from .result import Numbers

Progress = Callable[[str], None]


@dataclass
class Captured:
    """One functional graph of ATen operators and the values that it was called with first."""

    phase: str  # forward | backward
    module: fx.GraphModule
    inputs: list[Any]


@dataclass(frozen=True)
class Part:
    """The smallest part that differs: its program, what is wrong, where its last operator comes from."""

    phase: str
    program: Program
    wrong: list[Numbers]
    names: list[str]
    module: str | None
    line: str
    number: int
    of: int


def capture(lab: Lab) -> list[Captured]:
    """Run one forward and backward pass with a backend that keeps each graph and runs its operators as eager does."""
    kept: list[Captured] = []

    def keep(phase: str) -> Callable[..., Any]:
        def compiler(module: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
            def run(*values: Any) -> Any:
                if not any(graph.module is module for graph in kept):
                    copies = [v.detach().clone() if isinstance(v, Tensor) else v for v in values]
                    kept.append(Captured(phase, module, copies))
                return module(*values)

            return make_boxed_func(run)

        return compiler

    backend = aot_autograd(
        fw_compiler=keep("forward"), bw_compiler=keep("backward"), inference_compiler=keep("forward")
    )
    torch._dynamo.reset()
    side = lab.target_side
    side.reset()
    forward = torch.compile(lab.workload.forward, backend=backend, dynamic=False)
    _, loss = lab.run(side, forward)
    if lab.trains and loss is not None:
        loss.backward()
    return kept


class Values(fx.Interpreter):
    """Runs a graph operator by operator and keeps the value of every node."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)

    def of(self, inputs: list[Any]) -> dict[fx.Node, Any]:
        with torch.no_grad():
            self.run(*inputs, enable_io_processing=False)
        return dict(self.env)


def shrink(lab: Lab, graph: Captured, said: Progress) -> Part | None:
    """The smallest part of `graph` whose compiled result differs; None when the whole graph is right."""
    values = Values(graph.module).of(graph.inputs)
    nodes = [n for n in graph.module.graph.nodes if n.op == "call_function"]
    if not nodes:
        return None
    bench = Bench(lab.limit, lab.demand, lab.job.dtype)
    cut = _Cut(graph, nodes, values, lab)

    @cache
    def wrong(first: int, last: int) -> list[Numbers]:
        said(f"compiling operators {first + 1} to {last + 1} of {len(nodes)} of the {graph.phase} graph")
        program = cut.program(first, last)
        return bench.differs(program) if program.results else []

    if not wrong(0, len(nodes) - 1):
        return None
    first, last = 0, _least(0, len(nodes) - 1, lambda end: bool(wrong(0, end)))
    if not wrong(0, last):  # no beginning is wrong for good: only the whole is known to differ
        last = len(nodes) - 1
    first = last - _least(0, last, lambda back: bool(wrong(last - back, last)))
    found = wrong(first, last)
    if not found:
        first, found = 0, wrong(0, last)
    program = cut.program(first, last)
    node = nodes[last]
    for n in reversed(nodes[first : last + 1]):
        if n.target is not operator.getitem:
            node = n
            break
    path, line = _origin(node)
    names = [again.full_name(n.target) for n in nodes[first : last + 1] if isinstance(n.target, torch._ops.OpOverload)]
    return Part(graph.phase, program, found, names, path, line, nodes.index(node) + 1, len(nodes))


def _least(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The least number in [low, high] for which `holds`, given that it holds for `high` and for all above the least."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


class _Cut:
    """Programs out of neighbouring nodes of a graph."""

    def __init__(self, graph: Captured, nodes: list[fx.Node], values: dict[fx.Node, Any], lab: Lab) -> None:
        self.nodes, self.values, self.lab = nodes, values, lab
        self.returned = set(next(n for n in graph.module.graph.nodes if n.op == "output").all_input_nodes)

    def program(self, first: int, last: int) -> Program:
        """Operators `first` to `last`, fed with eager's values; compared is what others read, and the last one's result."""
        inside = set(self.nodes[first : last + 1])
        tensors: dict[str, Tensor] = {}
        on_host: set[str] = set()

        def name(node: fx.Node) -> Name:
            if node in inside:
                return Name(node.name)
            value = self.values[node]
            if isinstance(value, Tensor):
                if node.name not in tensors:
                    tensors[node.name] = trees.host(value)
                    if value.device.type == "cpu" and self.lab.device.type != "cpu":
                        on_host.add(node.name)
                return Name(f't["{node.name}"]')
            return value  # a number

        lines = []
        results: dict[str, str] = {}
        for node in self.nodes[first : last + 1]:
            if node.target is operator.getitem and node.args[0] not in inside:
                inside.discard(node)  # its operator lies outside, so the part itself comes in as a value
                continue
            args = fx.node.map_arg(node.args, name)
            kwargs = fx.node.map_arg(node.kwargs, name)
            lines.append(Line(node.name, node.target, list(args), dict(kwargs)))
            read = node in self.returned or any(user not in inside for user in node.users)
            if isinstance(self.values[node], Tensor) and (read or node is self.nodes[last]) and not _random(node):
                results[node.name] = node.name
        return Program(
            tuple(lines), tensors, results, self.lab.target.device, self.lab.target.backend, frozenset(on_host)
        )


def _random(node: fx.Node) -> bool:
    source = node.args[0] if node.target is operator.getitem else node
    target = source.target if isinstance(source, fx.Node) else None
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def _origin(node: fx.Node) -> tuple[str | None, str]:
    """Module and line of the user's that a node was captured from, as Dynamo notes them."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    path = None
    for name, _ in stack.values():
        path = _module_name(name)
    line = ""
    for text in (node.meta.get("stack_trace") or "").splitlines():
        text = text.strip()
        if text.startswith("File ") and "/torch/" not in text:
            file, number = text.removeprefix("File ").split(", line ")[:2]
            line = f"{Path(file.strip(chr(34))).name}:{number.split(',')[0]}"
    return path, line


def _module_name(text: str) -> str:
    """Dynamo's ``L['model'].blocks[0].norm`` as PyTorch's ``blocks.0.norm``."""
    bare = text.removeprefix("L['").partition("']")[2] if text.startswith("L['") else text
    for old, new in (("._modules['", "."), ("['", "."), ("']", ""), ("[", "."), ("]", "")):
        bare = bare.replace(old, new)
    return bare.strip(".")
