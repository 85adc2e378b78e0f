"""``import torch_neuronx`` where AWS's package is not installed: a rehearsal of its public names on this machine's processor.

AWS's package is a directory of this name, which Python prefers to this file where both lie in one folder. Where it lies in
another folder of the path, this module loads it and steps aside, whichever of the two comes first. docs/torchneuron.md
"""

import sys

from shakedown.neuron.torchneuron import standing

_real = standing.elsewhere(__file__)
if _real is not None:
    standing.load(_real)
else:
    standing.take(sys.modules[__name__])

    def __getattr__(name: str) -> object:
        from shakedown.neuron import torchneuron

        return torchneuron.find(name)

    def __dir__() -> list[str]:
        from shakedown.neuron import torchneuron

        return sorted({"__path__", "__version__", *torchneuron.present()})
