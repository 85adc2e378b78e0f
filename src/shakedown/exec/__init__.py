"""``shakedown exec``: run a script that knows nothing of us on the device, and say what happened.

The script's process is an ordinary ``python SCRIPT``: nothing of ours stands before it. ``import torch`` loads the device, which
finds in the environment that it was started by ``shakedown exec``; from then on :mod:`.inside` collects what happened, and
:mod:`.redirect` turns ``"cuda"`` into the device where that was asked for. Processes that the script starts inherit all this.
"""
