"""The trial tries itself: faults that can be switched on, trials of faulty and of healthy devices, and the table of both.

:mod:`.inject` switches faults on in a process, :mod:`.faults` lists them with what must catch each of them, :mod:`.plan` and
:mod:`.run` make real trials of them, and :mod:`.table` says what was caught, what was missed, and how often a device that is
right raised an alarm.
"""
