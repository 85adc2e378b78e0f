"""Operators as PyTorch dispatches them: the view that every target allows.

A :class:`Watcher` stands between autograd and the device. It sees an operator before the device does, so it cannot see what
the device makes of it; and it sees operators on CPU tensors, of which the device knows nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..evidence import PathRow

_READ = torch.ops.aten._local_scalar_dense.default
Key = tuple[str, str, str, str, str, str]  # kind, name, phase, detail, where, line


class Rows(list[PathRow]):
    """Rows of one observed step, filled when its context closes, and the seconds it took (None where counting costs)."""

    seconds: float | None = None
    unreported: Mapping[str, int] = MappingProxyType({})  # see evidence.Paths


@dataclass
class _Sum:
    count: int = 0
    seconds: float | None = None
    nbytes: int = 0


class Book:
    """Sums of events under their keys, in the order in which they first came."""

    def __init__(self) -> None:
        self._sums: dict[Key, _Sum] = {}

    def add(self, key: Key, count: int = 1, seconds: float | None = None, nbytes: int = 0) -> None:
        """Add to the row of `key`; seconds that are None leave its time as it is."""
        found = self._sums.setdefault(key, _Sum())
        found.count += count
        found.nbytes += nbytes
        if seconds is not None:
            found.seconds = (found.seconds or 0.0) + seconds

    def rows(self) -> list[PathRow]:
        """Everything added so far."""
        return [
            PathRow(
                kind=kind,  # type: ignore[arg-type]
                name=name,
                phase=phase,
                detail=detail,
                where=where,  # type: ignore[arg-type]
                line=line,
                count=found.count,
                seconds=found.seconds,
                nbytes=found.nbytes,
            )
            for (kind, name, phase, detail, where, line), found in list(self._sums.items())
        ]


def qualified(op: Any) -> str:
    """``aten::add.Tensor``; the default overload has no suffix."""
    overload = op._schema.overload_name
    return f"{op._schema.name}.{overload}" if overload else op._schema.name


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _only_names(op: Any) -> bool:
    """Whether the operator computes nothing: it gives another view of a tensor, or belongs to the profiler."""
    if op.namespace == "profiler":
        return True
    return any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)


class Watcher(TorchDispatchMode):
    """Enters in `book` each operator, or with `host_only` those on CPU tensors: where it ran, and how long.

    `device` is the target's type. `line` and `phase` are asked while the operator runs; `clock` waits for the device and
    gives the time; without it nothing is timed. An operator on CPU tensors is timed by the processor time of its thread
    instead, which no busy machine makes longer, less that of the cheapest operator at the same moment: an optimizer has many
    that take less than being watched does. Another view of the same tensor is no operator here: nothing is computed.
    `asked` gets the name of each operator that was called on the device's tensors.
    """

    def __init__(
        self,
        book: Book,
        device: str,
        phase: Callable[[], str],
        line: Callable[[str], str],
        clock: Callable[[], float] | None = None,
        *,
        host_only: bool = False,
        asked: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__()
        self.asked = asked
        self.book, self.device, self.phase, self.line, self.clock = book, device, phase, line, clock
        self.host_only = host_only
        self._scalar = torch.zeros((), device="cpu")

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Without this, Dynamo runs compiled functions eagerly while a mode is active, and another step is observed."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _only_names(func):
            return func(*args, **kwargs)
        given = {t.device.type for t in _tensors((args, kwargs))}
        least = self._least() if self.clock is not None and given <= {"cpu"} else 0.0
        start, busy = (self.clock(), time.thread_time()) if self.clock is not None else (0.0, 0.0)
        result = func(*args, **kwargs)
        used = time.thread_time() - busy if self.clock is not None else 0.0
        seen = given | {t.device.type for t in _tensors(result)}
        host = "cpu" in seen and self.device not in seen
        seconds = None
        if self.clock is not None:
            seconds = max(0.0, used - least) if host else self.clock() - start
        if self.asked is not None and not host and self.device in {t.device.type for t in _tensors(result)} | given:
            self.asked(qualified(func))
        if host or not self.host_only:
            self._enter(func, host, args, result, seconds)
        return result

    def _least(self) -> float:
        """Processor time, in seconds, of the cheapest operator there is: reading a number that is on the CPU."""
        start = time.thread_time()
        _READ(self._scalar)
        return time.thread_time() - start

    def _enter(self, func: Any, host: bool, args: Any, result: Any, seconds: float | None) -> None:
        phase = self.phase()
        kind, name, nbytes = "execute", qualified(func), 0
        moved = None if host or self.device == "cpu" else _crossing(func, args, result, self.device)
        if moved is not None:
            kind, (name, nbytes) = "transfer", moved
        where = "host" if host else "device"
        self.book.add((kind, name, phase, "", where, self.line(phase)), 1, seconds, nbytes)


def _crossing(func: Any, args: Any, result: Any, device: str) -> tuple[str, int] | None:
    """Direction and bytes of an operator that copies between host and device; None for any other."""
    base = func._schema.name
    if base == "aten::_to_copy":
        source, target = args[0], result
    elif base in ("aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize"):
        target, source = (args[0], args[1]) if base == "aten::copy_" else (args[1], args[0])
    elif base == "aten::_local_scalar_dense" and args[0].device.type == device:
        return "device-to-host", args[0].dtype.itemsize
    else:
        return None
    ways = {(device, "cpu"): "device-to-host", ("cpu", device): "host-to-device"}
    way = ways.get((source.device.type, target.device.type))
    return None if way is None else (way, source.numel() * source.dtype.itemsize)


def plain_clock() -> float:
    """Seconds, for operators whose call returns when their work is complete."""
    return time.perf_counter()


@contextmanager
def timed(rows: Rows) -> Iterator[None]:
    """Put the seconds of what happens inside into ``rows.seconds``."""
    start = time.perf_counter()
    yield
    rows.seconds = time.perf_counter() - start
