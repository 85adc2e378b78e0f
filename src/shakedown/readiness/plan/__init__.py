"""Before the trial: what a step will ask of the target, found without running it on any device.

:mod:`.trace` lists the operators of a step, :mod:`.support` says what a support profile makes of each, :mod:`.buckets` turns
lengths into padded shapes, :mod:`.forecast` compares all of it with the requirements. Nothing here computes a number.
"""
