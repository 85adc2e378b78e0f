"""Stage 2: weights, inputs, labels, seeds and optimizer state, made once on the CPU and restored identically.

Everything is stored as safetensors (plain arrays, no code on load) and described by ``snapshot.json``, whose SHA-256
names the snapshot. Restoring for a precision rounds the stored weights and floating inputs to it *on the CPU*, so that
every device starts from the same bits, and the float64 truth starts from the rounded values: the cost of rounding the
weights is the workload's choice of precision, not an error of the device.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from . import matrix, requirements, variations
from . import workload as workload_file
from .errors import EvidenceError, WorkloadError
from .evidence import leave_if_forked, sha256, write, write_atomic
from .observe import lines
from .scan import root_of
from .worker import Job
from .workload import Case, Workload

SCHEMA = "shakedown.snapshot/1"
SEED = 1234


class SnapshotInfo(BaseModel):
    """The description that is hashed: what the snapshot holds, and the hash of each file that holds it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: str = SCHEMA
    workload: str
    workload_sha256: str
    dimensions: dict[str, Any]
    seed: int
    steps: int
    cases: list[str]
    reduction_lengths: dict[str, int]
    parameters: int
    dropout_switched_off: list[str]
    optimizer: str
    optimizer_groups: list[dict[str, Any]]
    files: dict[str, str]


@dataclass(frozen=True)
class Restored:
    """A workload as the snapshot has it, on the CPU, in one precision. ``sha256`` covers weights and batches."""

    model: nn.Module
    weights: dict[str, Tensor]
    batches: dict[str, list[dict[str, Tensor]]]
    sha256: str


def seed_everything(seed: int) -> None:
    """Seed every generator a workload may draw from."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _switch_off_dropout(model: nn.Module) -> list[str]:
    """Set every dropout module to zero: random masks differ between devices by design and would hide everything
    else.
    """
    found = []
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p:
            module.p = 0.0
            found.append(name)
        elif isinstance(module, nn.MultiheadAttention) and module.dropout:
            module.dropout = 0.0
            found.append(name)
    return found


def build(workload: Workload, seed: int) -> tuple[nn.Module, list[str]]:
    """The model under a fixed seed, in training mode, on the CPU; and the names of its dropouts, which are off."""
    seed_everything(seed)
    model = workload.build_model()
    if not isinstance(model, nn.Module):
        raise WorkloadError(f"build_model() returned {type(model).__name__}, not a torch.nn.Module")
    return model.train(), _switch_off_dropout(model)


def _reduction_length(workload: Workload, model: nn.Module, case: Case) -> int:
    """Terms in the longest sum of a step: declared, or the largest of any weight's sides, fan-in and the batch's
    tokens.
    """
    if workload.reduction_length is not None:
        return int(workload.reduction_length(case.size, case.length))
    sides = [max(p.shape[0], p.numel() // p.shape[0]) for p in model.parameters() if p.dim() > 1 and p.numel()]
    return max([case.size * case.length, *sides])


def build_optimizer(workload: Workload, model: nn.Module) -> torch.optim.Optimizer | None:
    """The workload's optimizer; None where it has none, or nothing that could be trained."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return None
    optimizer = workload.build_optimizer(model.parameters())
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise WorkloadError(f"build_optimizer() returned {type(optimizer).__name__}, not a torch.optim.Optimizer")
    return optimizer


def make_batch(workload: Workload, case: Case, step: int) -> dict[str, Tensor]:
    """The batch of one step, under a seed of its own."""
    seed_everything(SEED + step)
    batch = workload.make_batch(case.size, case.length)
    if not isinstance(batch, dict) or not all(isinstance(value, Tensor) for value in batch.values()):
        raise WorkloadError("make_batch() must return a dict of tensors")
    return batch


def make(job: Job) -> None:
    """The snapshot process: decide on the cases, make the snapshot, write down what the workload says about itself, and
    which of its lines ran meanwhile.
    """
    demand = requirements.unlock(job.path("requirements.json"))
    with lines.record([root_of(job.source.path)]) as seen:
        loaded = workload_file.load(job.source)
        plain = matrix.plain_cases(demand, loaded.cases, job.cases)
        varied = {}
        for text in matrix.wanted_variations(demand, plain):
            case = Case.parse(text)
            varied[text] = variations.applicable(loaded, case, make_batch(loaded, case, 1))
        shapes = matrix.Shapes(plain, varied)
        cases = [Case.parse(text) for text in [*plain, *shapes.runnable()]]
        padded = {(case.size, case.length): case.padded_to for case in demand.cases}
        dtypes = job.dtypes or loaded.dtypes
        create(loaded, cases, demand.numerics.steps, job.path("snapshot"), padded, dtypes)
    write(seen.document(), job.path("evidence", "snapshot", "lines.json"))
    declared = {"plain": plain, "varied": varied, "dtypes": list(loaded.dtypes)}
    write_atomic(job.path("logs", "declared.json"), json.dumps(declared).encode())


