"""Compiling fused programs in the background: a thread that waits, and a process that works.

Tracing a program of a hundred operators holds Python's lock for a good part of a second, and a training step on another
thread would stall. So a process of its own traces and compiles, at low priority; it gets a program and gives back an
executable's bytes, which are linked in a few milliseconds. It starts with the first program, stops when this process
does (its standard input ends), and is left alone by forked children.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from ... import config, direct, events, program_key, runtime
from ...program import Program
from . import wire
from .fusion import Wiring
from .group import Fused

_MOST_WAITING = 256
_MOST_STARTS = 3
_BREATH = 0.002  # seconds


@dataclass(frozen=True, slots=True)
class Job:
    """`target` is to be filled with the executable of `programs`, wired so, for externals like `signature`."""

    name: str
    programs: tuple[Program, ...]
    arithmetic: tuple[bool, ...]  # each of them
    wiring: Wiring
    signature: tuple[runtime.Aval, ...]
    target: Fused


class Compiler:
    """The queue, its thread and the process. ``waiting`` counts jobs that are queued or being worked on."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._idle = threading.Condition()
        self.waiting = 0
        self.compiled = self.failed = self.starts = 0
        self.trouble: str | None = None  # why nothing is compiled any more
        self._stopping = False

    def submit(self, job: Job) -> bool:
        """Queue `job`; False when the queue is full or compiling has been given up."""
        if self.trouble is not None or self._stopping:
            return False
        try:
            with self._idle:
                self._jobs.put_nowait(job)
                self.waiting += 1
        except queue.Full:
            return False
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="shakedown-adaptive-compiler", daemon=True)
            atexit.register(self.stop)
            self._thread.start()
        return True

    def wait(self, seconds: float | None) -> bool:
        """Wait until nothing is queued or being compiled; whether that was reached in time."""
        with self._idle:
            return self._idle.wait_for(lambda: self.waiting == 0, seconds)

    def state(self) -> str:
        if self.trouble is not None:
            return f"given up: {self.trouble}"
        return "not started" if self._process is None else "running"

    def stop(self) -> None:
        """End the process and the thread; what is queued is dropped."""
        self._stopping = True
        with contextlib.suppress(queue.Full):
            self._jobs.put_nowait(None)
        self._end_process(wait=True)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def forget(self) -> None:
        """In a forked child: the thread did not come along, and the process belongs to the parent."""
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        os.close(pipe.fileno())
        self.__init__()  # type: ignore[misc]
        self._stopping = True

    # --- the thread -----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None or self._stopping:
                return
            start_ns = time.perf_counter_ns()
            try:
                job.target.run, detail = self._compiled(job)
                self.compiled += 1
            except Exception as error:
                job.target.error = detail = f"{type(error).__name__}: {error}"
                self.failed += 1
            duration_ns = time.perf_counter_ns() - start_ns
            job.target.seconds = duration_ns / 1e9
            events.record("compile", f"adaptive::{job.name}", start_ns=start_ns, duration_ns=duration_ns, detail=detail)
            with self._idle:
                self.waiting -= 1
                self._idle.notify_all()

    def _compiled(self, job: Job) -> tuple[Callable[..., Any], str]:
        """The executable, and where it came from. One that an earlier process made is linked without the other process."""
        name = f"adaptive_{job.name}"
        donate = [i for i, given in enumerate(job.target.consumes) if given]
        wired = (job.arithmetic, job.wiring, job.target.numbers)
        key = runtime.segment_key((program_key.programs(job.programs), wired), donate, job.signature)
        found, source = runtime.find_segment(key, name, job.signature), "persistent-cache"
        if found is None:
            request = cloudpickle.dumps((name, (_pickled(job.programs), *wired), job.signature, donate))
            found, source = runtime.link_segment(self._ask(request), name, job.signature, key), "background"
        job.target.demands, job.target.temp = found.demands, found.temp
        return direct.of_compiled(found.compiled), source

    def _ask(self, request: bytes) -> runtime.Linkable:
        """Send one request to the process, started if need be, and wait for its answer."""
        process = self._process
        if process is None or process.poll() is not None:
            if self._stopping:
                raise RuntimeError("the program ends")
            if self.starts >= _MOST_STARTS:
                self.trouble = f"the compiling process ended {self.starts} times"
                raise RuntimeError(self.trouble)
            self.starts += 1
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "shakedown.neuron.modes.adaptive.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=config.environment_of_compiler(),
                start_new_session=True,  # a Ctrl-C is for the user's program
            )
        try:
            wire.send(process.stdin, request)
            answer, payload = json.loads(wire.receive(process.stdout)), wire.receive(process.stdout)
        except (OSError, EOFError) as error:
            self._end_process(wait=False)
            raise RuntimeError(f"the compiling process ended: {error or 'no answer'}") from None
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return runtime.Linkable(payload, answer["note"], answer["digest"])

    def _end_process(self, wait: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            process.kill()
        if wait:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)


def _pickled(programs: Sequence[Program]) -> list[bytes]:
    """Each program as bytes. Between two of them other threads get Python's lock: a training step must not wait for all."""
    known: dict[int, bytes] = {}
    for program in programs:
        if id(program) not in known:
            known[id(program)] = cloudpickle.dumps(program)
            time.sleep(_BREATH)
    return [known[id(program)] for program in programs]
