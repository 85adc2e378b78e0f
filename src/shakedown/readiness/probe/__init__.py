"""Single operators near those of the workload, canaries for dtypes, and the user's own task. Runs in processes of its own.

:mod:`.calls` records the distinct operator calls of one step on the CPU, :mod:`.neighbours` makes variations of their arguments,
:mod:`.measure` runs one call on both sides, :mod:`.run` keeps going when a probe ends its process.
"""
