"""``torch_neuronx.distributed``: not here yet."""

from shakedown.neuron.torchneuron import ABSENT

raise ModuleNotFoundError(
    ABSENT["distributed"]
)  # without a name, so that `from torch_neuronx import distributed` shows it
