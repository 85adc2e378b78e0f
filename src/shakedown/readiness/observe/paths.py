"""Where operators ran, by phase. The only file that knows the device's observation API.

A target is seen as well as it lets itself be seen: the embedded device counts operators, fallbacks, compilations and
transfers itself (:class:`DeviceEvents`); AWS's package names what fell back (:class:`PublicTracking`); elsewhere operators are
counted where PyTorch dispatches them, and a fallback behind that point cannot be seen (:class:`DispatchCounts`).
``targets.observes`` says which of these an account lacks, and why.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, get_args

from .. import targets
from ..evidence import PathRow
from ..targets import Observable, Target
from .dispatched import Book, Rows, Watcher, plain_clock, timed
from .lines_of_user import Lines, kept_with_graph

_KINDS = get_args(PathRow.model_fields["kind"].annotation)  # the stream has others, which are about no operator
Standing = Mapping[str, str]  # phase -> what to call the line of an operator that no frame of the workload asked for


_KINDS = get_args(PathRow.model_fields["kind"].annotation)  # what else the device tells of is other evidence


class Recorder(Protocol):
    """What observes the steps of one process."""

    source: str  # in words, for the report
    free: bool  # counting costs nothing, so it may stay on in timed steps
    unobservable: dict[Observable, str]

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """Attribute what happens inside to `name`."""

    def step(self) -> AbstractContextManager[Rows]:
        """Count one step; the rows are there when the context closes."""

    def attributed(self, roots: Sequence[Path], standing: Standing | None = None) -> AbstractContextManager[Rows]:
        """Count one step whose operators are timed one by one and traced to lines of files under `roots`.

        It is slower than any other step: no timing may use it. `standing` names, by phase, what runs without a frame of
        the workload: the optimizer that it built.
        """

    def compiles(self) -> int | None:
        """Programs compiled or loaded since the last counted step began; None where that is not known."""


class DeviceEvents:
    """The embedded device's own event stream. Counting is always on there, so it may stay on during timed steps."""

    source = "the device's event stream"
    free = True

    def __init__(self, target: Target) -> None:
        import torch

        import shakedown.neuron as sn

        self.events: Any = sn.events
        self.target = target
        self.unobservable = targets.unobservable(target, "rehearsal")
        self._adaptive = bool(torch.neuron.adaptive.status()["enabled"])
        self._uncounted = _uncounted()

    def phase(self, name: str) -> AbstractContextManager[Any]:
        return self.events.phase(name)

    @contextmanager
    def step(self) -> Iterator[Rows]:
        rows = Rows()
        self.events.clear()
        with timed(rows):
            yield rows
        rows += [_row(event) for event in self.events.snapshot() if event["kind"] in _KINDS]

    @contextmanager
    def attributed(self, roots: Sequence[Path], standing: Standing | None = None) -> Iterator[Rows]:
        rows, lines, book = Rows(), Lines(roots, standing), Book()
        last = threading.local()  # the operator whose call this thread saw last, and its key
        phase = self.events.current_phase

        def called(tally: Any) -> None:
            here = phase()
            key = ("execute", tally.name, here, tally.detail, "device", lines.now(here))
            book.add(key)
            last.call = (tally.name, key)

        def happened(event: Any) -> None:
            if event.kind not in _KINDS:
                return
            seconds = event.duration_ns / 1e9
            if event.kind not in _KINDS:
                return
            if event.kind != "execute":
                where = "host" if event.kind == "fallback" else "device"
                key = (event.kind, event.name, event.phase, event.detail, where, lines.now(event.phase))
                book.add(key, 1, seconds, event.nbytes)
            elif (
                self._adaptive
            ):  # what was recorded earlier runs now, so that the call of the moment did not ask for it
                fused = event.name.startswith("adaptive::")
                name = event.name if fused else "operators one by one"
                book.add(("flush", name, event.phase, "run" if fused else "run, not fused", "device", ""), 1, seconds)
            elif getattr(last, "call", ("",))[0] == event.name:
                book.add(last.call[1], 0, seconds)

        asked: Counter[str] = Counter()
        host = Watcher(
            book, self.target.device, phase, lines.now, plain_clock, host_only=True, asked=lambda n: asked.update((n,))
        )
        with kept_with_graph(), self.events.subscribe(happened), self.events.watch(called), host, timed(rows):
            yield rows
        rows += book.rows()
        told = {row.name for row in rows if row.kind in ("execute", "fallback")}
        counted = {name: n for name, n in asked.items() if name not in self._uncounted and _has_kernel(name)}
        rows.unreported = {name: n for name, n in counted.items() if name not in told}

    def compiles(self) -> int | None:
        return sum(row["count"] for row in self.events.snapshot() if row["kind"] == "compile")


def _uncounted() -> set[str]:
    """Operators that the embedded device does not count: those that make, move or name memory, or run as several others."""
    from shakedown.neuron import manual
    from shakedown.neuron.lowering import registry

    return {f"aten::{name}" for name in manual.names()} | {op.name() for op in registry.composites()}


def _has_kernel(name: str) -> bool:
    """Whether the device has a kernel of its own for an operator, and does not leave it to PyTorch to take it apart."""
    import torch

    return name.startswith("aten::") and bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1"))


