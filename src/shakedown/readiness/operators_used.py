"""Which operators one step of a workload uses, by running it once on the device."""

from __future__ import annotations

from . import snapshot, targets, workload
from .evidence import PathRow
from .observe import numerics, paths


def operators_used(spec: str) -> list[PathRow]:
    """Operators executed and fallen back, by phase, in the first step of the workload's first case in its first dtype.

    Raises:
        BadInput: the workload cannot be found or does not keep the protocol, or there is no `neuron` device.
    """
    import torch

    loaded = workload.load(workload.resolve(spec))
    target = targets.get("neuron")
    device = targets.open_device(target)
    dtype = getattr(torch, loaded.dtypes[0])
    snapshot.seed_everything(snapshot.SEED)
    model = loaded.build_model().to(dtype).to(device)
    optimizer = snapshot.build_optimizer(loaded, model)
    batch = {
        name: value.to(dtype if value.is_floating_point() else value.dtype)
        for name, value in snapshot.make_batch(loaded, loaded.cases[0], 1).items()
    }
    observer = paths.recorder(target)
    with observer.step() as rows:
        with observer.phase("data"):
            batch = {name: value.to(device) for name, value in batch.items()}
        with observer.phase("forward"), torch.set_grad_enabled(optimizer is not None):
            _, loss = numerics.outputs_of(loaded.forward(model, batch), optimizer is not None)
        if optimizer is not None and loss is not None:
            with observer.phase("backward"):
                loss.backward()
            with observer.phase("optimizer"):
                optimizer.step()
    return [row for row in rows if row.kind in ("execute", "fallback")]
