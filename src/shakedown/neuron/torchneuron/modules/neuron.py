"""``torch_neuronx.neuron`` is the device's module, ``torch.neuron``."""

import sys

import torch

sys.modules[__name__] = torch.neuron
for _name in [n for n in sys.modules if n.startswith("torch.neuron.")]:  # `import torch_neuronx.neuron.memory`
    sys.modules[f"torch_neuronx.{_name.removeprefix('torch.')}"] = sys.modules[_name]
