"""Streams and events of the device: ``torch.neuron.Stream``, ``Event`` and what goes with them.

The device runs one thing after the other, in the order in which it was asked, whatever stream it was asked on. So a stream is
a name: work on it runs after all that was queued before, on any stream, and ``wait_stream`` and ``wait_event`` hold without
doing anything. What is real is where in this order an event stands, when everything before it had finished, and waiting.

Imported by ``import torch``, and light: the runtime is asked only once it runs.
"""

from __future__ import annotations

import atexit
import itertools
import queue
import threading
import time
from typing import Any

import torch

from ..devices import current_stream as current_stream
from ..devices import stream as stream
from . import events
from .modes import adaptive

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "query",
    "record_event",
    "set_stream",
    "stream",
    "wait_event",
    "wait_stream",
]

_TYPE = "neuron"
_DEFAULT_ID = 0
_A_MOMENT = 1e-3  # seconds
_ids = itertools.count(_DEFAULT_ID + 1)
_local = threading.local()  # .stream: the current one of a thread that has chosen one


# --- a place in the order -----------------------------------------------------------------------------------------------


class _Mark:
    """A place in the device's order: everything queued before it. ``done_ns`` is when that had finished, once it is known."""

    __slots__ = ("_token", "done_ns")

    def __init__(self, timed: bool) -> None:
        from . import device

        self._token: Any = None
        self.done_ns: int | None = None
        if device.is_initialized():
            from . import runtime

            adaptive.submit("event")
            self._token = runtime.token()
        if self._token is None:  # nothing was ever queued, or whatever was dispatched has finished
            self.done_ns = time.perf_counter_ns()
        elif timed:
            _clock.watch(self)

    def reached(self) -> bool:
        """Whether everything before it has finished."""
        token = self._token
        if token is None:
            return True
        from . import runtime

        return runtime.finished(token)

    def wait(self) -> None:
        """Return when everything before it has finished."""
        token = self._token
        if token is not None:
            from . import runtime

            runtime.wait_for(token)
            if self.done_ns is None:
                self.done_ns = time.perf_counter_ns()
            self._token = None


class _Clock:
    """Notes when marks are reached, on a thread of its own; only a client that runs asynchronously needs it."""

    def __init__(self) -> None:
        self._marks: queue.SimpleQueue[_Mark | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def watch(self, mark: _Mark) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="shakedown-events", daemon=True)
            self._thread.start()
            atexit.register(self.stop)
        self._marks.put(mark)

    def stop(self) -> None:
        """At exit: a thread that waits for programs while Python ends brings it down."""
        self._marks.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (mark := self._marks.get()) is not None:
            mark.wait()


_clock = _Clock()


# --- events -------------------------------------------------------------------------------------------------------------