def _row(event: dict[str, Any]) -> PathRow:
    """A counted event as a row: where no clock ran, no time is given."""
    timeless = event["kind"] in ("execute", "flush")
    where = "host" if event["kind"] == "fallback" else "device"
    return PathRow.model_validate(event | {"where": where} | ({"seconds": None} if timeless else {}))


class DispatchCounts:
    """Any other target. Counting slows every operator, so it is on in observed steps and never in a timed one."""

    source = "operators counted at PyTorch's dispatcher; a fallback behind it cannot be seen on this target"
    free = False

    def __init__(self, target: Target) -> None:
        self.target = target
        if target.backend == "inductor":
            self.source += ", nor can operators inside a graph that Inductor compiled"
        self.unobservable = targets.unobservable(target, targets.family(target))
        self._phase = ""
        self._observing = False

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        before, self._phase = self._phase, name
        if self._observing:
            self._begin()
        try:
            yield
        finally:
            if self._observing:
                self._end()
            self._phase = before

    def _begin(self) -> None:
        """A phase of an observed step begins."""

    def _end(self) -> None:
        """It ends."""

    def _observed(self, book: Book) -> list[PathRow]:
        """The rows of a step, from what was dispatched."""
        return book.rows()

    @contextmanager
    def _watching(self, lines: Callable[[str], str], clock: Callable[[], float] | None, rows: Rows) -> Iterator[None]:
        book = Book()
        self._observing = True
        try:
            with Watcher(book, self.target.device, lambda: self._phase, lines, clock):
                yield
        finally:
            self._observing = False
        rows += self._observed(book)

    @contextmanager
    def step(self) -> Iterator[Rows]:
        rows = Rows()
        with self._watching(lambda phase: "", None, rows):
            yield rows

    @contextmanager
    def attributed(self, roots: Sequence[Path], standing: Standing | None = None) -> Iterator[Rows]:
        rows, lines = Rows(), Lines(roots, standing)

        def clock() -> float:
            targets.wait(self.target)  # or the call's time would be taken for the operator's
            return time.perf_counter()

        with self._watching(lines.now, clock, rows), kept_with_graph(), timed(rows):
            yield rows

    def compiles(self) -> int | None:
        return None


class PublicTracking(DispatchCounts):
    """A device module that tells the names of operators that ran and of those that fell back, and no more: AWS's package.

    Calls are counted at PyTorch's dispatcher. The names are read at the end of each phase, after waiting, because both
    lists lag behind queued work. They are sets: how often an operator fell back is not known.
    """

    source = "operators counted at PyTorch's dispatcher; fallbacks by name from the device's public tracking"
    FUNCTIONS = ("get_fallback_ops", "get_executed_ops", "clear_op_tracking")

    def __init__(self, target: Target, module: ModuleType) -> None:
        super().__init__(target)
        self.module: Any = module
        self.unobservable = targets.unobservable(target, "native")
        self._named: dict[str, tuple[set[str], set[str]]] = {}  # phase -> names that fell back, names that ran

    def _begin(self) -> None:
        targets.wait(self.target)
        self.module.clear_op_tracking()

    def _end(self) -> None:
        targets.wait(self.target)
        fell, ran = self._named.setdefault(self._phase, (set(), set()))
        fell |= set(self.module.get_fallback_ops())
        ran |= set(self.module.get_executed_ops())

    def _observed(self, book: Book) -> list[PathRow]:
        rows: list[PathRow] = []
        calls: dict[tuple[str, str], int] = {}
        for row in book.rows():
            fell, ran = self._named.get(row.phase, (set(), set()))
            spelled = _spelling(row.name, fell) if row.kind == "execute" and row.where == "device" else ""
            if spelled:
                calls[spelled, row.phase] = calls.get((spelled, row.phase), 0) + (row.count or 0)
                both = bool(_spelling(row.name, ran))
                said = "some of these calls ran on the CPU" if both else "ran on the CPU"
                row = row.model_copy(update={"detail": said, "where": "device" if both else "host"})
            rows.append(row)
        for phase, (fell, _) in self._named.items():
            for name in sorted(fell):
                most = calls.get((name, phase))
                known = "" if most is None else f"; at most {most} calls"
                rows.append(
                    PathRow(
                        kind="fallback",
                        name=name,
                        phase=phase,
                        detail=f"named by get_fallback_ops(), which does not count{known}",
                        count=None,
                        where="host",
                    )
                )
        self._named.clear()
        return rows


def _spelling(name: str, listed: set[str]) -> str:
    """How `listed` spells the operator `name`: in full, without its overload, or bare; empty when it does not."""
    plain = name.partition(".")[0]
    return next((s for s in (name, plain, plain.removeprefix("aten::")) if s in listed), "")


def register_embedded_device() -> None:
    """``import torch`` does this where the package is installed; a source tree has no entry point."""
    from shakedown.neuron.autoload import autoload

    autoload()


def recorder(target: Target) -> Recorder:
    """The best observer that `target` offers."""
    product = targets.family(target)
    if product == "rehearsal":
        return DeviceEvents(target)
    if product == "native":
        package = import_module("torch_neuronx")
        if all(hasattr(package, name) for name in PublicTracking.FUNCTIONS):
            return PublicTracking(target, package)
    return DispatchCounts(target)
