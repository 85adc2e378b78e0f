"""The trial: does this workload compute the same thing on that device, what ran where, and what did it cost?

Data takes one path, a frozen value at each stage::

    workload -> snapshot -> runner -> worker -> evidence -> judgement -> record -> report

Only the worker processes import torch; ``judge`` imports neither torch nor JAX, so a record can be judged again
anywhere. ``docs/trial.md`` explains every number.
"""
