"""When a result on the device counts as the CPU's: the tolerances, the choices PyTorch leaves open, the float64 judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .databases import mapped, tensors

# (relative, absolute), by the dtype of the result. Sums and products of many terms differ by their order, so each is
# about a hundred units in the last place for float32 and float64, and about four for the 16-bit types.
TOLERANCE = {
    torch.float32: (1e-4, 1e-4),
    torch.float64: (1e-7, 1e-7),
    torch.bfloat16: (2e-2, 2e-2),
    torch.float16: (4e-3, 4e-3),
    torch.complex64: (1e-4, 1e-4),
    torch.complex128: (1e-7, 1e-7),
    torch.complex32: (4e-3, 4e-3),
}
GRADIENT_SCALE = 4.0  # a gradient is a longer chain of roundings than its forward pass

# Entries whose values come from a random stream, which is each device's own, or from memory that nobody wrote: sizes
# and dtypes are compared, values are not.
VALUES_ARE_FREE = {
    *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "uniform"),
    *(
        "rand_like",
        "randn",
        "randn_like",
        "randint",
        "randint_like",
        "randperm",
        "normal.in_place",
        "normal.number_mean",
    ),
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
    *("nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.alpha_dropout"),
    *("nn.functional.feature_alpha_dropout", "nn.functional.rrelu", "nn.functional.fractional_max_pool2d"),
    *("nn.functional.fractional_max_pool3d", "pca_lowrank", "svd_lowrank", "torch.ops.aten._fused_dropout"),
    "nn.functional.multi_head_attention_forward",
}
# Entries that return, after the values, indices of elements, where PyTorch says that any of several equal elements may
# be named: the indices are right when they point at equal values. The functions say where `dim` stands.
TIES = {"sort", "argsort", "topk", "kthvalue", "mode", "median", "nanmedian", "cummax", "cummin"}


# Factorisations that are unique up to signs or phases: compared through the entry's own function for what is unique.
UP_TO_SIGNS = {"linalg.eigh", "linalg.eig", "linalg.svd", "svd", "linalg.qr", "qr"}


@dataclass(frozen=True)
class Difference:
    """The outcome of one comparison: what is wrong ("" when nothing is) and the largest errors among finite values."""

    problem: str = ""
    absolute: float = 0.0
    relative: float = 0.0
    judged_by_float64: bool = False


def draws(sample: Any) -> bool:
    """Whether a sample asks for dropout."""
    return any(sample.kwargs.get(name, 0) for name in ("dropout_p", "dropout"))


def structure(actual: Any, expected: Any) -> str:
    """What differs between two results apart from values: number, sizes, dtypes, layouts. "" when nothing does."""
    got, want = tensors(actual), tensors(expected)
    if len(got) != len(want):
        return f"{len(got)} tensors, expected {len(want)}"
    for a, e in zip(got, want):
        if a.dtype is not e.dtype:
            return f"dtype {a.dtype}, expected {e.dtype}"
        if a.layout is not e.layout:
            return f"layout {a.layout}, expected {e.layout}"
        if not a.is_nested and a.shape != e.shape:
            return f"sizes {tuple(a.shape)}, expected {tuple(e.shape)}"
    return ""


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    made = tensor.detach().cpu()
    if made.is_nested:
        made = made.to_padded_tensor(0.0)
    if made.layout is not torch.strided:
        made = made.to_dense()
    return made.resolve_conj().resolve_neg()


def _errors(actual: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """Largest absolute and relative error where both are finite."""
    wide = torch.complex128 if expected.dtype.is_complex else torch.float64
    a, e = actual.to(wide), expected.to(wide)
    finite = torch.isfinite(a) & torch.isfinite(e)
    if not bool(finite.any()):
        return 0.0, 0.0
    a, e = a[finite], e[finite]
    off = (a - e).abs()
    return float(off.max()), float((off / e.abs().clamp_min(torch.finfo(torch.float32).tiny)).max())


def compare(
    actual: Any,
    expected: Any,
    *,
    scale: float = 1.0,
    truth: Any = None,
    tie_source: torch.Tensor | None = None,
    dim: int = -1,
) -> Difference:
    """Same structure, dtypes and values (NaN equals NaN; strides aside).

    `truth` is the same result computed in float64 (complex128), or None: an element outside the tolerance is right after
    all where it is no farther from the truth than twice the CPU's own error. `tie_source` is the tensor whose elements
    the integer results number along `dim`, where ties may be resolved either way.
    """
    problem = structure(actual, expected)
    if problem:
        return Difference(problem)
    got = [_dense(t) for t in tensors(actual)]
    want = [_dense(t) for t in tensors(expected)]
    exact = [_dense(t) for t in tensors(truth)] if truth is not None else None
    if exact is not None and [t.shape for t in exact] != [t.shape for t in want]:
        exact = None
    absolute = relative = 0.0
    judged = False
    for number, (a, e) in enumerate(zip(got, want)):
        if e.dtype.is_floating_point or e.dtype.is_complex:
            off, share = _errors(a, e)
            absolute, relative = max(absolute, off), max(relative, share)
        rtol, atol = (value * scale for value in TOLERANCE.get(e.dtype, (0.0, 0.0)))
        try:
            torch.testing.assert_close(a, e, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            if tie_source is not None and e.dtype is torch.int64 and _same_elements(tie_source, a, e, dim):
                continue
            if exact is not None and _as_close_as_the_cpu(a, e, exact[number], rtol, atol):
                judged = True
                continue
            return Difference(" ".join(str(error).split())[:400], absolute, relative)
    return Difference("", absolute, relative, judged)


def _same_elements(source: torch.Tensor, actual: torch.Tensor, expected: torch.Tensor, dim: int) -> bool:
    values = _dense(source)
    if values.dim() == 0:
        return True
    if dim < 0:
        dim += values.dim()
    if actual.dim() == values.dim() - 1:
        actual, expected = actual.unsqueeze(dim), expected.unsqueeze(dim)
    if actual.dim() != values.dim() or bool((actual < 0).any()) or bool((actual >= values.shape[dim]).any()):
        return False
    if values.is_floating_point() or values.dtype.itemsize > 1:
        values = values.double() if not values.dtype.is_complex else values
    picked, wanted = values.gather(dim, actual), values.gather(dim, expected)
    return bool(((picked == wanted) | ((picked != picked) & (wanted != wanted))).all())


def _as_close_as_the_cpu(
    actual: torch.Tensor, cpu: torch.Tensor, truth: torch.Tensor, rtol: float, atol: float
) -> bool:
    if not (cpu.dtype.is_floating_point or cpu.dtype.is_complex):
        return False
    wide = torch.complex128 if cpu.dtype.is_complex else torch.float64
    a, c, t = actual.to(wide), cpu.to(wide), truth.to(wide)
    same = (a == t) | (a.isnan() & t.isnan())
    # A value that overflows the dtype rounds to infinity: the truth, rounded, is what it should be.
    rounded = truth.to(cpu.dtype).to(wide)
    same |= (a == rounded) | (a.isnan() & rounded.isnan())
    near = (a - t).abs() <= torch.maximum(2 * (c - t).abs(), atol + rtol * t.abs())
    return bool((same | near).all())


def widened(value: Any) -> Any:
    """`value` with floating tensors and dtypes as float64 and complex ones as complex128, gradients required as before."""

    def wide(t: torch.Tensor) -> torch.Tensor:
        target = torch.complex128 if t.dtype.is_complex else torch.float64 if t.dtype.is_floating_point else t.dtype
        return t.detach().to(target).requires_grad_(t.requires_grad)

    made = mapped(value, wide)
    if isinstance(made, dict):
        return {k: _wide_dtype(v) for k, v in made.items()}
    if isinstance(made, (list, tuple)) and not hasattr(made, "_fields"):
        return type(made)(_wide_dtype(v) for v in made)
    return made


def _wide_dtype(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.complex128 if value.is_complex else torch.float64 if value.is_floating_point else value
    return value
