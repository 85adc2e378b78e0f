"""Copy tensors of a step to the host, in a form that NumPy reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import WorkloadError
from ..evidence import Role, TensorInfo


class Capture:
    """Tensors of one case, kept under ``step<i>/<role>/<name>``."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.infos: list[TensorInfo] = []
        self.missing_gradients: set[str] = set()

    def keep(self, step: int, role: Role, name: str, value: Tensor) -> None:
        """Copy `value` to the host. Half precisions widen to float32, which changes no value; complex becomes pairs."""
        host = value.detach().cpu()
        if host.is_complex():
            host = torch.view_as_real(host)
        if host.dtype in (torch.bfloat16, torch.float16):
            host = host.float()
        elif host.dtype is torch.bool:
            host = host.to(torch.uint8)
        self.tensors[f"step{step}/{role}/{name}"] = host.clone(memory_format=torch.contiguous_format)
        dtype = str(value.dtype).removeprefix("torch.")
        self.infos.append(TensorInfo(step=step, role=role, name=name, dtype=dtype, shape=tuple(value.shape)))

    def gradients(self, step: int, model: nn.Module) -> None:
        """Keep the gradient of every parameter; parameters without one are remembered by name."""
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                self.missing_gradients.add(name)
            else:
                self.keep(step, "gradient", name, parameter.grad)

    def weights(self, step: int, model: nn.Module) -> None:
        """Keep every parameter and persistent buffer as it is now."""
        parameters = dict(model.named_parameters())
        for name, value in parameters.items():
            self.keep(step, "weight", name, value)
        for name, value in model.named_buffers():
            self.keep(step, "buffer", name, value)


def outputs_of(result: Any) -> tuple[dict[str, Tensor], Tensor]:
    """Check what ``forward`` returned; give outputs by name, and the loss."""
    if not (isinstance(result, tuple) and len(result) == 2):
        raise WorkloadError("forward() must return a pair (outputs, loss)")
    outputs, loss = result
    if isinstance(outputs, Tensor):
        outputs = {"output": outputs}
    if not isinstance(outputs, dict) or not all(isinstance(value, Tensor) for value in outputs.values()):
        raise WorkloadError("forward() must return outputs as a tensor or a dict of tensors")
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise WorkloadError("forward() must return the loss as a tensor with one element")
    return outputs, loss
