"""``torch_neuronx.neuron`` is the device's module, ``torch.neuron``."""

import sys

import torch

sys.modules[__name__] = torch.neuron
