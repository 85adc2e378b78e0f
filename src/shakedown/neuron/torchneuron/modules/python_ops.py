"""``torch_neuronx.python_ops``: in TorchNeuron the package of operators that are implemented in Python.

It can be imported, and has no names of its own here: operators are registered by ``import torch``, and none is replaced through
this module. ``torch_neuronx.utils.get_neuron_registered_ops()`` lists them.
"""


def __getattr__(name: str) -> object:
    raise AttributeError(
        f"torch_neuronx.python_ops.{name} is not part of the rehearsal: operators are shakedown's own lowerings, not the classes "
        "of TorchNeuron. torch_neuronx.utils.get_neuron_registered_ops() lists them"
    )
