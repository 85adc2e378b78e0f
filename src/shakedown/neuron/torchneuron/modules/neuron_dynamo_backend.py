"""``torch_neuronx.neuron_dynamo_backend``: the backend of ``torch.compile`` and what it tells of its programs."""

from shakedown.neuron.inspection import get_dynamo_metrics, reset_dynamo_metrics
from shakedown.neuron.torchneuron.backend import (
    NEFFExecutionError,
    create_neuron_backend,
    get_model_name,
    get_rank,
    neuron_backend,
    set_model_name,
)

__all__ = [
    "NEFFExecutionError",
    "create_neuron_backend",
    "get_dynamo_metrics",
    "get_model_name",
    "get_rank",
    "neuron_backend",
    "reset_dynamo_metrics",
    "set_model_name",
]
