"""Which operators one training step of a workload uses, by running it once on the device."""

from __future__ import annotations

from . import snapshot, targets, workload
from .evidence import PathRow
from .observe import numerics, paths


def operators_used(spec: str) -> list[PathRow]:
    """Operators executed and fallen back, by phase, in the first step of the workload's first case in its first dtype.

    Raises:
        WorkloadError: the workload cannot be found or does not keep the protocol.
    """
    import torch

    loaded = workload.load(workload.resolve(spec))
    target = targets.get("neuron")
    device = targets.open_device(target)
    case, dtype = loaded.cases[0], getattr(torch, loaded.dtypes[0])
    snapshot.seed_everything(0)
    model = loaded.build_model().to(dtype).to(device)
    batch = {
        name: value.to(dtype if value.is_floating_point() else value.dtype).to(device)
        for name, value in loaded.make_batch(case.size, case.length).items()
    }
    optimizer = loaded.build_optimizer(model.parameters())
    observer = paths.recorder(target)
    with observer.step() as rows:
        with observer.phase("forward"):
            _, loss = numerics.outputs_of(loaded.forward(model, batch))
        with observer.phase("backward"):
            loss.backward()
        with observer.phase("optimizer"):
            optimizer.step()
    return [row for row in rows if row.kind in ("execute", "fallback")]