class Event(torch.Event):
    """A mark in a stream that can be waited for, and timed.

    Args:
        enable_timing: :meth:`elapsed_time` may be asked.
        blocking: accepted; waiting never spins here.
        device: the device, where the general ``torch.Event`` is asked for one of ours.

    Raises:
        ValueError: there is no such device; or `interprocess`: events are not shared between processes.
    """

    enable_timing: bool

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, *, device: Any = None
    ) -> Event:
        _number(device)
        if interprocess:
            raise ValueError(f"events of device {_TYPE!r} cannot be shared between processes")
        made = super().__new__(cls, device=_TYPE, enable_timing=bool(enable_timing), blocking=bool(blocking))
        made.enable_timing = bool(enable_timing)
        made._mark = None
        return made

    _mark: _Mark | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Mark the place after everything that was queued so far; the place marked before is forgotten.

        Operators that adaptive eager has recorded are run: what it defers cannot be marked. Their errors are kept for the
        next synchronisation.
        """
        _checked(stream)
        self._mark = _Mark(self.enable_timing)

    def wait(self, stream: Any = None) -> None:
        """Have what is queued on `stream` from now on run after the mark. It does anyway: the device keeps the order."""
        _checked(stream)

    def query(self) -> bool:
        """Whether everything before the mark has finished; True where nothing was marked."""
        return self._mark is None or self._mark.reached()

    def synchronize(self) -> None:
        """Wait until everything before the mark has finished. Returns at once where nothing was marked.

        Raises:
            Exception: the first error that was kept of operators before.
        """
        if self._mark is not None:
            start_ns = time.perf_counter_ns()
            self._mark.wait()
            events.record("synchronize", "event", start_ns=start_ns, duration_ns=time.perf_counter_ns() - start_ns)
            adaptive.flush("synchronize")

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from the completion of all before this mark to that of all before `end_event`'s.

        Raises:
            RuntimeError: one of the two has no timing, was not recorded, or has not been reached yet; or they are of
                different devices.
        """
        if not isinstance(end_event, Event):
            device = getattr(end_event, "device", None)
            if device is None:
                raise TypeError(f"elapsed_time() takes an event, got {type(end_event).__name__}")
            raise RuntimeError(f"Both events must be on the same device, but they are on {self.device} and {device}.")
        if not (self.enable_timing and end_event.enable_timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self._mark is None or end_event._mark is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end_event.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        for mark in (self._mark, end_event._mark):
            mark.wait()  # it is reached: the time is noted where the clock has not come to it yet
        began, ended = self._mark.done_ns, end_event._mark.done_ns
        assert began is not None
        assert ended is not None
        return (ended - began) / 1e6

    def __repr__(self) -> str:
        return f"<torch.neuron.Event enable_timing={self.enable_timing} recorded={self._mark is not None}>"


# --- streams ------------------------------------------------------------------------------------------------------------


class Stream(torch.Stream):
    """A stream of the device: a name for a place in the one order in which it runs everything.

    Args:
        device: the device (None: the current one).
        priority: kept, and without effect.
        stream_id, device_index, device_type: instead of these two, the stream of that number.

    Raises:
        ValueError: there is no such device, or it is of another type.
    """

    priority: int

    def __new__(
        cls,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int | None = None,
    ) -> Stream:
        index = _number(device if device_index is None else device_index)
        if device_type not in (None, _type_number()):
            raise ValueError(f"expected device type {_type_number()} ({_TYPE}), got {device_type}")
        number = next(_ids) if stream_id is None else stream_id
        made = super().__new__(cls, stream_id=number, device_index=index, device_type=_type_number())
        made.priority = priority
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        """Have what is queued from now on run after `event`. It does anyway: the device keeps the order."""
        if not isinstance(event, Event):
            raise TypeError(f"expected an event of device {_TYPE!r}, got {type(event).__name__}")
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """Have what is queued from now on run after all that `stream` has now. It does anyway: the device keeps the order."""
        _checked(stream)

    def record_event(self, event: Event | None = None) -> Event:
        """`event` (None: a new one), recorded on this stream."""
        made = Event() if event is None else event
        made.record(self)
        return made

    def query(self) -> bool:
        """Whether everything queued so far has finished. What adaptive eager has recorded is run for it."""
        mark, until = _Mark(timed=False), time.perf_counter() + _A_MOMENT
        while not (reached := mark.reached()) and time.perf_counter() < until:
            time.sleep(_A_MOMENT / 20)  # an idle device takes a moment, too
        return reached

    def synchronize(self) -> None:
        """Wait until everything queued so far has finished; as :func:`torch.neuron.synchronize`, which see for errors."""
        from . import device

        device.synchronize(self.device_index)

    def __enter__(self) -> Stream:
        _entered().append(chosen_stream())
        set_stream(self)
        return self

    def __exit__(self, *exc: object) -> None:
        set_stream(_entered().pop())

    def __repr__(self) -> str:
        return f"<torch.neuron.Stream device={self.device} stream_id={self.stream_id}>"


def _type_number() -> int:
    return int(torch._C._autograd.DeviceType.PrivateUse1)


def _entered() -> list[Stream]:
    """The streams that were current before those that this thread is inside of."""
    try:
        return _local.before
    except AttributeError:
        found: list[Stream] = []
        _local.before = found
        return found


def _checked(stream: Any) -> Stream:
    """`stream`, or the current one.

    Raises:
        TypeError: it is no stream.
        ValueError: it is one of another device.
    """
    if stream is None:
        return chosen_stream()
    if not isinstance(stream, torch._C.Stream):
        raise TypeError(f"expected a stream, got {type(stream).__name__}")
    if stream.device.type != _TYPE:
        raise ValueError(f"expected a stream of device {_TYPE!r}, got one of {stream.device}")
    if isinstance(stream, Stream):
        return stream
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index)


def _number(device: Any) -> int:
    """The index meant by `device`, a ValueError for none of ours. Dynamo asks on every call of what it has captured, and looks at
    each function outside of this directory that it meets then: the usual answers are given here.
    """
    if device is None or (type(device) is int and device == 0):
        return 0
    if type(device) is torch.device and device.type == _TYPE and not device.index:
        return 0
    from .device import _index

    return _index(device)


def default_stream(device: Any = None) -> Stream:
    """The stream that is current where none was chosen; its ``stream_id`` is 0."""
    return Stream(stream_id=_DEFAULT_ID, device_index=_number(device))


def chosen_stream(device: Any = None) -> Stream:
    """The stream that this thread has chosen, or the default stream: :func:`current_stream`, where nothing is captured."""
    chosen = getattr(_local, "stream", None)
    if chosen is None:
        return default_stream(device)
    _number(device)
    return chosen


def current_id() -> int:
    """The number of the stream that is current in this thread, for whoever asks at every operator."""
    chosen = getattr(_local, "stream", None)
    return _DEFAULT_ID if chosen is None else chosen.stream_id


def set_stream(stream: Any) -> None:
    """Make `stream` this thread's current one; None changes nothing."""
    if stream is not None:
        _local.stream = _checked(stream)


class StreamContext:
    """Context manager: `stream` is current inside, and the one before again afterwards. None changes nothing."""

    def __init__(self, stream: Any) -> None:
        self.stream = None if stream is None else _checked(stream)
        self._before: list[Stream] = []  # one for each time that this object is entered

    def __enter__(self) -> None:
        self._before.append(chosen_stream())
        set_stream(self.stream)

    def __exit__(self, *exc: object) -> None:
        set_stream(self._before.pop())


def wait_stream(stream: Any) -> None:
    """``chosen_stream().wait_stream(stream)``."""
    chosen_stream().wait_stream(stream)


def wait_event(event: Any) -> None:
    """``chosen_stream().wait_event(event)``."""
    chosen_stream().wait_event(event)


def record_event(event: Event | None = None) -> Event:
    """``chosen_stream().record_event(event)``."""
    return chosen_stream().record_event(event)


def query() -> bool:
    """``chosen_stream().query()``."""
    return chosen_stream().query()
