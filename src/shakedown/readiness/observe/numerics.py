"""Copy tensors of a step to the host, in a form that NumPy reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, overload

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ..errors import WorkloadError
from ..evidence import Role, TensorInfo, leave_if_forked, sha256


class Capture:
    """Tensors of one case, kept under ``step<i>/<role>/<name>``."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.infos: list[TensorInfo] = []
        self.missing_gradients: set[str] = set()

    def keep(self, step: int, role: Role, name: str, value: Tensor) -> None:
        """Copy `value` to the host. Half precisions widen to float32, which changes no value; complex becomes pairs."""
        sparse = value.layout is not torch.strided
        host = value.detach().cpu()
        if sparse:
            host = host.to_dense()
        if host.is_complex():
            host = torch.view_as_real(host.resolve_conj())
        if host.dtype in (torch.bfloat16, torch.float16):
            host = host.float()
        elif host.dtype is torch.bool:
            host = host.to(torch.uint8)
        # A copy that came from the device is ours; what was on the host already goes on changing with the model.
        if value.device.type == "cpu":
            host = host.clone(memory_format=torch.contiguous_format)
        self.tensors[f"step{step}/{role}/{name}"] = host.contiguous()
        dtype = str(value.dtype).removeprefix("torch.")
        self.infos.append(
            TensorInfo(step=step, role=role, name=name, dtype=dtype, shape=tuple(value.shape), sparse=sparse)
        )

    def gradients(self, step: int, model: nn.Module) -> None:
        """Keep the gradient of every parameter; parameters without one are remembered by name."""
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                self.missing_gradients.add(name)
            else:
                self.keep(step, "gradient", name, parameter.grad)

    def weights(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Keep every parameter and persistent buffer as it is now, and the optimizer's state of each parameter."""
        for name, value in model.named_parameters():
            self.keep(step, "weight", name, value)
        for name, value in model.named_buffers():
            self.keep(step, "buffer", name, value)
        if optimizer is not None:
            self.state(step, model, optimizer)

    def state(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Keep the tensors that the optimizer remembers, under the name of their parameter."""
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        for parameter, held in optimizer.state.items():
            for key, value in held.items():
                if isinstance(value, Tensor):
                    self.keep(step, "state", f"{names.get(id(parameter), 'other')}.{key}", value)


@overload
def outputs_of(result: Any, trains: Literal[True] = True) -> tuple[dict[str, Tensor], Tensor]: ...
@overload
def outputs_of(result: Any, trains: bool) -> tuple[dict[str, Tensor], Tensor | None]: ...
def outputs_of(result: Any, trains: bool = True) -> tuple[dict[str, Tensor], Tensor | None]:
    """Check what ``forward`` returned; give outputs by name, and the loss (None where nothing is trained).

    Outputs may be nested: tensors in dicts, lists, tuples and dataclasses are named by their path, ``hidden.0``.
    """
    if not (isinstance(result, tuple) and len(result) == 2):
        raise WorkloadError("forward() must return a pair (outputs, loss)")
    outputs, loss = result
    named: dict[str, Tensor] = {"output": outputs} if isinstance(outputs, Tensor) else dict(_flat("", outputs))
    if not named:
        raise WorkloadError("forward() must return outputs as a tensor, or tensors in dicts, lists or tuples")
    if loss is None and not trains:
        return named, None
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise WorkloadError("forward() must return the loss as a tensor with one element")
    return named, loss


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield prefix, value
        return
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    elif value is None or isinstance(value, bool | int | float | str):
        return
    else:
        raise WorkloadError(
            f"forward() returned an output of type {type(value).__name__}; give tensors, or nests of them"
        )
    for key, inner in items:
        yield from _flat(f"{prefix}.{key}" if prefix else str(key), inner)


def keep_tensors(root: Path, cell: str, capture: Capture) -> tuple[str, str]:
    """Write tensors under the name of their hash, so that processes that saw the same bits share one file.

    Returns the file's path below `root`, and its SHA-256.
    """
    leave_if_forked()
    folder = root / "evidence" / "tensors"
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{cell}.part"
    save_file(capture.tensors, part)
    digest = sha256(part)
    file = Path("evidence", "tensors", f"{digest[:32]}.safetensors")
    part.replace(root / file)
    return file.as_posix(), digest
