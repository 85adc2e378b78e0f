"""The parent of a sweep: units of work over worker processes, a crash or a hang charged to one sample, resumable.

Each finished unit is a file of JSON lines under ``parts/``, written atomically; a second run with the same request skips
the units it finds there. The parts become ``results.parquet`` and ``summary.json`` at the end.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import shakedown
from shakedown.readiness.evidence import write_atomic

from . import databases
from .results import BAD, Row, Status, read_lines, write_lines, write_parquet
from .worker import Unit

WORKER_COMMAND = [sys.executable, "-m", "shakedown.conformance.worker"]
_WORKER_LIMIT_KIB = 3 << 20  # a worker that once held more is replaced: executables are kept for the life of a process


class RequestError(Exception):
    """The request names something that is not there, or does not fit what the directory holds."""


class SweepError(Exception):
    """The sweep cannot go on. What is finished is kept."""


@dataclass(frozen=True)
class Request:
    """What to sweep. Empty `ops` and `dtypes` mean all.

    `samples` and `variants` limit the samples of each entry and dtype, and how many of them also run in place, with
    ``out=`` and in other layouts (None: all). `tenth` (0 to 9) takes every tenth entry from that one on.
    `timeout_seconds` is for one sample.
    """

    suites: tuple[databases.Suite, ...] = ("op_db", "module_db")
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    mode: str = "eager"
    gradients: bool = True
    samples: int | None = None
    variants: int | None = 3
    errors: bool = True
    tenth: int | None = None
    jobs: int = 2
    timeout_seconds: float = 300.0


def units(request: Request) -> list[Unit]:
    """The work of a request, in the databases' order.

    Raises:
        RequestError: an operator or dtype is in no database.
        DatabaseUnavailable: a package that a database imports is missing.
    """
    unknown = [d for d in request.dtypes if d not in databases.DTYPE_NAMES]
    if unknown:
        raise RequestError(f"dtype {unknown[0]!r} is not swept; choose from {', '.join(databases.DTYPE_NAMES)}")
    if request.mode not in ("eager", "compile"):
        raise RequestError(f"mode {request.mode!r} is neither eager nor compile")
    made: list[Unit] = []
    known: set[str] = set()
    for suite in request.suites:
        for place, entry in enumerate(databases.entries(suite)):
            names = {entry.name, entry.info.name}
            known |= names
            if (request.ops and not names & set(request.ops)) or (
                request.tenth is not None and place % 10 != request.tenth
            ):
                continue
            dtypes = [str(d).removeprefix("torch.") for d in entry.dtypes()]
            dtypes = [d for d in dtypes if not request.dtypes or d in request.dtypes]
            if suite == "op_db" and request.errors and request.mode == "eager":
                dtypes.append("error")
            for dtype in dtypes:
                made.append(
                    Unit(suite, entry.name, dtype, request.mode, request.gradients, request.samples, request.variants)
                )
    missing = [o for o in request.ops if o not in known]
    if missing:
        raise RequestError(
            f"{missing[0]!r} is in neither database; names are like 'add' or 'nn.functional.pad.reflect'"
        )
    return made


class _Worker:
    """One child process."""

    def __init__(self, log: Path) -> None:
        self.log = log.open("ab")
        self.process = subprocess.Popen(
            WORKER_COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.peak_kib = 0
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        if self._answers.get() is None:  # its first line says that it is ready
            self.stop()
            raise SweepError(f"a worker cannot start; its last words are in {log}")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def ask(self, unit: Unit, timeout_seconds: float) -> tuple[list[Row], int | None, Status]:
        """Rows of `unit`, and the sample that ended the process (None: none did) with how it ended."""
        assert self.process.stdin is not None
        rows: list[Row] = []
        running = -1
        try:
            self.process.stdin.write(json.dumps(asdict(unit)) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return rows, running, "crashed"
        while True:
            try:
                line = self._answers.get(timeout=timeout_seconds)
            except queue.Empty:
                return rows, running, "timeout"
            if line is None:
                return rows, running, "crashed"
            answer = json.loads(line)
            if "begin" in answer:
                running = answer["begin"]
            elif "rows" in answer:
                rows += [Row(**r) for r in answer["rows"]]
            else:
                self.peak_kib = answer["peak_kib"]
                return rows, None, "native"

    def stop(self) -> int:
        self.process.kill()
        code = self.process.wait()
        self.log.close()
        return code


class Sweep:
    """A sweep into the directory `out`."""

    def __init__(self, request: Request, out: Path, show: Callable[[str, int, int], None]) -> None:
        self.request, self.out, self.show = request, out, show
        self.parts = out / "parts"
        self._todo: queue.SimpleQueue[Unit] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._done = 0
        self._count = 0
        self._stopping = False
        self._failure: Exception | None = None

    def run(self) -> list[Row]:
        """Run what is not there yet. Ctrl-C keeps every finished unit.

        Returns: the rows of all units, those of earlier runs included.

        Raises:
            RequestError: bad request, or `out` holds a sweep of another one.
            SweepError: a worker cannot start.
        """
        wanted = units(self.request)
        self.parts.mkdir(parents=True, exist_ok=True)
        _claim(self.out / "request.json", self.request)
        left = [u for u in wanted if not self._part(u).exists()]
        self._count, self._done = len(wanted), len(wanted) - len(left)
        for unit in left:
            self._todo.put(unit)
        started = time.time()
        threads = [threading.Thread(target=self._work, args=(i,)) for i in range(max(1, self.request.jobs))]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            self._stopping = True
            for thread in threads:
                thread.join()
            raise
        if self._failure is not None:
            raise self._failure
        rows = [row for unit in wanted for row in read_lines(self._part(unit))]
        write_parquet(self.out / "results.parquet", rows)
        _note_time(self.out / "environment.json", time.time() - started, self.request)
        return rows

    def _part(self, unit: Unit) -> Path:
        return self.parts / f"{unit.name}.jsonl"

    def _work(self, number: int) -> None:
        worker: _Worker | None = None
        log = self.out / f"worker-{number}.log"
        try:
            while not self._stopping:
                try:
                    unit = self._todo.get_nowait()
                except queue.Empty:
                    break
                rows: list[Row] = []
                while not self._stopping:
                    if worker is None or worker.peak_kib > _WORKER_LIMIT_KIB:
                        if worker is not None:
                            worker.stop()
                        worker = _Worker(log)
                    found, lost, how = worker.ask(unit, self.request.timeout_seconds)
                    rows += found
                    if lost is None:
                        break
                    code = worker.stop()
                    worker = None
                    message = f"the process ended with {code}" if how == "crashed" else "no answer in time; stopped"
                    check = "error" if unit.dtype == "error" else "forward"
                    rows.append(Row(unit.suite, unit.op, unit.dtype, unit.mode, check, lost, how, message=message))
                    if lost < 0:  # before any sample: the database itself
                        break
                    seen = {r.sample for r in rows}
                    unit = replace(unit, leave_out=sorted(seen))
                if self._stopping:
                    break
                write_lines(self._part(unit), rows)
                with self._lock:
                    self._done += 1
                    bad = sum(r.status in BAD for r in rows)
                    note = f"{unit.op} {unit.dtype}" + (f": {bad} of {len(rows)} checks not right" if bad else "")
                    self.show(note, self._done, self._count)
        except Exception as error:  # a thread must not end silently with units undone
            self._failure = error
            self._stopping = True
        finally:
            if worker is not None:
                worker.stop()


def _claim(path: Path, request: Request) -> None:
    """Write the request, or check that the directory was made for the same one (jobs and time limits aside)."""
    asked = json.loads(json.dumps(asdict(replace(request, jobs=0, timeout_seconds=0.0))))
    asked["version"] = f"shakedown {shakedown.__version__}, torch {torch.__version__}"
    if path.exists():
        if json.loads(path.read_text()) != asked:
            raise RequestError(
                f"{path.parent} holds a sweep of another request (see {path.name}): choose another --out"
            )
        return
    write_atomic(path, json.dumps(asked, indent=1).encode())


def _note_time(path: Path, seconds: float, request: Request) -> None:
    """What the results were made with."""
    import jax

    import shakedown.neuron

    made: dict[str, Any] = {
        "shakedown": shakedown.__version__,
        "torch": torch.__version__,
        "jax": jax.__version__,
        "platform": "rehearsal: the PJRT plugin of the host's processor",
        "profile": torch.neuron.profile(),
        "jobs": request.jobs,
        "seconds_of_this_run": round(seconds, 1),
    }
    write_atomic(path, (json.dumps(made, indent=1) + "\n").encode())
