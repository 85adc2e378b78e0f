"""What the device did while one profile ran: heard from the event stream, and told in the profiler's clock afterwards."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from .. import events, log, streams
from ..modes import adaptive
from .clock import Bracket, Clock, Span, fit, mark, time_of_day
from .frames import Frames, Taker, written
from .neuron_config import ALL_KINDS, KINDS, NeuronConfig, ProfileMode
from .sampler import Sampler

DEVICE_TIME = frozenset({"execute", "transfer"})  # what counts as the device's time; the rest is what the runtime did
_NOT_SHOWN = frozenset({"cache", "precompile", "unknown", "compile-only"})
_FUSED = "adaptive::"


@dataclass(frozen=True, slots=True)
class Call:
    """The call of an operator that caused something: its name, when (ns) and on which thread of the system it was made."""

    name: str
    start: int
    end: int
    thread: int
    frames: Frames = ()

    @property
    def stack(self) -> list[str]:
        return written(self.frames)


@dataclass(slots=True)
class DeviceEvent:
    """One event of the device, in ns of the profiler's clock.

    ``calls`` are what caused it: one call in eager execution, all members of a fused program of adaptive eager.
    """

    kind: str
    name: str
    start: int
    end: int
    thread: int
    calls: tuple[Call, ...]
    nbytes: int = 0
    detail: str = ""
    phase: str = ""
    core: int = 0
    stream: int = 0

    @property
    def title(self) -> str:
        """The name in tables and traces: of a program that runs its own, of anything else what was done to it."""
        return self.name if self.kind in ("execute", "other", self.name) else f"{self.kind} {self.name}"

    @property
    def timed(self) -> bool:
        """Whether it is time of the device, and not of the runtime."""
        return self.kind in DEVICE_TIME


class _Called(NamedTuple):
    """A call that adaptive eager recorded: when (ns) and on which thread of the system."""

    name: str
    at: int
    thread: int
    frames: Frames


# An event, when it began (ns), the thread of the system, the stream, the user's frames, and the calls that it executes. A plain
# tuple, since one is made for every operator.
_Heard: TypeAlias = tuple[events.Event, int, int, int, Frames, tuple[_Called, ...]]


@dataclass
class Session:
    """Listens from :meth:`start` to :meth:`stop`; :meth:`told` gives the events."""

    config: NeuronConfig | None = None
    with_stack: bool = False
    memory: bool = False
    paused: bool = False
    dropped: int = 0
    clock: Clock | None = None
    sampler: Sampler | None = None
    _heard: list[_Heard] = field(default_factory=list)
    _threads: dict[int, int] = field(default_factory=dict)
    _called: deque[_Called] = field(default_factory=deque)
    _brackets: list[list[Bracket]] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)
    _taker: Taker | None = None
    _told: list[DeviceEvent] | None = None

    def start(self) -> None:
        """Listen, and put marks into the profile, which is running by now."""
        self._taker = Taker() if self.with_stack else None
        config = self.config
        kinds = ALL_KINDS if config is None else config.kinds
        self._kinds = kinds if self.memory else kinds - {"memory"}
        self._cores = None if config is None else config.cores
        self._most = None if config is None else config.max_events_per_nc
        self._counts: dict[int, int] = {}
        modes = [] if config is None else config.modes
        if ProfileMode.CPU_UTIL in modes or ProfileMode.HOST_MEMORY in modes:
            self.sampler = Sampler(processor=ProfileMode.CPU_UTIL in modes, memory=ProfileMode.HOST_MEMORY in modes)
            self._stack.enter_context(self.sampler)
        self._fallback = time_of_day()
        self._brackets.append(mark())
        if self.memory:
            from .. import memory

            self._stack.enter_context(memory.telling())
        if adaptive.enabled():  # operators run later than they are called
            self._stack.enter_context(events.watch(self._note_call))
        self._stack.enter_context(events.subscribe(self._hear))

    def finish(self) -> None:
        """Have the device do what it has been given, so that it belongs to the profile. Raises what the device raises."""
        from .. import device

        before = len(self._heard)
        device.synchronize()
        asked_here = [h for h in self._heard[before:] if h[0].kind == "synchronize"]
        self._heard[before:] = [h for h in self._heard[before:] if h not in asked_here[-1:]]

    def stop(self) -> None:
        """Listen no more; the profile is still running."""
        self._stack.close()
        self._brackets.append(mark())
        if self.dropped:
            log.warn_once(
                f"the profile holds the first {self._most} events of each core; {self.dropped} more were dropped "
                "(max_events_per_nc)"
            )

    # --- listening ------------------------------------------------------------------------------------------------------

    def _note_call(self, tally: events.Tally) -> None:
        if tally.detail != events.COMPOSITE:
            frames = () if self._taker is None else self._taker.take()
            self._called.append(_Called(tally.name, time.perf_counter_ns(), self._thread(), frames))

    def _hear(self, event: events.Event) -> None:
        kind: str = event.kind
        calls: tuple[_Called, ...] = ()
        if self._called:
            calls = self._causes(event)
        if self.paused or (kind if kind == "execute" else _kind_of(event)) not in self._kinds:
            return
        core = 0  # of the only device there is
        if self._cores is not None and core not in self._cores:
            return
        if self._most is not None and kind != "memory":
            seen = self._counts[core] = self._counts.get(core, 0) + 1
            if seen > self._most:
                self.dropped += 1
                return
        frames = () if self._taker is None or calls or kind == "memory" else self._taker.take()
        at = event.start_ns or time.perf_counter_ns()
        self._heard.append((event, at, self._thread(), streams.current_id(), frames, calls))

    def _thread(self) -> int:
        """The system's number of the calling thread, which is a call of the system."""
        ours = threading.get_ident()
        try:
            return self._threads[ours]
        except KeyError:
            found = self._threads[ours] = threading.get_native_id()
            return found

    def _causes(self, event: events.Event) -> tuple[_Called, ...]:
        """The calls that adaptive eager recorded and that `event` is the execution of. They run in the order of their calls."""
        called = self._called
        if event.kind == "flush":  # everything that was recorded before has run, or never will
            while called and called[0].at < event.start_ns:
                called.popleft()
        elif event.kind == "execute":
            if event.name.startswith(_FUSED):
                found = tuple(called)
                called.clear()
                return found
            for place, call in enumerate(called):
                if call.name == event.name:
                    for _ in range(place + 1):
                        called.popleft()
                    return (call,)
        return ()

    # --- telling --------------------------------------------------------------------------------------------------------

    def set_clock(self, spans: Iterable[Span]) -> Clock:
        """Fit the clock, from where the profile has the marks; once."""
        if self.clock is None:
            self.clock = fit(self._brackets, list(spans)) or self._fallback
        return self.clock

    def told(self) -> list[DeviceEvent]:
        """The events in the order in which they began. After :meth:`set_clock`."""
        if self._told is None:
            assert self.clock is not None
            convert, made = self.clock.convert, []
            for event, start, thread, stream, frames, executes in self._heard:
                end = start + event.duration_ns
                called = executes or (_Called(event.name, 0, thread, frames),)
                calls = tuple(
                    Call(c.name, convert(c.at or start), convert(c.at or end), c.thread, c.frames) for c in called
                )
                made.append(
                    DeviceEvent(
                        _kind_of(event),
                        event.name if _kind_of(event) != "other" else f"{event.kind} {event.name}",
                        convert(start),
                        convert(end),
                        thread,
                        calls,
                        -event.nbytes if event.kind == "memory" and event.name == "free" else event.nbytes,
                        event.detail,
                        event.phase,
                        stream=stream,
                    )
                )
            _without_compiling(made)
            self._told = sorted(made, key=lambda e: (e.start, -e.end))
        return self._told


def _kind_of(event: events.Event) -> str:
    kind: str = event.kind
    if kind in _NOT_SHOWN:
        return ""
    if kind == "compile":
        return "compile" if event.detail in ("compiled", "background") else "load"
    return kind if kind in KINDS[ProfileMode.RUNTIME] or kind == "execute" else "other"


def _without_compiling(found: list[DeviceEvent]) -> None:
    """The first run of a program begins where its program was there: not before it was traced, and compiled or loaded."""
    made: dict[int, list[tuple[int, int]]] = {}
    for event in found:
        if event.kind in ("trace", "compile", "load"):
            made.setdefault(event.thread, []).append((event.end, event.start))
    for intervals in made.values():
        intervals.sort()
    for event in found:
        if event.kind == "execute" and event.thread in made:
            intervals = made[event.thread]
            place = bisect_right(intervals, (event.end, event.end)) - 1
            if place >= 0 and intervals[place][0] > event.start:
                event.start = intervals[place][0]
                if len(event.calls) == 1 and event.calls[0].end == event.end:
                    call = event.calls[0]
                    event.calls = (Call(call.name, event.start, call.end, call.thread, call.frames),)
