"""The backend as Dynamo calls it: what was asked for is checked, then AOTAutograd hands over functional graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from ... import profiles, torch_gaps
from ...buffer import DEVICE
from ...device import init
from ...graph_higher_order import settle_rng_states
from ...lowering import registry
from . import artefacts, breaks, precompile
from . import options as asked
from .options import Options
from .split import Graph, asked_for_one_graph

# Every shape gets a program of its own, so Dynamo must not generalise a size after it has seen a second value.
torch._dynamo.config.automatic_dynamic_shapes = False
torch_gaps.let_floats_vary()
breaks.listen()
precompile.switch_on()

# Between two graphs Dynamo watches every Python frame, the device's own kernels included: they are not the user's code.
for _package in ("shakedown.neuron", "jax", "jaxlib", "ml_dtypes", "opt_einsum"):
    torch._dynamo.trace_rules.add(_package)


def neuron(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """The ``torch.compile`` backend; docs/compile.md has every option and variable.

    ``mode`` other than "default" warns and behaves as default; unknown ``options`` (Inductor's) warn and are ignored.
    A support profile may have rules of its own on each of them.

    Raises:
        UnsupportedCompileOption: sizes are symbolic (``dynamic=True``), an option has a wrong value, or inputs are on the
            CPU or on several devices where an option forbids it.
        GraphNotLowered: the graph cannot be one program, and the option ``one_program`` asks for that.
        UnsupportedByProfile: the active support profile refuses what was asked for.
    """
    init()  # not in a process that was forked from one that uses the device: JAX's threads are not there
    precompile.switch_on()
    ruled: set[str] = set()
    decompositions = registry.decomposition_table()
    sizes = asked.symbolic_sizes(example_inputs)
    if profiles.active is not None:
        ruled = profiles.active.restrict_compile(mode, options, sizes)
        decompositions = profiles.active.kept_whole(decompositions)
    chosen = asked.read(mode, options, ruled)
    if sizes:
        asked.refuse_symbolic(module, sizes)
    asked.refuse_jagged(module, example_inputs)
    if not chosen.copies_cpu_inputs:
        asked.refuse_cpu_inputs(module, example_inputs)
    back_to = asked.common_device(example_inputs) if chosen.retain_device else None
    name = f"{chosen.model_name}_{next(precompile.numbers)}"
    breaks.report.captured(name, module)
    artefacts.captured(name, module)
    # A graph captured for CPU tensors alone runs on the device, and its results stay there.
    moved = _are_all_on_cpu(example_inputs)
    packs = precompile.is_on() and back_to is None  # moving results is no part of what AOTAutograd packs
    compiler_of = partial(_compiler, packs, name, chosen, moved)
    compiler = aot_autograd(
        fw_compiler=compiler_of("forward", results_on_device=moved),
        bw_compiler=compiler_of("backward"),  # gradients go to where their tensors are
        inference_compiler=compiler_of("inference", results_on_device=moved),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decompositions,
        keep_inference_input_mutations=True,
    )
    with precompile.graph_cache(packs):
        run = compiler(module, example_inputs)
    return run if back_to is None or back_to.type == DEVICE.type else _returning_to(back_to, run)


def _are_all_on_cpu(example_inputs: Sequence[Any]) -> bool:
    devices = {t.device.type for t in example_inputs if isinstance(t, torch.Tensor)}
    return devices == {"cpu"}


def _returning_to(device: torch.device, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` with its results moved to `device`, as a step that autograd sees."""

    @torch._dynamo.disable(reason="moves results of a compiled graph")
    def moving(*inputs: Any) -> Any:
        return [r.to(device) if isinstance(r, torch.Tensor) else r for r in run(*inputs)]

    return moving


def _compiler(packs: bool, name: str, options: Options, moved: bool, part: str, **more: Any) -> Callable[..., Any]:
    compiler = _Compiler(f"{name}_{part}", options, packs=packs, moved=moved, **more)
    return precompile.packable(compiler) if packs else compiler


class _Compiler:
    """Turns one functional graph into a callable on a list of inputs (AOTAutograd's boxed convention)."""

    def __init__(
        self, name: str, options: Options, *, packs: bool, moved: bool, results_on_device: bool = False
    ) -> None:
        self.name, self.options, self.packs = name, options, packs
        self.moved, self.results_on_device = moved, results_on_device
        self.one_graph = asked_for_one_graph()  # now: the backward pass may be compiled later

    def __call__(self, module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        settle_rng_states(module.graph)
        if self.moved:
            _move_factories(module.graph)
        arguments: dict[str, Any] = {
            "name": self.name,
            "options": self.options,
            "results_on_device": self.results_on_device,
            "one_graph": self.one_graph,
        }
        if self.packs:
            return precompile.packing(Graph, module, arguments)
        graph = Graph(module=module, **arguments)

        def run(inputs: list[Any]) -> list[Any]:
            arguments = list(inputs)
            inputs.clear()  # the caller gave its references away, so that memory can be freed on the way
            return graph(arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def _move_factories(graph: torch.fx.Graph) -> None:
    """Let what the graph makes on the CPU be made on the device, where its inputs will be."""
    for node in graph.nodes:
        device = node.kwargs.get("device")
        if isinstance(device, torch.device) and device.type == "cpu":
            node.kwargs = {**node.kwargs, "device": DEVICE}
