"""The parity cells of a trial: the workload trained from the snapshot for many steps, its loss read after each.

The CPU's cell makes all runs that the others are judged by, one after the other in one process: the reference, the reference
again, the twins, and the run in the declared precision where that is narrower than float32 (the reference then computes in
float32, from the same rounded weights and inputs). A cell of the target makes one run. Each step has a batch of its own,
made under the same seed everywhere.
"""

from __future__ import annotations

import dataclasses
import hashlib
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from .. import evidence, requirements, snapshot, targets, workload
from ..evidence.losses import Losses, LossRole, LossRuns
from ..judge.formats import roundoff
from ..observe import identity
from ..step import Stepper
from ..whole import compile_stepper
from ..worker import Job
from .nudge import Nudger

_WHEN = "after the snapshot was restored, before the first step"


class _Runs:
    """The runs of one cell: batches made once, a stepper for each precision."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.demand = requirements.unlock(job.path("requirements.json")).parity
        self.target = targets.get(job.target)
        self.device = targets.open_device(self.target)
        self.workload = workload.load(job.source)
        self.case = workload.Case.parse(job.cases[0])
        self.samples = hashlib.sha256()
        self.batches: list[dict[str, Tensor]] = []
        dtype = getattr(torch, job.dtype)
        for step in range(1, self.demand.steps + 1):
            made = snapshot.make_batch(self.workload, self.case, step)
            batch = {name: value.to(dtype) if value.is_floating_point() else value for name, value in made.items()}
            self.samples.update(snapshot.hash_tensors(batch).encode())
            self.batches.append(batch)

    def stepper(self, dtype: str) -> Stepper:
        """Weights and inputs rounded to the cell's precision, computed with in `dtype`."""
        restored = snapshot.restore(self.workload, self.job.path("snapshot"), getattr(torch, self.job.dtype))
        wide = getattr(torch, dtype)
        if dtype != self.job.dtype:
            restored = dataclasses.replace(
                restored,
                model=restored.model.to(wide),
                weights={k: v.to(wide) if v.is_floating_point() else v for k, v in restored.weights.items()},
            )
        return Stepper(self.workload, restored, self.device, self.job.path("snapshot"))

    def run(self, stepper: Stepper, dtype: str, name: str, role: LossRole, nudger: Nudger | None = None) -> Losses:
        """Train from the snapshot; the losses of all steps."""
        stepper.reset()
        snapshot.seed_everything(snapshot.SEED)
        if nudger is not None:
            nudger(stepper.model.parameters())
        wide = getattr(torch, dtype)
        values: list[float] = []
        last: list[Tensor] = []
        reason = ""
        for batch in self.batches:
            given = {k: v.to(wide) if v.is_floating_point() else v for k, v in batch.items()}
            last.clear()
            stepper.step(given, _no_span, lambda outputs, loss: last.extend([] if loss is None else [loss.detach()]))
            if stepper.optimizer is None or not last:
                reason = "the workload does not train: it has no optimizer, or no loss"
                break
            values.append(float(last[0].float().cpu()))
        return Losses(
            name=name,
            role=role,
            device=self.job.target,
            dtype=self.job.dtype,
            steps=list(range(1, len(values) + 1)),
            losses=[evidence.finite(value) for value in values],
            not_finite={i: str(v) for i, v in enumerate(values, start=1) if evidence.finite(v) is None},  # type: ignore[misc]
            nudge=None if nudger is None else nudger.said(_WHEN),
            devices=sorted({parameter.device.type for parameter in stepper.model.parameters()}),
            samples_sha256=self.samples.hexdigest(),
            reason=reason,
        )


def run(job: Job) -> None:
    """One cell; writes ``evidence/<cell>/<case>.losses.json``."""
    making = _Runs(job)
    found: list[Losses] = []
    if not job.reference:
        stepper = making.stepper(job.dtype)
        if job.mode == "compiled":
            compile_stepper(stepper, making.target, requirements.unlock(job.path("requirements.json")))
        found.append(making.run(stepper, job.dtype, job.mode, "candidate"))
    else:
        narrow = roundoff(job.dtype) > roundoff("float32")
        dtype = "float32" if narrow else job.dtype
        stepper = making.stepper(dtype)
        found.append(making.run(stepper, dtype, "reference", "reference"))
        if not found[0].reason:
            found.append(making.run(stepper, dtype, "repeat", "repeat"))
            for number in range(1, making.demand.twins + 1):
                nudger = Nudger(job.dtype, number)
                found.append(making.run(stepper, dtype, f"twin {number}", "twin", nudger))
            if narrow:
                found.append(making.run(making.stepper(job.dtype), job.dtype, "low", "low"))
    who = identity.capture(making.target, job.source.path)
    document = LossRuns(
        identity=who["fixed"],
        snapshot_sha256=job.snapshot_sha256,
        requirements_sha256=job.requirements_sha256,
        runs=found,
    )
    evidence.write(document, job.path("evidence", job.cell, f"{job.cases[0]}.losses.json"))


def _no_span(name: str) -> AbstractContextManager[None]:
    return nullcontext()
