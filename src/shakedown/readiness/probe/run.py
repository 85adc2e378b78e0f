"""The probe job: children that do the probes, and a supervisor that goes on when one of them dies of a probe.

Every probe is announced in a journal before it is run, again when it is the device's turn, and written there when it is
done. Where a child dies, the announced probe is the one that it died of; the next child starts after it, so nothing that was
finished is lost or done twice.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import evidence, requirements
from ..evidence.probes import CallProbe, Canary, Float64Tensor, OrderDependent, Probes
from ..worker import Job

CHILD = (sys.executable, "-m", "shakedown.readiness.probe.child")
_MOST_DEATHS = 10  # a device that dies more often is not worth more time
_POLL_SECONDS = 0.1
_SHARE_OF_TIMEOUT = 0.8  # of the process's own limit: what was found must be written before the runner ends it


class Journal:
    """Lines of JSON: ``about`` (what the step held), ``plan`` (all probes), and of each probe ``start``, ``device``, ``done``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, **line: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()

    def lines(self) -> Iterator[dict[str, Any]]:
        for text in self.path.read_text().splitlines() if self.path.exists() else ():
            try:
                yield json.loads(text)
            except ValueError:
                continue  # the line that a process died in the middle of

    def about(self) -> dict[str, Any]:
        """What the step held, empty before a child came so far."""
        return next((line["about"] for line in self.lines() if "about" in line), {})

    def plan(self) -> list[list[Any]]:
        """Every probe of the job in order: position of the call, variation, the call's own description."""
        return next((line["plan"] for line in self.lines() if "plan" in line), [])

    def finished(self) -> dict[tuple[int, str], dict[str, Any]]:
        """Probes by key, those that ended their process included."""
        return {(line["done"][0], line["done"][1]): line["probe"] for line in self.lines() if "done" in line}

    def open(self) -> tuple[int, str] | None:
        """The probe that was started and not finished."""
        started = [(line["start"][0], line["start"][1]) for line in self.lines() if "start" in line]
        return started[-1] if started and started[-1] not in self.finished() else None

    def reached_device(self, key: tuple[int, str]) -> bool:
        """Whether the CPU had answered, and it was the device's turn."""
        return any((line["device"][0], line["device"][1]) == key for line in self.lines() if "device" in line)


def run(job: Job, command: tuple[str, ...] = CHILD) -> Probes:
    """Do all probes of `job` in child processes, write ``evidence/<cell>/probes.json`` and return it."""
    demand = requirements.unlock(job.path("requirements.json"))
    allowed = min(demand.variations.neighbour_seconds, _SHARE_OF_TIMEOUT * demand.run.timeout_seconds)
    folder = job.path("evidence", job.cell)
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal(job.path("logs", f"{job.cell}.probes.jsonl"))
    journal.path.parent.mkdir(parents=True, exist_ok=True)
    journal.path.unlink(missing_ok=True)
    job_file = job.path("logs", f"{job.cell}.probe-job.json")
    job_file.write_text(json.dumps(asdict(job), indent=1))
    end = time.monotonic() + allowed
    processes, reason = 0, ""
    while processes <= _MOST_DEATHS:
        processes += 1
        child = subprocess.Popen([*command, str(job_file), str(journal.path), repr(end - time.monotonic())])
        code, ended = _wait(child, journal, end, allowed / 4)
        if code == 0:
            break
        if not _bury(journal, code, ended):
            reason = f"the process ended with exit code {code} before its first probe"
            if ended:
                reason = f"the first probe was not reached in {allowed:.0f} s"
            break
        if time.monotonic() > end:
            break
    else:
        reason = f"{processes} processes died of a probe, and the rest was not tried"
    document = assemble(job, journal, processes, reason or _time_up(journal, allowed))
    evidence.write(document, folder / "probes.json")
    return document


def _wait(child: subprocess.Popen[bytes], journal: Journal, end: float, longest: float) -> tuple[int, str]:
    """Wait for the child. It is ended when the time is up and a last probe had its while, or when one probe has taken
    `longest` seconds; then the outcome of that probe is given with the exit code.
    """
    since, seen = time.monotonic(), -1
    while True:
        try:
            return child.wait(timeout=_POLL_SECONDS), ""
        except subprocess.TimeoutExpired:
            pass
        now = time.monotonic()
        size = journal.path.stat().st_size if journal.path.exists() else 0
        if size != seen:
            since, seen = now, size
        stuck = now - since > longest and journal.open() is not None
        if stuck or now > end + longest / 4:
            child.kill()
            return child.wait(), "hung" if stuck else "untested"


def _bury(journal: Journal, code: int, ended: str) -> bool:
    """Write down the probe that the child died of, or was `ended` in; False where there is none."""
    key = journal.open()
    call = next((entry[2] for entry in journal.plan() if (entry[0], entry[1]) == key), None)
    if key is None or call is None:
        return False
    died = f"the process ended with exit code {code}"
    outcome = ended or "crashed"
    reason = {"hung": "ended after its time", "untested": "still running when the time was over"}.get(ended, died)
    if not ended and not journal.reached_device(key):
        outcome, reason = "untested", f"PyTorch's own CPU kernel does not survive it ({died})"
    journal.append(done=list(key), probe=call | {"variation": key[1], "outcome": outcome, "reason": reason})
    return True


def _time_up(journal: Journal, allowed: float) -> str:
    left = len(journal.plan()) - len(journal.finished())
    return f"{left} probes were left when {allowed:.0f} s were over" if left > 0 else ""


def assemble(job: Job, journal: Journal, processes: int, reason: str) -> Probes:
    """The document, from the journal: probes in order, those that were not run as untested."""
    about, finished = journal.about(), journal.finished()
    probes = []
    for position, variation, call in journal.plan():
        done = finished.get((position, variation))
        if done is None:
            done = call | {
                "variation": variation,
                "outcome": "untested",
                "reason": reason or "the process ended before it",
            }
        probes.append(CallProbe.model_validate(done))
    for operator, why in about.get("unprobed", {}).items():
        empty = {"operator": operator, "arguments": "", "phase": "", "line": "", "calls": 0, "tags": []}
        probes.append(CallProbe(**empty, variation="same", outcome="untested", reason=why))
    return Probes(
        cell=job.cell,
        case=about.get("case", ""),
        mode=job.mode,
        dtype=job.dtype,
        target=job.target,
        identity=about.get("identity", {}),
        snapshot_sha256=job.snapshot_sha256,
        requirements_sha256=job.requirements_sha256,
        distinct=about.get("distinct", 0),
        chosen=about.get("chosen", 0),
        probes=probes,
        canaries=[Canary.model_validate(one) for one in about.get("canaries", [])],
        float64_tensors=[Float64Tensor.model_validate(one) for one in about.get("float64_tensors", [])],
        largest_int64=about.get("largest_int64", 0),
        order_dependent=[OrderDependent.model_validate(one) for one in about.get("order_dependent", [])],
        processes=processes,
        reason=reason,
    )
