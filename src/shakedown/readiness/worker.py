"""Stage 4: the child process. It restores, runs and writes evidence; it judges nothing.

``python -m shakedown.readiness.worker JOB.json``. Only the standard library is imported before the clock around
``import torch`` has stopped. Exit code 0: all evidence written; 3: the workload breaks its protocol; anything else is a
crash, whose traceback is on stderr and whose finished cases are on disk already.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .workload import Source

WORKLOAD_AT_FAULT = 3


@dataclass(frozen=True)
class Job:
    """What one child does, as the runner wrote it. Paths are relative to ``root``, the run's directory."""

    role: str  # snapshot | candidate | truth
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
    subjects: tuple[str, ...] = ()  # truth: evidence files to recompute

    @property
    def source(self) -> Source:
        from .workload import Source

        return Source(self.workload["name"], Path(self.workload["path"]), self.workload["sha256"])

    def path(self, *parts: str) -> Path:
        return Path(self.root, *parts)


def _cache_before(job: Job) -> dict[str, Any]:
    folder = os.environ.get("SHAKEDOWN_CACHE_DIR")
    if job.cache == "none" or not folder:
        return {"state": "none", "files_before": 0, "bytes_before": 0, "note": "this target keeps no cache of its own"}
    files = [p for p in Path(folder).rglob("*") if p.is_file()]
    return {"state": job.cache, "files_before": len(files), "bytes_before": sum(p.stat().st_size for p in files)}


def _snapshot(job: Job) -> None:
    from . import requirements, snapshot, workload

    steps = requirements.unlock(job.path("requirements.json")).numerics.steps
    loaded = workload.load(job.source)
    cases = [workload.Case.parse(text) for text in job.cases] or list(loaded.cases)
    snapshot.create(loaded, cases, steps, job.path("snapshot"))
    declared = {"cases": [str(case) for case in cases], "dtypes": list(loaded.dtypes)}
    job.path("logs", "declared.json").write_text(json.dumps(declared))


def _candidate(job: Job, launch: float, import_torch: float, cache: dict[str, Any]) -> None:
    from .candidate import Candidate

    Candidate(job, launch, import_torch, cache).run()


def _truth(job: Job) -> None:
    from .truth import recompute

    recompute(job)


def main() -> int:
    launched = time.time()
    raw = json.loads(Path(sys.argv[1]).read_text())
    job = Job(**{**raw, "cases": tuple(raw["cases"]), "subjects": tuple(raw["subjects"])})
    cache = _cache_before(job)
    launch = launched - float(os.environ.get("SHAKEDOWN_SPAWNED_AT", launched))
    start = time.perf_counter()
    import torch  # noqa: F401

    import_torch = time.perf_counter() - start
    from .errors import WorkloadError

    try:
        if job.role == "snapshot":
            _snapshot(job)
        elif job.role == "truth":
            _truth(job)
        else:
            _candidate(job, launch, import_torch, cache)
    except WorkloadError as error:
        print(f"WorkloadError: {error}", file=sys.stderr)
        return WORKLOAD_AT_FAULT
    return 0


if __name__ == "__main__":
    sys.exit(main())
