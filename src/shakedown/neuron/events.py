"""What happened on the device: the one stream that tracking, metrics, the profiler and the trial read.

Counting is always on and costs one integer addition per operator; a :class:`Event` object is built only while somebody
listens. Counts are kept per *phase* (``with phase("backward"):``). The phase is process-wide, not thread-local, since
PyTorch's autograd engine runs the backward pass on a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

# split, break, recompile and limit are about torch.compile: an operator that a graph was split around, and what Dynamo decided.
# memory comes only while somebody asks for it (:func:`.memory.telling`).
Kind = Literal[
    "execute",
    "fallback",
    "compile",
    "transfer",
    "synchronize",
    "flush",
    "cache",
    "precompile",
    "compile-only",
    "unknown",
    "bucket",
    "trace",
    "split",
    "break",
    "recompile",
    "limit",
    "memory",
]
NO_PHASE = ""
DECOMPOSED = "decomposed"  # detail of an operator that runs through PyTorch's decomposition, as one program
COMPOSITE = "composite"  # detail of one that calls other operators, which are counted as well


class Event(NamedTuple):
    """One thing that happened.

    ``name`` is the operator (``aten::mul.Tensor``), the program, or the direction of a transfer; ``start_ns`` comes from
    ``time.perf_counter_ns``; ``nbytes`` is what crossed between host and device; ``detail`` is a reason or a cache's name.
    """

    kind: Kind
    name: str
    phase: str
    start_ns: int = 0
    duration_ns: int = 0
    nbytes: int = 0
    detail: str = ""


class Tally:
    """How often one operator ran since the last drain. The hot path does ``tally.runs += 1`` and nothing else."""

    __slots__ = ("detail", "name", "runs")

    def __init__(self, name: str, detail: str = "") -> None:
        self.name, self.detail = name, detail
        self.runs = 0


_runs_of: Any = Tally.__dict__["runs"]


class _Watched(Tally):
    """A tally that tells whoever watches of every run. The hot path does not know: only the object's class changes."""

    __slots__ = ()

    @property
    def runs(self) -> int:
        return _runs_of.__get__(self)

    @runs.setter
    def runs(self, value: int) -> None:
        more = value - _runs_of.__get__(self)
        _runs_of.__set__(self, value)
        if more > 0:  # less: a drain, or a recorded call that was given up
            for watcher in tuple(_watchers):
                watcher(self)


class Count:
    """Sum over events of one kind with the same name, phase and detail. (A dataclass's methods are compiled on each import.)"""

    __slots__ = ("count", "nbytes", "seconds")

    def __init__(self) -> None:
        self.count, self.seconds, self.nbytes = 0, 0.0, 0


_lock = threading.RLock()
_phase = NO_PHASE
_tallies: dict[str, Tally] = {}
_counts: dict[tuple[Kind, str, str, str], Count] = {}
_listeners: list[Callable[[Event], None]] = []
_of_records: list[Callable[[Event], None]] = []  # listeners to all but operators that run
_watchers: list[Callable[[Tally], None]] = []
_ran: Kind = "execute"  # what a drained tally counts
listening = False  # read on the hot path: true while any listener is subscribed


def tally(name: str, detail: str = "") -> Tally:
    """The tally of the operator `name`; one object for the life of the process."""
    with _lock:
        found = _tallies.get(name)
        if found is None:
            found = _tallies[name] = Tally(name, detail)
            if _watchers:
                found.__class__ = _Watched
        return found


def record(
    kind: Kind, name: str, *, start_ns: int = 0, duration_ns: int = 0, nbytes: int = 0, detail: str = ""
) -> None:
    """Count one event, and hand it to whoever listens. Execution on the hot path goes through :func:`tally` instead."""
    with _lock:
        found = _counts.setdefault((kind, name, _phase, detail), Count())
        found.count += 1
        found.seconds += duration_ns / 1e9
        found.nbytes += nbytes
    if listening or _of_records:
        emit(Event(kind, name, _phase, start_ns, duration_ns, nbytes, detail))


def emit(event: Event) -> None:
    """Hand `event` to every listener, in the order of subscription."""
    for listener in tuple(_listeners):
        listener(event)
    if event.kind != "execute":
        for listener in tuple(_of_records):
            listener(event)


def emit_execute(name: str, start_ns: int) -> None:
    """Report one finished operator to listeners (its tally has been raised already)."""
    emit(Event("execute", name, _phase, start_ns, time.perf_counter_ns() - start_ns))


def _drain() -> None:
    for item in _tallies.values():
        if item.runs:
            runs, item.runs = item.runs, 0
            _counts.setdefault((_ran, item.name, _phase, item.detail), Count()).count += runs


def nothing_runs() -> None:
    """From now on, what would be executed is compiled and not executed: it counts as "compile-only"."""
    global _ran
    with _lock:
        _drain()
        _ran = "compile-only"


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Attribute everything that happens inside to `name` (``forward``, ``backward``, ``optimizer``...); they may nest."""
    previous = current_phase()
    _set_phase(name)
    try:
        yield
    finally:
        _set_phase(previous)


def current_phase() -> str:
    return _phase


def _set_phase(name: str) -> None:
    global _phase
    with _lock:
        _drain()
        _phase = name


@contextmanager
def subscribe(listener: Callable[[Event], None], *, executed: bool = True) -> Iterator[None]:
    """Call `listener` with each :class:`Event` while the context is open. It must not run device operators.

    Without `executed` it hears of everything but operators that run, which then cost no more than when nobody listens.
    """
    global listening
    chosen = _listeners if executed else _of_records
    with _lock:
        chosen.append(listener)
        listening = bool(_listeners)
    try:
        yield
    finally:
        with _lock:
            chosen.remove(listener)
            listening = bool(_listeners)


@contextmanager
def watch(watcher: Callable[[Tally], None]) -> Iterator[None]:
    """Call `watcher` with the tally of each operator as it is called, in the calling thread, while the context is open.

    Unlike the ``execute`` events of :func:`subscribe` it comes at the call in adaptive eager too, where operators run later.
    It must not run device operators.
    """
    with _lock:
        _watchers.append(watcher)
        for item in _tallies.values():
            item.__class__ = _Watched
    try:
        yield
    finally:
        with _lock:
            _watchers.remove(watcher)
            if not _watchers:
                for item in _tallies.values():
                    item.__class__ = Tally


def snapshot() -> list[dict[str, Any]]:
    """All counts since the last :func:`clear` as plain rows: kind, name, phase, detail, count, seconds, nbytes.

    ``seconds`` is 0.0 where it is not measured (``execute``: timing every operator would slow all of them).
    """
    with _lock:
        _drain()
        return [
            {
                "kind": kind,
                "name": name,
                "phase": where,
                "detail": detail,
                "count": c.count,
                "seconds": c.seconds,
                "nbytes": c.nbytes,
            }
            for (kind, name, where, detail), c in _counts.items()
        ]


def total(kind: Kind, detail: str | None = None) -> int:
    """Number of events of `kind` (with `detail`, when given) since the last :func:`clear`."""
    return sum(r["count"] for r in snapshot() if r["kind"] == kind and (detail is None or r["detail"] == detail))


def names(kind: Kind) -> list[str]:
    """Distinct names among the events of `kind`, sorted."""
    return sorted({r["name"] for r in snapshot() if r["kind"] == kind})


def clear(*kinds: Kind) -> None:
    """Forget the counts of `kinds`, or all of them."""
    with _lock:
        _drain()
        for key in [k for k in _counts if not kinds or k[0] in kinds]:
            del _counts[key]
