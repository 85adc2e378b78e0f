"""Recording operators instead of running them, and running what was recorded.

:meth:`Recorder.join` is on the path of every operator. A plan knows what its operator returns, so the tensors are made at
once, around values that are pending. :meth:`Recorder.flush` runs the recording: as one fused program where that is ready,
operator by operator where it is not.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from typing import Any

import jax.numpy as jnp

from ... import config, events, runtime
from ...ledger import ledger, note_peak
from ...memory_limit import has_room
from ...pending import Failed, Pending
from ...places import stack_of_caller
from ...plan import Plan
from .compiler import Compiler, Job
from .cuts import Cuts
from .group import Fused, Group, Groups
from .idle import IdleTimer
from .interrupts import HeldBack
from .replay import error_of, failed_together, recovered
from .segment import Entry, OperatorFailed, Segment

# Flushes that the program itself causes happen at the same place again; these happen to it.
_BY_CHANCE = {"timeout", "new operator", "deterministic", "profile", "reset"}

_NOTHING_HELD = contextlib.nullcontext()


def _at(lines: list[str | None], index: int) -> str | None:
    """Where operator number `index` was recorded, when that is kept."""
    return lines[index] if lines else None


class Recorder:
    """The recording of the one stream of this process. Threads share it; a lock keeps their operators whole and in order."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries: list[Entry] = []
        self._lines: list[str | None] = []
        self._number = 0  # of the next result
        self._first = 0  # number of the recording's first result
        self._nbytes = 0
        self._running = False
        self._deferred: Exception | None = None  # of a flush that nobody called
        self._most_bytes = config.ADAPTIVE_MEMORY() << 20
        self._stacks = config.STACK_TRACE()
        self._skips = config.ADAPTIVE_SKIP()
        self._zero = jnp.zeros((), jnp.int32)  # what seals in fused programs need
        self.cuts = Cuts(config.ADAPTIVE_LENGTH())
        self.groups = Groups()
        self.compiler = Compiler()
        self._timer = IdleTimer(config.ADAPTIVE_TIMEOUT() / 1e3, self._beat, self._flush_idle)
        self.flushes: Counter[str] = Counter()
        self.operators: Counter[str] = Counter()  # fused, each
        Pending.flush, Pending.arrived = self.flush, self.arrived

    # --- recording ------------------------------------------------------------------------------------------------------

    def join(self, plan: Plan, inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call of `plan` on `inputs` (values, or pending ones). Returns what the operator returns."""
        with self._lock:
            number = self._number
            layout = plan.layout
            if layout is not None:
                pending = Pending(number)
                self._number = number + 1
                self._entries.append((plan, inputs, [pending]))
                made = layout.new(pending)
                del pending  # who still refers to it decides whether it is computed
            else:
                outs = [Pending(number + i) for i in range(plan.results)]
                self._number = number + plan.results
                self._entries.append((plan, inputs, outs))
                made = plan.place(args, kwargs, outs)
            if self._stacks:
                self._lines.append(stack_of_caller())
            plan.tally.runs += 1
            if plan.temp:
                note_peak(plan.temp)
            length = len(self._entries)
            self._nbytes += plan.nbytes
            if length == 1:
                self._timer.wake()
            if self.cuts.roll(plan.mark, length):
                self.flush("length" if length >= self.cuts.limit else "content")
            elif self._nbytes > self._most_bytes:
                self.flush("memory")
        return made

    def arrived(self, nbytes: int) -> None:
        """Count `nbytes` of memory that came from elsewhere, and that the recording may soon be the only one to hold."""
        with self._lock:
            if self._entries:
                self._nbytes += nbytes
                if self._nbytes > self._most_bytes:
                    self.flush("memory")

    def _beat(self) -> int:
        """A number that changes with every recorded operator; -1 while nothing waits."""
        return self._number if self._entries else -1

    # --- running --------------------------------------------------------------------------------------------------------

    def flush(self, reason: str) -> None:
        """Run everything recorded.

        Raises:
            Exception: what the first operator that failed since the last flush raises in plain eager execution, with its
                name added; later ones are dropped.
        """
        with self._lock:
            if self._running:
                return
            if self._deferred is None:
                self._run_recorded(reason)
                return
            self.submit(reason)  # whatever else fails is dropped
            deferred, self._deferred = self._deferred, None
            Pending.trouble = False
            raise deferred

    def _run_recorded(self, reason: str) -> None:
        with self._lock:
            if not self._entries or self._running:
                return
            if reason not in _BY_CHANCE:
                self.cuts.learn()
            entries, lines, first = self._entries, self._lines, self._first
            self._entries, self._lines, self._first = [], [], self._number
            self._nbytes = 0
            self.cuts.restart()
            self.flushes[reason] += 1
            self._running = True
            how, start_ns = "failed", time.perf_counter_ns()
            try:
                how = self._run(entries, first, lines)
            finally:
                self._running = False
                took = time.perf_counter_ns() - start_ns
                events.record("flush", reason, start_ns=start_ns, duration_ns=took, detail=how)

    def submit(self, reason: str) -> None:
        """Run everything recorded; the first error is kept for the next :meth:`flush`."""
        with self._lock:
            try:
                self._run_recorded(reason)
            except Exception as error:
                self._keep(error)

    def _keep(self, error: Exception) -> None:
        if self._deferred is None:
            self._deferred = error
            Pending.trouble = True  # whoever reads a value is told

    def _flush_idle(self) -> None:
        self.submit("timeout")

    def _run(self, entries: list[Entry], first: int, lines: list[str | None]) -> str:
        """Run `entries`; ``fused`` or ``each``, for the record."""
        segment = Segment(entries, first)
        try:
            program, group = (None, None) if len(entries) == 1 or segment.failed else self._program(segment, lines)
            if program is not None and group is not None and self._run_fused(segment, program, group):
                self.operators["fused"] += len(entries)
                return "fused"
            if group is not None:
                group.runs_each += 1
            ledger.replays = True
            segment.run_each(lambda index, given, error: recovered(segment, index, given, error, _at(lines, index)))
            self.operators["each"] += len(entries)
            return "each"
        except OperatorFailed as failure:
            error = error_of(segment, failure, _at(lines, failure.index))
            segment.abandon(failure.index, error)
            raise error from None
        except BaseException as error:  # an interruption, too
            segment.abandon(segment.done, error)
            raise
        finally:
            ledger.replays = False

    def _program(self, segment: Segment, lines: list[str | None]) -> tuple[Fused | None, Group]:
        """The fused program for `segment` if one is ready; else has one compiled when the segment is not new."""
        group, seen = self.groups.of(segment, lines)
        if not seen:
            return None, group
        needed = segment.needed() if self._skips else bytes([1] * len(group.nbytes))
        free = segment.free(group.large)
        found = group.find(needed, free)
        if found is not None:
            return found, group
        wanted = group.wants(needed, free)
        if wanted is not None:
            plans = [plan for plan, _, _ in segment.entries]
            programs, arithmetic = tuple(p.program for p in plans), tuple(p.operator.arithmetic for p in plans)
            wiring = [tuple(inputs) for _, inputs, _ in segment.entries]
            signature = tuple(map(runtime.aval_of, (*segment.externals, self._zero)))
            if not self.compiler.submit(Job(group.name, programs, arithmetic, wiring, signature, wanted)):
                group.programs.remove(wanted)
        return None, group

    def _run_fused(self, segment: Segment, program: Fused, group: Group) -> bool:
        """Run `segment` by `program`; False if it was made for other buffers, or needs more memory than there is."""
        assert program.run is not None
        if program.temp:
            if not has_room(program.temp):
                return False  # one by one, each of which was asked for
            note_peak(program.temp)
        start_ns = time.perf_counter_ns() if events.listening else 0
        # What it consumes cannot be consumed again, so an interruption must not get between it and its results.
        with HeldBack() if 1 in program.consumes else _NOTHING_HELD:
            try:
                made = program.run(*segment.externals, self._zero)
            except TypeError:  # the same views, but on buffers of another length or dtype
                return False
            except Exception as error:
                if 1 in program.consumes:
                    raise failed_together(group.name, group.operators, error) from error
                program.run, program.error = None, f"{type(error).__name__}: {error}"  # never again
                return False
            if type(made) is not list:
                made = [made]
            if program.demands and runtime.read_int(made.pop()):
                return False  # running one by one finds the operator
            results = segment.results()
            for number, value in zip(program.numbers, made):
                results[number].value = value
            segment.done = len(segment.entries)
        group.runs_fused += 1
        group.bytes_saved += program.saves
        if events.listening:
            events.emit_execute(f"adaptive::{group.name}", start_ns)
        return True

    def waiting(self) -> int:
        """Operators recorded and not yet run."""
        return len(self._entries)

    # --- the rest -------------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget groups, programs and counts."""
        with self._lock:
            self.flush("reset")
            self.groups.clear()
            self.cuts.known.clear()
            self.flushes.clear()
            self.operators.clear()

    def forget_all(self) -> None:
        """In a forked child: nothing recorded can be run here, and the background belongs to the parent."""
        self._lock = threading.RLock()
        for _, _, outs in self._entries:
            for pending in outs:
                pending.value = Failed(RuntimeError("it was recorded before this process was forked"))
        self._entries, self._lines = [], []
        self._deferred, Pending.trouble = None, False
        self._timer.forget()
        self.compiler.forget()
