"""Save, end the process, load in a new one: do the updates after it equal those of the run that was not interrupted?

Two processes per cell. The first trains, saves as PyTorch users do (``torch.save`` of both state dicts), and goes on; the
second loads everything onto the CPU, moves it, and goes on from there. At least two updates are compared: with a lost
optimizer state the first loss after a restart is still right. The checkpoint is scratch and no part of the record.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import evidence, requirements, snapshot, targets, workload
from .evidence.restart import Side
from .observe import numerics
from .step import Stepper
from .whole import compile_stepper
from .worker import RESTART_ROLES, Job

STEPS_BEFORE, UPDATES = 2, 3


def run(job: Job) -> None:
    """One of the two processes, by ``job.role``; writes ``evidence/<cell>/before.json`` or ``after.json``."""
    target = targets.get(job.target)
    device = targets.open_device(target)
    loaded = workload.load(job.source)
    dtype = getattr(torch, job.dtype)
    restored = snapshot.restore(loaded, job.path("snapshot"), dtype)
    batches = restored.batches[job.cases[0]]
    checkpoint = job.path("scratch", job.cell, "checkpoint.pt")
    before = job.role == RESTART_ROLES[0]
    if before:
        stepper = Stepper(loaded, restored, device, job.path("snapshot"))
        stepper.reset()
        _compiled(job, stepper, target)
        snapshot.seed_everything(snapshot.SEED)
        for number in range(STEPS_BEFORE):
            stepper.step(batches[number % len(batches)], _no_span)
        _save(stepper, checkpoint, target)
    else:
        kept = torch.load(checkpoint, map_location="cpu", weights_only=True)
        restored.model.load_state_dict(kept["model"])
        stepper = Stepper(loaded, restored, device, job.path("snapshot"))
        stepper.optimizer = snapshot.build_optimizer(loaded, stepper.model)
        if stepper.optimizer is not None:
            stepper.optimizer.load_state_dict(kept["optimizer"])
        _compiled(job, stepper, target)
        for name, value in kept["rng"].items():
            _generator(name).set_rng_state(value)
    targets.wait(target)
    held = _held(stepper, target)
    losses: list[float | None] = []
    samples = []
    for number in range(STEPS_BEFORE, STEPS_BEFORE + UPDATES):
        batch = batches[number % len(batches)]
        samples.append(snapshot.hash_tensors(batch))
        stepper.step(batch, _no_span, lambda outputs, loss: losses.append(_number(loss)))
    capture = numerics.Capture()
    capture.weights(STEPS_BEFORE + UPDATES, stepper.model, stepper.optimizer)
    file, digest = numerics.keep_tensors(Path(job.root), job.cell, capture)
    evidence.write(
        Side(
            steps_before=STEPS_BEFORE, samples=samples, losses=losses, tensors_file=file, tensors_sha256=digest, **held
        ),
        job.path("evidence", job.cell, "before.json" if before else "after.json"),
    )
    if not before:
        checkpoint.unlink()


def _no_span(name: str) -> AbstractContextManager[None]:
    return nullcontext()


def _compiled(job: Job, stepper: Stepper, target: targets.Target) -> None:
    if job.mode == "compiled":
        compile_stepper(stepper, target, requirements.unlock(job.path("requirements.json")))


def _save(stepper: Stepper, checkpoint: Path, target: targets.Target) -> None:
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    part = checkpoint.with_suffix(f".{os.getpid()}")
    optimizer: Any = None if stepper.optimizer is None else stepper.optimizer.state_dict()
    rng = {name: _generator(name).get_rng_state() for name in _generators(target)}
    torch.save({"model": stepper.model.state_dict(), "optimizer": optimizer, "rng": rng}, part)
    part.replace(checkpoint)


def _generators(target: targets.Target) -> list[str]:
    """Modules whose random state a training run holds: the CPU's, and the device's where it has one."""
    own = getattr(torch, target.device, None)
    return ["cpu"] + ([target.device] if target.device != "cpu" and hasattr(own, "get_rng_state") else [])


def _generator(name: str) -> Any:
    return torch if name == "cpu" else getattr(torch, name)


def _number(loss: Tensor | None) -> float | None:
    return None if loss is None else evidence.finite(float(loss.detach().float().cpu()))


def _hash(value: Tensor) -> str:
    return snapshot.hash_tensors({"": value})


def _held(stepper: Stepper, target: targets.Target) -> dict[str, Any]:
    """Hashes of all state, and what lies on the wrong device."""
    model: nn.Module = stepper.model
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    state: dict[str, str] = {}
    elsewhere: list[str] = []
    groups: Any = None
    if stepper.optimizer is not None:
        groups = [{k: v for k, v in group.items() if k != "params"} for group in stepper.optimizer.param_groups]
        for parameter, entries in stepper.optimizer.state.items():
            for key, value in entries.items():
                if not isinstance(value, Tensor):
                    continue
                name = f"{names.get(id(parameter), 'other')}.{key}"
                state[name] = _hash(value)
                if value.device != parameter.device and key != "step":
                    elsewhere.append(f"{name} on {value.device}")
    return {
        "weights": {name: _hash(value) for name, value in model.state_dict().items()},
        "optimizer": state,
        "groups": hashlib.sha256(evidence.canonical(groups)).hexdigest(),
        "rng": {name: _hash(_generator(name).get_rng_state()) for name in _generators(target)},
        "elsewhere": sorted(elsewhere),
    }
