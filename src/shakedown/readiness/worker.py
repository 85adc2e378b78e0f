"""Stage 4: the child process. It restores, runs and writes evidence; it judges nothing.

``python -m shakedown.readiness.worker JOB.json``. Only the standard library is imported before the clock around
``import torch`` has stopped. Exit code 0: all evidence written; 3: the workload breaks its protocol; anything else is a
crash, whose traceback is on stderr and whose finished cases are on disk already.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from .workload import Source

_Job = TypeVar("_Job", bound="Job")
WORKLOAD_AT_FAULT = 3
CASE_FAILED = 1
RESTART_ROLES = ("restart_before", "restart_after")


@dataclass(frozen=True)
class Job:
    """What one child does, as the runner wrote it. Paths are relative to ``root``, the run's directory."""

    role: str  # snapshot | candidate | truth | probe | restart_before | restart_after | parity
    root: str
    workload: dict[str, str]
    cell: str
    requirements_sha256: str
    snapshot_sha256: str = ""
    target: str = "cpu"
    mode: str = "eager"
    dtype: str = "float32"
    cases: tuple[str, ...] = ()
    cache: str = "none"
    dtypes: tuple[str, ...] = ()  # snapshot: precisions of the trial; empty: the workload's own
    kind: str = "sequence"  # of the cell; see judge.results.Kind
    reference: bool = False
    subjects: tuple[str, ...] = ()  # truth: evidence files to recompute

    @property
    def source(self) -> Source:
        from .workload import Source

        return Source(self.workload["name"], Path(self.workload["path"]), self.workload["sha256"])

    def path(self, *parts: str) -> Path:
        return Path(self.root, *parts)


def read_job(raw: dict[str, Any], kind: type[_Job]) -> _Job:
    """A job as JSON has it, whose tuples are lists."""
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
    return kind(**fields)


def cache_before(job: Job) -> dict[str, Any]:
    """The experiment's cache directory before the device is opened: how many files, and their bytes."""
    folder = os.environ.get("SHAKEDOWN_CACHE_DIR")
    if job.cache == "none" or not folder:
        return {"state": "none", "files_before": 0, "bytes_before": 0, "note": "this target keeps no cache of its own"}
    files = [p for p in Path(folder).rglob("*") if p.is_file()]
    return {"state": job.cache, "files_before": len(files), "bytes_before": sum(p.stat().st_size for p in files)}


def perform(job: Job, launch: float = 0.0, import_torch: float = 0.0) -> bool:
    """Do the job in this process; False when a case of it failed. `launch` and `import_torch` are seconds that were
    spent before.
    """
    from . import candidate, evidence, restart, snapshot, targets, truth
    from .parity import train
    from .probe import run as probe

    evidence.own()
    if job.role == "snapshot":
        targets.require(targets.get(job.target))  # before anything is made or measured
        snapshot.make(job)
    elif job.role in RESTART_ROLES:
        restart.run(job)
    elif job.role == "probe":
        probe.run(job)
    elif job.role == "parity":
        train.run(job)
    elif job.role == "truth":
        return truth.recompute(job)
    else:
        return candidate.Candidate(job, launch, import_torch, cache_before(job)).run()
    return True


def leave(job: Job, code: int) -> None:
    """End here when the workload left threads behind that the interpreter would wait for, and say so in the evidence."""
    left = [t.name for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon and t.is_alive()]
    if not left:
        return
    from . import evidence
    from .evidence.failure import Leftovers

    evidence.write(Leftovers(threads=sorted(left)), job.path("evidence", job.cell, "leftovers.json"))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> int:
    """Read the job, stop the clock around ``import torch``, perform."""
    launch = time.time() - float(os.environ.get("SHAKEDOWN_SPAWNED_AT", time.time()))
    raw = json.loads(Path(sys.argv[1]).read_text())
    job = read_job(raw, Job)
    start = time.perf_counter()
    import torch  # noqa: F401

    import_torch = time.perf_counter() - start
    from .errors import BadInput

    code = CASE_FAILED
    try:
        if os.environ.get("SHAKEDOWN_FAULT") and job.target != "cpu" and job.role not in ("snapshot", "truth"):
            from .selftest import inject  # a device that is to be wrong: docs/selftest.md

            inject.switch_on(os.environ, job.role, job.mode)
        code = 0 if perform(job, launch, import_torch) else CASE_FAILED
    except BadInput as error:  # of the workload, or of the device that was asked for
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = WORKLOAD_AT_FAULT
    except Exception:
        traceback.print_exc()
    leave(job, code)
    gc.freeze()  # else the interpreter sorts through a million objects on its way out: over a second in every process
    return code


if __name__ == "__main__":
    sys.exit(main())
