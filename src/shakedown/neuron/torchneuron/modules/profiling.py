"""``torch_neuronx.profiling``: what configures and exports a profile of the device."""

from shakedown.neuron.profiling import NeuronConfig, NeuronProfiler, ProfileMode

__all__ = ["NeuronConfig", "NeuronProfiler", "ProfileMode"]
