"""The backend as Dynamo calls it: what was asked for is checked, then AOTAutograd hands over functional graphs."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from ... import profiles
from ...device import _start
from ...errors import UnsupportedCompileOption
from ...lowering import registry
from .compiled import CompiledGraph

_OPTIONS = {"model_name"}
_numbers = itertools.count()

# Every shape gets a program of its own, so Dynamo must not generalise a size after it has seen a second value.
torch._dynamo.config.automatic_dynamic_shapes = False

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
    """The ``torch.compile`` backend.

    ``mode`` other than "default" warns and behaves as default; unknown ``options`` (Inductor's) warn and are ignored;
    ``model_name`` names the programs. A support profile may have rules of its own on each of them.

    Raises:
        UnsupportedCompileOption: sizes are symbolic (``dynamic=True``).
        UnsupportedByProfile: the active support profile refuses what was asked for.
    """
    _start()
    symbolic = [i for i in example_inputs if isinstance(i, torch.SymInt)]
    ruled: set[str] = set()
    decompositions = registry.decomposition_table()
    if profiles.active is not None:
        ruled = profiles.active.restrict_compile(mode, options, symbolic)
        decompositions = profiles.active.kept_whole(decompositions)
    if mode not in (None, "default") and "mode" not in ruled:
        warnings.warn(f'backend "neuron" has only the default mode: mode={mode!r} behaves as default', stacklevel=2)
    ignored = sorted(set(options or {}) - _OPTIONS)
    if ignored and "options" not in ruled:
        warnings.warn(f'backend "neuron" ignores these options: {", ".join(ignored)}', stacklevel=2)
    if symbolic:
        raise UnsupportedCompileOption(
            f'backend "neuron" compiles one program per shape, so dynamic shapes are refused ({len(symbolic)} symbolic sizes '
            f"were found, such as {symbolic[0]}): pass dynamic=False, or pad the inputs to a few fixed sizes"
        )
    name = f"{(options or {}).get('model_name', 'model_default')}_{next(_numbers)}".lower()
    compiler = aot_autograd(
        fw_compiler=_Compiler(f"{name}_forward"),
        bw_compiler=_Compiler(f"{name}_backward"),
        inference_compiler=_Compiler(f"{name}_inference"),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decompositions,
        keep_inference_input_mutations=True,
    )
    return compiler(module, example_inputs)


class _Compiler:
    """Turns one functional graph into a callable on a list of inputs (AOTAutograd's boxed convention)."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        graph = CompiledGraph(self.name, module)

        def run(inputs: list[Any]) -> list[Any]:
            arguments = list(inputs)
            inputs.clear()  # the caller gave its references away, so that memory can be freed on the way
            return graph(arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run
