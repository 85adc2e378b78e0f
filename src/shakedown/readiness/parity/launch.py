"""The process that a training script runs in: ``python -m shakedown.readiness.parity.launch JOB.json``.

The script is run as ``python SCRIPT ARGS`` would run it. Two things are added from outside, both before its first update: the
types of device that its weights lie on are noted, and in a twin each weight is nudged. A module's weights are met at the first
forward call of any module, and whatever an optimizer holds beyond them before that optimizer's first step; after that
nothing of ours is in the way.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .. import evidence, snapshot, targets
from ..errors import BadInput
from ..selftest import inject
from ..worker import WORKLOAD_AT_FAULT, read_job
from .job import ScriptJob, Seen
from .nudge import Nudger

WHEN = "at the first forward call of a module, or before an optimizer's first step"


class Watch:
    """Meets the weights of a script that knows nothing of it."""

    def __init__(self, nudger: Nudger | None) -> None:
        self.nudger = nudger
        self.devices: set[str] = set()
        self._updated: list[Any] = []  # optimizers that have made a step
        self._forward = register_module_forward_pre_hook(self._called)
        self._step = register_optimizer_step_pre_hook(self._steps)

    def close(self) -> None:
        """Look no more."""
        self._forward.remove()
        self._step.remove()

    def _meet(self, weights: list[Tensor]) -> None:
        self.devices |= {weight.device.type for weight in weights if weight.requires_grad}
        if self.nudger is not None:
            self.nudger(weights)

    @torch.compiler.disable
    def _called(self, module: nn.Module, inputs: Any) -> None:
        weights = [weight for weight in module.parameters() if not is_lazy(weight)]
        if weights:
            self._forward.remove()
            self._meet(weights)

    @torch.compiler.disable
    def _steps(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if any(optimizer is one for one in self._updated):
            return
        self._updated.append(optimizer)
        self._meet([weight for group in optimizer.param_groups for weight in group["params"]])


def run(job: ScriptJob) -> int:
    """Run the script; its exit code. What was seen is written even where the script fails."""
    target = targets.get(job.target)
    targets.require(target)
    snapshot.seed_everything(snapshot.SEED)
    watch = Watch(Nudger(job.dtype, job.twin) if job.twin else None)
    script = str(job.source.path)
    sys.argv = [script, *job.arguments]
    sys.path[0] = str(job.source.path.parent)
    try:
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    finally:
        watch.close()
        nudge = None if watch.nudger is None else watch.nudger.said(WHEN)
        seen = Seen(
            family=targets.family(target),
            devices=sorted(watch.devices),
            nudge=nudge,
            faults=list(inject.active()),
        )
        evidence.write(seen, Path(job.root) / "runs" / f"{job.cell}.seen.json")
    return code


def main() -> int:
    """Read the job and run the script. 3: the device cannot be used."""
    job = read_job(json.loads(Path(sys.argv[1]).read_text()), ScriptJob)
    evidence.own()
    try:
        if not job.reference and job.target != "cpu" and os.environ.get(inject.VARIABLE):
            inject.switch_on(os.environ, job.role, job.mode)
        return run(job)
    except BadInput as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return WORKLOAD_AT_FAULT


if __name__ == "__main__":
    sys.exit(main())
