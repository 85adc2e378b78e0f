"""What ``torch_neuronx.neuron_dynamo_backend`` offers. :mod:`shakedown.neuron.modes.compile` waits for its first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import NEFFExecutionError as NEFFExecutionError

_model_name = "model_default"


def set_model_name(name: str) -> None:
    """The ``model_name`` of :func:`neuron_backend` from now on, where its options do not say."""
    global _model_name
    _model_name = str(name)


def get_model_name() -> str:
    """What :func:`set_model_name` has set; ``model_default`` before."""
    return _model_name


def get_rank() -> int:
    """The rank among the processes of ``torch.distributed``; without it, the number of the device."""
    from ..modes.compile import artefacts

    return artefacts.rank()


def neuron_backend(module: torch.fx.GraphModule, example_inputs: Sequence[Any], **more: Any) -> Callable[..., Any]:
    """``torch.compile(backend=neuron_backend)``: the backend ``"neuron"``, with the model's name as it is set here."""
    from ..modes.compile import neuron

    options = more.pop("options", None)
    if options is None or isinstance(options, dict):
        options = {"model_name": _model_name, **(options or {})}
    return neuron(module, example_inputs, options=options, **more)


def create_neuron_backend(model_name: str | None = None, **options: Any) -> Callable[..., Any]:
    """A backend of its own name and `options` (docs/compile.md). The parameters are our choice: TorchNeuron's are not known."""
    chosen = dict(options) if model_name is None else {"model_name": model_name, **options}

    def backend(module: torch.fx.GraphModule, example_inputs: Sequence[Any], **more: Any) -> Callable[..., Any]:
        own = more.pop("options", None) or {}
        return neuron_backend(module, example_inputs, options={**chosen, **own}, **more)

    return backend
