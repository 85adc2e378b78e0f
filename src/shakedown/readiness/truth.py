"""Stage 4, second kind of child: what exact arithmetic makes of each stage that a device went through.

Comparing two training runs after several steps compares the trajectories, and trajectories part for innocent reasons:
Adam divides a gradient by its own size, so a gradient that is nothing but rounding noise moves its weight by a full
learning rate in a direction that no two devices share. Therefore each stage is recomputed in float64 *from the device's
own state before it*:

* outputs, loss, gradients and buffers of step i: from the weights the device had after step i-1 (for i = 1: the
  snapshot);
* weights after step i: from those weights and the device's own gradients of steps 1 to i, with the workload's
  optimizer.

If every stage is right given its start, the run is right by induction, and each gate can be as tight as one stage's
rounding. The device supplies starting points, never a result that it is compared with.
"""

from __future__ import annotations

import traceback

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from . import evidence, requirements, snapshot, targets, workload
from .errors import WorkloadError
from .evidence.failure import Failure
from .observe import identity, numerics
from .probe import task
from .worker import Job

# Truth is stored in a precision that outresolves the judged one by 2^16 or more.
_STORED = {"float32": torch.float64, "bfloat16": torch.float32, "float16": torch.float64}


def _to_double(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}


def recompute(job: Job) -> bool:
    """Write the truth of every piece of evidence in ``job.subjects``, under ``evidence/truth/<hash>``.

    A workload that cannot be recomputed in float64 leaves a failure there instead; False when there was one.
    """
    loaded = workload.load(job.source)
    demand = requirements.unlock(job.path("requirements.json"))
    who = identity.capture(targets.get("cpu"))
    restored: dict[str, snapshot.Restored] = {}
    first_steps: dict[tuple[str, str], numerics.Capture] = {}
    well = True
    for subject in job.subjects:
        seen = evidence.read(evidence.Evidence, job.path(subject))
        if seen.dtype not in restored:
            restored[seen.dtype] = snapshot.restore(loaded, job.path("snapshot"), getattr(torch, seen.dtype))
        start = restored[seen.dtype]
        beside = job.path("evidence", "truth", seen.tensors_sha256[:16])
        try:
            capture = _follow(job, loaded, start, seen, demand.numerics.steps, first_steps)
        except WorkloadError:
            raise
        except Exception as error:
            well = False
            traceback.print_exc()
            failure = Failure(case=seen.case, error=type(error).__name__, message=str(error)[:2000])
            evidence.write(failure, beside.with_suffix(".failure.json"))
            continue
        evidence.leave_if_forked()
        beside.parent.mkdir(parents=True, exist_ok=True)
        file, part = beside.with_suffix(".safetensors"), beside.with_suffix(".part")
        stored = _STORED[seen.dtype]
        save_file({k: v.to(stored) if v.is_floating_point() else v for k, v in capture.tensors.items()}, part)
        part.replace(file)
        if demand.task.function:
            batches = start.batches[seen.case.split("#")[0]]
            scored = beside.with_suffix(".task.json")
            task.keep(loaded, demand.task.function, capture.tensors, batches, seen.tensors_sha256, scored)
        evidence.write(
            evidence.Truth(
                of_tensors_sha256=seen.tensors_sha256,
                case=seen.case,
                dtype=seen.dtype,
                identity=who,
                snapshot_sha256=job.snapshot_sha256,
                requirements_sha256=job.requirements_sha256,
                tensors_file=file.relative_to(job.root).as_posix(),
                tensors_sha256=evidence.sha256(file),
                tensors=capture.infos,
            ),
            beside.with_suffix(".json"),
        )
    return well


def _follow(
    job: Job,
    loaded: workload.Workload,
    start: snapshot.Restored,
    seen: evidence.Evidence,
    steps: int,
    first_steps: dict[tuple[str, str], numerics.Capture],
) -> numerics.Capture:
    """Recompute the stages of one run. The first forward and backward are shared by all runs of a case and
    precision.
    """
    kept = load_file(job.path(seen.tensors_file))
    shape = seen.case.split("#")[0]
    model = start.model.double()
    model.load_state_dict(start.weights)
    optimizer = snapshot.build_optimizer(loaded, model)
    if optimizer is not None:
        snapshot.restore_optimizer(optimizer, job.path("snapshot"))
    sparse = {f"step{t.step}/gradient/{t.name}" for t in seen.tensors if t.role == "gradient" and t.sparse}
    capture = numerics.Capture()
    for number in range(1, steps + 1):
        if number > 1:
            _load(model, kept, number - 1)
        model.zero_grad(set_to_none=True)
        shared = first_steps.get((seen.dtype, shape)) if number == 1 else None
        if shared is not None:
            capture.tensors |= shared.tensors
            capture.infos += shared.infos
        else:
            with torch.set_grad_enabled(optimizer is not None):
                result = loaded.forward(model, _to_double(start.batches[shape][number - 1]))
                outputs, loss = numerics.outputs_of(result, optimizer is not None)
                if optimizer is not None and loss is not None:
                    loss.backward()
            for output, value in outputs.items() if number in (1, steps) else ():
                capture.keep(number, "output", output, value)
            if loss is not None:
                capture.keep(number, "loss", "loss", loss)
            capture.gradients(number, model)
            for name, value in model.named_buffers():
                capture.keep(number, "buffer", name, value)
            if number == 1:
                first = first_steps[seen.dtype, shape] = numerics.Capture()
                first.tensors, first.infos = dict(capture.tensors), list(capture.infos)
        for name, parameter in model.named_parameters():
            gradient = kept.get(f"step{number}/gradient/{name}")
            if gradient is not None:
                gradient = gradient.to(parameter.dtype).reshape(parameter.shape)
                if f"step{number}/gradient/{name}" in sparse:
                    gradient = gradient.to_sparse(1)  # rows of an embedding; its optimizer may take nothing else
            parameter.grad = gradient
        if optimizer is not None:
            optimizer.step()
        for name, parameter in model.named_parameters():
            capture.keep(number, "weight", name, parameter)
        if optimizer is not None:
            capture.state(number, model, optimizer)
    return capture


@torch.no_grad()
def _load(model: torch.nn.Module, kept: dict[str, Tensor], number: int) -> None:
    """Put the model where the device was after step `number`."""
    for role, values in (("weight", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, value in values:
            value.copy_(kept[f"step{number}/{role}/{name}"].to(value.dtype).reshape(value.shape))
