"""Long runs beside each other: the losses of a training run on the CPU, of its twins, and on the target.

Inside a trial :mod:`.train` runs them from the snapshot, one process per mode. For a training script of the user's own there
is ``shakedown parity``: :mod:`.contract` is what the script must do, :mod:`.launch` the process it runs in, :mod:`.run`
all of it. :mod:`.nudge` makes twins. The judging is ``judge/parity.py``.
"""
