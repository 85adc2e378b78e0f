"""One record for each program that ``torch.compile`` made of a graph: where it comes from and what making it took."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.utils import counters

from ... import events

_COLLECTIVES = ("_c10d_functional", "c10d", "_dtensor")  # namespaces of operators that exchange data between processes


@dataclass(frozen=True)
class GraphMetrics:
    """A program of a compiled graph. The fields are those of TorchNeuron's ``get_dynamo_metrics``; times are microseconds.

    ``graph_id`` is a hash of what the program computes, ``graph_name`` is ``{model}_{number}_{forward|backward|inference}_
    {nth}``: the nth combination of input strides that this graph was compiled for. ``timestamp`` is in seconds since 1970.
    ``torch_neuronx_fx_passes_us`` went into the captured graph (checking what can be lowered, splitting),
    ``torch_neuronx_lower_us`` from graph to StableHLO, ``torch_neuronx_compile_us`` into XLA or into loading from a cache.
    """

    graph_id: str
    graph_name: str
    model_name: str
    has_collectives: bool
    graph_node_count: int
    timestamp: float
    torch_neuronx_fx_passes_us: float
    torch_neuronx_lower_us: float
    torch_neuronx_compile_us: float


records: list[GraphMetrics] = []


class Stopwatch:
    """Times the making of one program; ``sources`` are the caches that its executable came from, or "compiled"."""

    def __init__(self) -> None:
        self.lower_ns = self.compile_ns = 0
        self.sources: list[str] = []

    @contextmanager
    def lowering(self) -> Iterator[None]:
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self.lower_ns += time.perf_counter_ns() - start

    @contextmanager
    def first_run(self) -> Iterator[None]:
        """While open, this process traces and compiles the program, or loads it: the event stream says what took how long."""

        def heard(event: events.Event) -> None:
            if event.kind == "trace":
                self.lower_ns += event.duration_ns
            elif event.kind == "compile":
                self.compile_ns += event.duration_ns
                self.sources.append(event.detail)

        with events.subscribe(heard):
            yield


def note(
    name: str,
    model_name: str,
    nth: int,
    nodes: Iterable[torch.fx.Node],
    text: Callable[[], str],
    fx_ns: int,
    took: Stopwatch,
) -> GraphMetrics:
    """Keep the record of a program of the graph `name`, and count it in ``torch._dynamo.utils.counters["neuron"]``."""
    operators = [n for n in nodes if n.op.startswith("call_")]
    collectives = any(getattr(n.target, "namespace", "") in _COLLECTIVES for n in operators)
    record = GraphMetrics(
        graph_id=hashlib.sha256(text().partition("\n")[2].encode()).hexdigest(),
        graph_name=f"{name}_{nth}",
        model_name=model_name,
        has_collectives=collectives,
        graph_node_count=len(operators),
        timestamp=time.time(),
        torch_neuronx_fx_passes_us=fx_ns / 1e3,
        torch_neuronx_lower_us=took.lower_ns / 1e3,
        torch_neuronx_compile_us=took.compile_ns / 1e3,
    )
    records.append(record)
    counters["neuron"]["compiled_graphs"] += 1
    if collectives:
        counters["neuron"]["graphs_with_collectives"] += 1
    _tell_dynamo(record)
    return record


def _tell_dynamo(record: GraphMetrics) -> None:
    """Enter the three phases where ``torch._dynamo.utils.compile_times()`` reads; it is private, so it may be gone."""
    table: Any = getattr(torch._dynamo.utils, "compilation_time_metrics", None)
    if table is not None:
        for phase in ("fx_passes", "lower", "compile"):
            name = f"torch_neuronx_{phase}"
            table.setdefault(name, []).append(getattr(record, f"{name}_us") / 1e6)
