"""The device's events in a trace file of PyTorch's profiler, for Perfetto and ``chrome://tracing``."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from .clock import MARKER, Span
from .session import DeviceEvent, Session
from .within import Within

_OPERATORS = {"cpu_op", "user_annotation"}
_TRACKS = {"execute": "execute", "transfer": "transfer"}  # anything else is the runtime's
_RUNTIME = "runtime: compile, load, wait, flush, fallback"
_SORT = 5_000_000  # where Kineto sorts devices: below the host's threads

Row = dict[str, Any]


def add(path: str, session: Session, device: str) -> None:
    """Put the events of `session` into the trace at `path` (``.json`` or ``.json.gz``), which PyTorch has written.

    Raises:
        ValueError: the file is no trace as this knows them; it is left as it is.
    """
    opener: Any = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8", errors="replace") as file:
        trace = json.loads(file.read(), strict=False)
    try:
        base, rows = int(trace["baseTimeNanoseconds"]), trace["traceEvents"]
        rows = list(_without_marks(rows, session, base))
    except (KeyError, TypeError) as error:
        raise ValueError(f"a trace without {error}") from None
    cores = _cores(session)
    rows = [row for row in rows if row.get("ph") != "M" or row.get("pid") not in cores]  # Kineto calls them GPUs
    trace["traceEvents"] = [*rows, *_rows(session, device, base, rows)]
    if session.dropped:
        trace["neuron_events_dropped"] = session.dropped
    partial = f"{path}.{os.getpid()}.partial"
    # Compressed by its name in the end, which is not the name that it is written under.
    with opener(partial, "wt", encoding="utf-8") as file:
        file.write(json.dumps(trace, separators=(",", ":")))
    os.replace(partial, path)


def _span(row: Row, base: int) -> Span:
    start = base + round(row["ts"] * 1e3)
    return start, start + round(row["dur"] * 1e3)


def _without_marks(rows: list[Row], session: Session, base: int) -> Iterator[Row]:
    """All rows but the marks, which set the clock."""
    session.set_clock(_span(row, base) for row in rows if row.get("name") == MARKER and row.get("ph") == "X")
    return (row for row in rows if row.get("name") != MARKER)


def _rows(session: Session, device: str, base: int, rows: list[Row]) -> Iterator[Row]:
    assert session.clock is not None
    operators = Within(
        (
            (row["tid"], *_span(row, base), row)
            for row in rows
            if row.get("ph") == "X" and row.get("cat") in _OPERATORS and isinstance(row.get("tid"), int)
        ),
        session.clock.unsure_ns,
    )
    told = session.told()
    tracks, cores = _tracks(told), _cores(session)
    for core in cores:
        yield from _names(core, f"{device}:{core}", {t: n for (c, t), n in tracks.names.items() if c == core})
    flow = max((row["id"] for row in rows if isinstance(row.get("id"), int)), default=0)
    for event, track in zip(told, tracks.of):
        row = _row(event, track, base)
        if "dur" in row:
            flow = yield from _arrows(event, row, operators, flow)
        yield row
        if event.kind == "memory":
            yield {**row, "name": f"memory of {device}:{event.core}", "ph": "C", "args": {"bytes": int(event.detail)}}
    yield from _counters(session, base)


def _cores(session: Session) -> list[int]:
    return sorted({event.core for event in session.told()} | {0})


def _us(ns: int, base: int) -> float:
    return (ns - base) / 1e3


def _row(event: DeviceEvent, track: int, base: int) -> Row:
    arguments: Row = {"kind": event.kind, "device": event.core, "stream": event.stream}
    if event.nbytes:
        arguments["bytes"] = event.nbytes
    if event.kind == "transfer" and event.end > event.start:
        arguments["memory bandwidth (GB/s)"] = round(event.nbytes / (event.end - event.start), 3)
    if event.detail:
        arguments["detail"] = event.detail
    if event.phase:
        arguments["phase"] = event.phase
    if len(event.calls) > 1:
        arguments["operators"] = [call.name for call in event.calls]
        lines = [call.stack[0] for call in event.calls if call.frames]
        if lines:
            arguments["lines"] = lines
    elif event.calls[0].frames:
        arguments["line"], arguments["stack"] = event.calls[0].stack[0], event.calls[0].stack
    row: Row = {"name": event.title, "cat": f"neuron_{event.kind}", "pid": event.core, "tid": track}
    row |= {"ts": _us(event.start, base), "args": arguments}
    if event.kind == "memory":  # as Kineto writes them; 20 is PyTorch's number of the device type
        held = {"Device Type": 20, "Device Id": event.core, "Bytes": event.nbytes, "Total Allocated": int(event.detail)}
        return {**row, "name": "[memory]", "ph": "i", "s": "t", "args": held}
    if event.kind == "other" and event.end == event.start:
        return {**row, "ph": "i", "s": "t"}
    return {**row, "ph": "X", "dur": (event.end - event.start) / 1e3}


def _arrows(event: DeviceEvent, row: Row, operators: Within[Row], flow: int) -> Any:
    """An arrow from each operator that caused `event`; the row tells the operator, and stays inside the one it ran in."""
    for call in event.calls:
        found = operators.innermost(call.thread, call.start, call.end)
        if found is None:
            continue
        operator = found[2]
        if len(event.calls) == 1 and call.end == event.end:
            finish = min(row["ts"] + row["dur"], operator["ts"] + operator["dur"])
            row["ts"] = max(row["ts"], operator["ts"])
            row["dur"] = max(round(finish - row["ts"], 3), 0.0)
        row["args"]["operator"] = operator["name"]
        if "External id" in operator.get("args", {}):
            row["args"]["External id"] = operator["args"]["External id"]
        flow += 1
        arrow = {"cat": "ac2g", "name": "ac2g", "id": flow}
        at = min(max(row["ts"], operator["ts"]), operator["ts"] + operator["dur"])
        if call.end != event.end:
            at = operator["ts"]
        yield {**arrow, "ph": "s", "pid": operator["pid"], "tid": operator["tid"], "ts": at}
        yield {**arrow, "ph": "f", "bp": "e", "pid": row["pid"], "tid": row["tid"], "ts": max(row["ts"], at)}
    return flow


class _Tracks:
    """Where each event stands. Events of one track that overlap without one holding the other get tracks beside it."""

    def __init__(self) -> None:
        self.of: list[int] = []
        self.names: dict[tuple[int, int], str] = {}
        self._lanes: dict[tuple[int, str], list[tuple[int, list[int]]]] = {}  # -> (track, ends of what is open)

    def place(self, event: DeviceEvent) -> int:
        name = _TRACKS.get(event.kind, _RUNTIME)
        if event.stream:
            name = f"stream {event.stream} {name}"
        lanes = self._lanes.setdefault((event.core, name), [])
        for track, open_ in lanes:
            while open_ and open_[-1] <= event.start:
                open_.pop()
            if not open_ or event.end <= open_[-1]:
                open_.append(event.end)
                return track
        track = len(self.names)
        self.names[event.core, track] = name if not lanes else f"{name} ({len(lanes) + 1})"
        lanes.append((track, [event.end]))
        return track


def _tracks(told: Iterable[DeviceEvent]) -> _Tracks:
    tracks = _Tracks()
    tracks.of = [tracks.place(event) for event in told]
    return tracks


def _names(core: int, name: str, tracks: dict[int, str]) -> Iterator[Row]:
    head = {"ph": "M", "pid": core, "ts": 0}
    yield {**head, "name": "process_name", "tid": 0, "args": {"name": name}}
    yield {**head, "name": "process_labels", "tid": 0, "args": {"labels": "rehearsal: times on the host"}}
    yield {**head, "name": "process_sort_index", "tid": 0, "args": {"sort_index": _SORT + core}}
    for track, called in tracks.items():
        yield {**head, "name": "thread_name", "tid": track, "args": {"name": f"{name} {called}"}}
        yield {**head, "name": "thread_sort_index", "tid": track, "args": {"sort_index": track}}


def _counters(session: Session, base: int) -> Iterator[Row]:
    sampler, clock = session.sampler, session.clock
    if sampler is None or clock is None:
        return
    for name, unit, samples in (
        ("CPU of this process", "%", sampler.processor),
        ("resident memory of this process", "bytes", sampler.memory),
    ):
        for at, value in samples:
            yield {
                "ph": "C",
                "name": name,
                "pid": os.getpid(),
                "ts": _us(clock.convert(at), base),
                "args": {unit: value},
            }