def create(
    workload: Workload,
    cases: Iterable[Case],
    steps: int,
    folder: Path,
    padded: Mapping[tuple[int, int], int] | None = None,
    dtypes: tuple[str, ...] | None = None,
) -> SnapshotInfo:
    """Make the snapshot in `folder`: the model as built under a fixed seed, and `steps` batches for each case.

    `padded` says to which length a shape is padded in the variation of that name; `dtypes` are the precisions that large
    and tiny values must fit.
    """
    model, switched_off = build(workload, SEED)
    optimizer = build_optimizer(workload, model)
    leave_if_forked()
    folder.mkdir(parents=True)
    cases = list(cases)
    batches: dict[str, Tensor] = {}
    for case in dict.fromkeys(cases):
        for step in range(1, steps + 1):
            batch = make_batch(workload, case, step)
            if case.variation:
                target = (padded or {}).get((case.size, case.length), 0)
                batch = variations.vary(workload, batch, case, padded_to=target, dtypes=dtypes)
            batches |= {f"{case}/{step}/{name}": value.detach().clone() for name, value in batch.items()}
    state: dict[str, Any] = {"state": {}, "param_groups": []} if optimizer is None else optimizer.state_dict()
    held = {
        f"{index}/{name}": value.detach().clone()
        for index, entries in state["state"].items()
        for name, value in entries.items()
        if isinstance(value, Tensor)
    }
    files = {}
    for name, content in {
        "weights.safetensors": {k: v.detach().clone().contiguous() for k, v in model.state_dict().items()},
        "batches.safetensors": {k: v.contiguous() for k, v in batches.items()},
        "optimizer.safetensors": held,
    }.items():
        save_file(content, folder / name)
        files[name] = sha256(folder / name)
    info = SnapshotInfo(
        workload=workload.source.name,
        workload_sha256=workload.source.sha256,
        dimensions=workload.dimensions,
        seed=SEED,
        steps=steps,
        cases=[str(case) for case in cases],
        reduction_lengths={str(case): _reduction_length(workload, model, case) for case in cases},
        parameters=sum(p.numel() for p in model.parameters()),
        dropout_switched_off=switched_off,
        optimizer="none" if optimizer is None else type(optimizer).__name__,
        optimizer_groups=[{k: v for k, v in group.items() if k != "params"} for group in state["param_groups"]],
        files=files,
    )
    write_atomic(folder / "snapshot.json", (info.model_dump_json(indent=1, fallback=repr) + "\n").encode())
    return info


def read_info(folder: Path) -> SnapshotInfo:
    """Read the description and check every file against it. Raises :class:`EvidenceError` on a difference."""
    info = SnapshotInfo.model_validate_json((folder / "snapshot.json").read_text())
    for name, expected in info.files.items():
        if sha256(folder / name) != expected:
            raise EvidenceError(f"{folder / name} is not the file that the snapshot was made with")
    return info


def restore(workload: Workload, folder: Path, dtype: torch.dtype) -> Restored:
    """Rebuild model and batches from `folder`, rounded to `dtype`; integers and masks keep their dtype."""
    info = read_info(folder)
    model, _ = build(workload, info.seed)
    model.load_state_dict(load_file(folder / "weights.safetensors"), strict=True)
    model.to(dtype)
    batches: dict[str, list[dict[str, Tensor]]] = {}
    for key, value in load_file(folder / "batches.safetensors").items():
        case, step, name = key.split("/", 2)
        steps = batches.setdefault(case, [{} for _ in range(info.steps)])
        steps[int(step) - 1][name] = value.to(dtype) if value.is_floating_point() else value
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    flat = weights | {f"{c}/{i}/{n}": v for c, s in batches.items() for i, b in enumerate(s) for n, v in b.items()}
    return Restored(model, weights, batches, hash_tensors(flat))


def restore_optimizer(optimizer: torch.optim.Optimizer, folder: Path) -> torch.optim.Optimizer:
    """Give a newly built optimizer the state it had in the snapshot (none, for most workloads)."""
    held = load_file(folder / "optimizer.safetensors")
    if held:
        state = optimizer.state_dict()
        for key, value in held.items():
            index, name = key.split("/", 1)
            state["state"].setdefault(int(index), {})[name] = value
        optimizer.load_state_dict(state)
    return optimizer


def hash_tensors(tensors: dict[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bits of CPU copies of `tensors`."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.hexdigest()
