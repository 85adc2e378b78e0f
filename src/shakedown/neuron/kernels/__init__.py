"""Custom kernels behind ``torch.neuron.wrap_nki`` and ``nki_op`` (:mod:`shakedown.nki`)."""
