"""The meta kernel of ``_grouped_mm`` as the CPU kernel behaves: PyTorch's own takes bfloat16 only, and pads no rows."""

from __future__ import annotations

import warnings

import torch

from .metas import _library

_OP = torch.ops.aten._grouped_mm.default
_own = _OP.py_kernels.get(torch._C.DispatchKey.Meta)  # says what is wrong with a call


def _follow(tensor: torch.Tensor) -> bool:
    """Rows or columns follow each other without overlap at multiples of 16 bytes, as the operator asks."""
    (outer, inner), (rows, columns) = tensor.stride()[-2:], tensor.shape[-2:]
    apart = 16 // tensor.element_size()
    return (inner == 1 and outer >= max(1, columns) and outer % apart == 0) or (
        outer == 1 and inner >= max(1, rows) and inner % apart == 0
    )


def _right(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> bool:
    """Whether sizes, strides and dtypes are ones that the CPU kernel takes."""
    if a.dtype is not b.dtype or a.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return False
    flat_a, flat_b = a.dim() == 2, b.dim() == 2
    if not (flat_a or a.dim() == 3) or not (flat_b or b.dim() == 3) or not (_follow(a) and _follow(b)):
        return False
    if (offs is not None) != (flat_a or flat_b) or (offs is not None and offs.dim() != 1):
        return False
    counts = {m.shape[0] for m in (a, b) if m.dim() == 3} | ({offs.shape[0]} if offs is not None else set())
    return len(counts) == 1 and a.shape[-1] == b.shape[-2]


def _grouped_mm(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    if bias is not None or out_dtype not in (None, self.dtype) or not _right(self, mat2, offs):
        assert _own is not None
        return _own(self, mat2, offs, bias, out_dtype)
    rows, columns = self.shape[-2], mat2.shape[-1]
    apart = 16 // self.element_size()
    padded = -(-columns // apart) * apart
    if self.dim() != mat2.dim():
        return self.new_empty_strided((rows, columns), (padded, 1))
    groups = self.shape[0] if offs is None else offs.shape[0]
    return self.new_empty_strided((groups, rows, columns), (rows * padded, padded, 1))


if _own is not None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Oo]verriding a previously registered kernel.*")
        _library.impl(_OP, _grouped_mm, "Meta")
    _OP.py_kernels[torch._C.DispatchKey.Meta] = _grouped_mm
