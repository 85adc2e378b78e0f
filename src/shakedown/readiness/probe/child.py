"""One child of a probe job: ``python -m shakedown.readiness.probe.child JOB.json JOURNAL SECONDS``."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from .. import requirements, snapshot, targets, workload
from ..evidence.probes import Float64Tensor
from ..observe import identity
from ..observe.lines_of_user import Lines, definition
from ..selftest import inject
from ..step import Stepper
from ..worker import Job, read_job
from . import calls, canaries, doubles, measure, neighbours
from .run import Journal


def perform(job: Job, journal: Journal, seconds: float, backend: Any = None) -> None:
    """Do the probes that `journal` does not have yet, unchanged calls first, until `seconds` have passed.

    `backend` takes the place of the target's own ``torch.compile`` backend in compiled mode.
    """
    end = time.monotonic() + seconds
    demand = requirements.unlock(job.path("requirements.json"))
    loaded = workload.load(job.source)
    target = targets.get(job.target)
    device = targets.open_device(target)
    recorded, case = record(job, loaded, demand.variations.neighbour_operators)
    compiled = (backend or target.backend) if job.mode == "compiled" else None
    bench = measure.Bench(device, compiled, lambda: targets.wait(target), demand.numerics)
    if not journal.about():
        lines = recorded.float64_lines.items()
        made = [Float64Tensor(name=f"in {name}", origin="made in the step", line=line) for name, line in lines]
        found = [measure.order_dependent(call) for call in recorded.chosen]
        about = {
            "case": case,
            "identity": identity.capture(target),
            "distinct": recorded.distinct,
            "chosen": len(recorded.chosen),
            "unprobed": recorded.unprobed,
            "canaries": [one.model_dump() for one in canaries.canaries(bench)],
            "float64_tensors": [one.model_dump() for one in [*doubles.float64_tensors(loaded), *made]],
            "largest_int64": recorded.largest_int64,
            "order_dependent": [one.model_dump() for one in found if one is not None],
        }
        journal.append(about=about)
    forms = {
        (position, name): (call, variants)
        for position, call in enumerate(recorded.chosen)
        for name, variants in neighbours.forms(call)
    }
    # Unchanged calls first, then one variation after the other: where time runs out, every operator was looked at.
    order = sorted(forms, key=lambda key: (neighbours.ORDER.index(key[1]), key[0]))
    if not journal.plan():
        journal.append(plan=[[*key, _named(forms[key][0])] for key in order])
    done = journal.finished()
    for key in order:
        if key in done:
            continue
        if time.monotonic() > end:
            return
        call, variants = forms[key]
        journal.append(start=list(key))
        try:
            probed = bench.probe(
                call, key[1], variants, functools.partial(journal.append, device=list(key))
            ).model_dump()
        except Exception as error:  # errors of the operator are results already: this one is the trial's own
            traceback.print_exc()
            reason = f"the comparison itself failed: {measure.said(error)}"
            probed = _named(call) | {"variation": key[1], "outcome": "untested", "reason": reason}
        journal.append(done=list(key), probe=probed)


def _named(call: calls.Call) -> dict[str, Any]:
    """What is known of a probe before it is run."""
    return {
        "operator": call.name,
        "arguments": call.arguments[:300],
        "phase": call.phase,
        "line": call.line,
        "calls": call.calls,
        "tags": call.tags,
    }


def record(job: Job, loaded: workload.Workload, most: int) -> tuple[calls.Recorded, str]:
    """Calls of the first step of the job's first case, on the CPU, in its precision."""
    folder, dtype = job.path("snapshot"), getattr(torch, job.dtype)
    restored = snapshot.restore(loaded, folder, dtype)
    case = (job.cases or tuple(snapshot.read_info(folder).cases))[0]
    stepper = Stepper(loaded, restored, torch.device("cpu"), folder)
    lines = Lines(
        [loaded.source.path.parent], {"optimizer": definition(loaded.build_optimizer, [loaded.source.path.parent])}
    )

    def step(span: Any) -> None:
        stepper.reset()
        stepper.step(restored.batches[case][0], span)

    return calls.record(step, most, lines), case


def main() -> int:
    raw: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    job = read_job(raw, Job)
    inject.switch_on(os.environ, job.role, job.mode)
    perform(job, Journal(Path(sys.argv[2])), float(sys.argv[3]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
