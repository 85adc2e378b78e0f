"""The submodules of ``torch_neuronx``, one file each: Python loads them by that name, as ``torch_neuronx.metrics``.

Nothing here is imported as a part of shakedown, and nothing here does anything: what they show lies in :mod:`shakedown.neuron`.
"""
