"""One question, put to a process of its own: what hangs, crashes or changes global state there cannot hurt the asker."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runner import end, signal_name


@dataclass(frozen=True)
class Ended:
    """How the process ended: ``reason`` is empty where it ended well, else one line; ``answer`` is the file it may have
    written.
    """

    reason: str
    exit_code: int | None
    answer: bytes | None


def ask(module: str, job: dict[str, Any], timeout_seconds: float) -> Ended:
    """Run ``python -m module JOB.json`` to its end, with ``out`` added to the job: the file for its answer.

    The process, and all that it started, is ended after `timeout_seconds`; KeyboardInterrupt ends it too.
    """
    with tempfile.TemporaryDirectory(prefix="shakedown-") as folder:
        out, log = Path(folder, "answer.json"), Path(folder, "stderr")
        job_file = Path(folder, "job.json")
        job_file.write_text(json.dumps(job | {"out": str(out)}))
        with log.open("wb") as errors:
            child = subprocess.Popen(
                [sys.executable, "-m", module, str(job_file)],
                stdin=subprocess.DEVNULL,
                stdout=errors,  # what a user's file prints must not end up in a JSON answer
                stderr=errors,
                start_new_session=True,
            )
            try:
                code: int | None = child.wait(timeout=timeout_seconds)
                reason = _words(code, log)
            except subprocess.TimeoutExpired:
                code, reason = None, f"no answer within {timeout_seconds:g} s"
            finally:
                end(child)
        return Ended(reason, code, out.read_bytes() if out.exists() else None)


def _words(code: int | None, log: Path) -> str:
    if not code:
        return ""
    lines = log.read_text(errors="replace").strip().splitlines() or ["nothing on standard error"]
    if code < 0:
        return f"died of {signal_name(-code)}: {lines[-1]}"
    return f"exit code {code}: {lines[-1]}"
