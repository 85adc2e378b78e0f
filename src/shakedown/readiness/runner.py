"""Stage 3: one fresh process per (mode, dtype, cache state), one at a time, in a frozen environment.

A process that crashes, hangs past its timeout or is killed is a result like any other: its exit code and standard error
are kept and the trial goes on. :class:`Executor` is the seam at which another machine can take the place of a local
process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Protocol

from .errors import Interrupted
from .judge.results import Outcome
from .worker import Job

_TAIL_LINES = 25
_GRACE_SECONDS = 5.0
_LOG_BYTES = 1 << 20  # of the beginning, and as much of the end, of what a process prints


@dataclass(frozen=True)
class Launch:
    """All that an executor needs: the job, the environment on top of the caller's own, where output goes, and a
    limit.
    """

    job: Job
    environment: dict[str, str]
    logs: Path
    timeout_seconds: float


class Executor(Protocol):
    """Runs one child to its end and says what became of it."""

    def run(self, launch: Launch) -> Outcome: ...


def frozen_environment(threads: int, cache: Path | None) -> dict[str, str]:
    """Variables that every child gets, so that cells differ in what is compared and in nothing else."""
    count = str(threads)
    fixed = {
        "OMP_NUM_THREADS": count,  # the order of sums, and the time they take, depend on the number of threads
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "PYTHONHASHSEED": "0",  # iteration order of sets reaches graph capture and cache keys
        "PYTHONUNBUFFERED": "1",  # a killed process must not take its last words with it
        # Only the target's own setting of a mode makes a cell adaptive; the caller's switch must not.
        "SHAKEDOWN_ADAPTIVE": "0",
        # A trial observes what is captured; a graph that is not captured again would be missing from its evidence.
        "SHAKEDOWN_PRECOMPILE": "0",
        "TORCH_CACHING_PRECOMPILE": "0",
        "TORCH_NEURONX_ENABLE_CONCATENATION": "0",
    }
    if cache is not None:
        fixed["SHAKEDOWN_CACHE_DIR"] = str(cache)  # the embedded device keeps compiled programs here
        fixed["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "torch")  # and PyTorch's own compiler its files
    return fixed


def available_threads(asked: int) -> int:
    """`asked`, or the cores that this process may use."""
    if asked:
        return asked
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


WORKER = (sys.executable, "-m", "shakedown.readiness.worker")


class LocalProcesses:
    """Children of this process, each the leader of its own group, so that all it started ends with it."""

    def __init__(self, command: tuple[str, ...] = WORKER) -> None:
        self.command = command
        self._child: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def stop(self) -> None:
        """End the child that runs now, from another thread: :meth:`run` raises Interrupted there, now and ever after."""
        self._stopped = True
        if self._child is not None:
            end(self._child)

    def run(self, launch: Launch) -> Outcome:
        launch.logs.mkdir(parents=True, exist_ok=True)
        name = launch.job.cell
        job_file = launch.logs / f"{name}.job.json"
        job_file.write_text(json.dumps(asdict(launch.job), indent=1))
        command = [*self.command, str(job_file)]
        started = time.time()
        environment = os.environ | launch.environment | {"SHAKEDOWN_SPAWNED_AT": repr(started)}
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._child = child
        error_file = launch.logs / f"{name}.stderr"
        kept = [
            BoundedLog(child.stdout, launch.logs / f"{name}.stdout"),
            BoundedLog(child.stderr, error_file),
        ]
        late = False
        try:
            code = child.wait(timeout=launch.timeout_seconds)
        except subprocess.TimeoutExpired:
            late = True
            code = end(child)
        except KeyboardInterrupt:
            raise Interrupted(f"stopped during {name}") from None
        finally:
            end(child)
            for log in kept:
                log.close()
        if self._stopped:
            raise Interrupted(f"stopped during {name}")
        return outcome(code, late, time.time() - started, launch.timeout_seconds, error_file, launch.logs.parent)


class BoundedLog:
    """Writes a stream to `file`: its beginning and its end, when a workload prints more than both can hold."""

    def __init__(self, stream: IO[bytes] | None, file: Path) -> None:
        assert stream is not None
        self._stream, self._file = stream, file
        self._tail: deque[bytes] = deque()
        self._seen = self._tail_bytes = 0
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        with self._file.open("wb") as out:
            while chunk := os.read(self._stream.fileno(), 1 << 16):
                room = max(_LOG_BYTES - self._seen, 0)
                self._seen += len(chunk)
                if room:
                    out.write(chunk[:room])
                    out.flush()
                if chunk[room:]:
                    self._tail.append(chunk[room:])
                    self._tail_bytes += len(chunk[room:])
                while self._tail_bytes - len(self._tail[0] if self._tail else b"") > _LOG_BYTES:
                    self._tail_bytes -= len(self._tail.popleft())
            if left_out := self._seen - _LOG_BYTES - self._tail_bytes:
                out.write(f"\n... {left_out} bytes left out ...\n".encode() if left_out > 0 else b"")
            out.write(b"".join(self._tail))

    def close(self) -> None:
        """Wait until all is written. A stray grandchild that holds the pipe open cannot hold this up."""
        self._thread.join(_GRACE_SECONDS)


def end(child: subprocess.Popen[bytes]) -> int:
    """End the child's whole group, politely first, and return the child's exit code. Its leader may be gone while something
    that it started is not: that must not disturb whoever comes next.
    """
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, sign)
        except (ProcessLookupError, PermissionError):  # macOS says the second of a group that has ended
            break
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=_GRACE_SECONDS)
    return child.wait()


def outcome(code: int, late: bool, seconds: float, limit: float, error_file: Path, root: Path) -> Outcome:
    """Put an exit into words. A negative code is a signal that the child did not survive."""
    tail = "\n".join(error_file.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
    last = tail.strip().splitlines()[-1] if tail.strip() else "nothing on standard error"
    file = error_file.relative_to(root).as_posix()
    if late:
        status, reason = "timeout", f"still running after {limit:.0f} s and ended"
    elif code < 0:
        status, reason = "killed", f"died of {signal_name(-code)}: {last}"
    elif code:
        status, reason = "crashed", f"exit code {code}: {last}"
    else:
        status, reason, tail = "finished", "", ""
    return Outcome(
        status=status,  # type: ignore[arg-type]
        exit_code=code,
        seconds=seconds,
        stderr_file=file,
        stderr_tail=tail,
        reason=reason,
    )


def signal_name(number: int) -> str:
    """`SIGKILL`, or `signal 64` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
