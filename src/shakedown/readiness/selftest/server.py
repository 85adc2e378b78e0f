"""A process that does jobs one after the other: ``python -m shakedown.readiness.selftest.server``.

The float64 truth of a hundred small trials would otherwise be a hundred starts of Python and PyTorch. It does no work of a
device: every process that a fault can reach is one of its own. A line of standard input is the path of a job, the answering
line its exit code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import IO

from ..judge.results import Outcome
from ..runner import frozen_environment
from ..worker import Job, perform, read_job

_COMMAND = (sys.executable, "-m", "shakedown.readiness.selftest.server")


def main() -> int:
    """Do what comes until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a job prints must not get between the answers
    for line in sys.stdin:
        code = 1
        try:
            code = 0 if perform(read_job(json.loads(Path(line.strip()).read_text()), Job)) else 1
        except Exception:
            traceback.print_exc()
        print(code, file=answers, flush=True)
    return 0


class Server:
    """The process seen from outside. ``with Server(log) as server: server.do(job)``."""

    def __init__(self, log: Path, threads: int = 1) -> None:
        self._log, self._threads = log, threads
        self._child: subprocess.Popen[str] | None = None
        self._errors: IO[bytes] | None = None

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._child is not None:
            assert self._child.stdin is not None
            self._child.stdin.close()
            self._child.wait()
            self._child = None
        if self._errors is not None:
            self._errors.close()

    def stop(self) -> None:
        """End the process from another thread; what it was doing has failed."""
        if self._child is not None:
            self._child.kill()

    def do(self, job: Path, timeout: float) -> Outcome:
        """Have the job in the file `job` done. A server that dies or takes longer than `timeout` seconds is an outcome, and
        the next job gets a new one.
        """
        if self._child is None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            self._errors = self._log.open("ab")
            environment = os.environ | frozen_environment(self._threads, None)
            self._child = subprocess.Popen(
                _COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env=environment,
                start_new_session=True,
            )
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        watchdog = threading.Timer(timeout, child.kill)
        watchdog.start()
        try:
            child.stdin.write(f"{job}\n")
            child.stdin.flush()
            answer = child.stdout.readline().strip()
        except BrokenPipeError:
            answer = ""
        finally:
            watchdog.cancel()
        if not answer:
            code = child.wait()
            self._child = None
            return Outcome(status="crashed", exit_code=code, reason=f"the process of the self-test ended with {code}")
        code = int(answer)
        return Outcome(status="crashed" if code else "finished", exit_code=code)


if __name__ == "__main__":
    sys.exit(main())
