"""Changes of a case that every mode and precision meets alike: padding, memory layout, logging, hard inputs.

:func:`vary` changes values and shapes, on the CPU, when the snapshot is made; :func:`relayout` changes only the memory order
of what was restored; ``logging`` changes no tensor at all. All are named after ``~`` in a case, as in ``2x32~padding``.

How hard the hard inputs are. With E the largest exponent of the narrowest range among the workload's precisions (127, or 15
where float16 is one of them), floating tensors are multiplied by the power of two that brings their largest magnitude

* ``large``: to 2^(E/4), so that products of four such values are still finite: a square, its sum, and the square of that in
  a backward pass;
* ``tiny``: to 2^(-E/2), so that their squares fall below the least normal number and are flushed to zero by devices that
  have no denormals, while the values themselves are not;
* ``ties``: nowhere, but they are rounded to at most seven levels, which every precision stores exactly: maxima are
  shared by many elements, and ``argmax``, ``topk`` and ``sort`` have several right answers.

A power of two changes no significand, so rounding the inputs to the precision of the run costs what it did before. Floating
tensors that are masks (only 0, 1 and infinities) and integers stay as they are. Where a batch is all integers, ``ties`` makes
all elements of a tensor equal (to its median), ``large`` makes them its largest value, and ``tiny`` does not apply;
negative integers stay, because they mark what is to be ignored. A workload that knows better defines
``hard_batch(size, length, kind)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .errors import WorkloadError
from .workload import Case, Workload

HARD = ("large", "tiny", "ties")
Batch = dict[str, Tensor]
_LARGEST_EXPONENT = {"float16": 15}  # float32 and bfloat16 share 127


def padded_length(length: int) -> int:
    """The next power of two above `length`."""
    return 1 << length.bit_length()


def applicable(loaded: Workload, case: Case, batch: Batch) -> str:
    """Why the variation of `case` cannot be made of `batch`; empty when it can. A case without a variation always can."""
    floating = [name for name, value in batch.items() if _scales(value)]
    counting = [name for name, value in batch.items() if _counts(value)]
    if case.variation == "padding" and loaded.pad is None:
        return "the workload has no function pad(batch, length)"
    if case.variation == "noncontiguous" and not any(value.dim() and value.numel() > 1 for value in batch.values()):
        return "no tensor of the batch has two elements whose order in memory could differ"
    if case.variation in HARD and loaded.hard_batch is None:
        if not floating and not counting:
            return "no tensor of the batch holds values that could be changed"
        if case.variation == "tiny" and not floating:
            return "all tensors of the batch are integers or masks, and integers have no tiny values"
    return ""


def vary(
    loaded: Workload, batch: Batch, case: Case, *, padded_to: int = 0, dtypes: tuple[str, ...] | None = None
) -> Batch:
    """The batch of a varied case, made from the plain one on the CPU. `batch` is left as it is.

    `padded_to` is the length to pad to, 0 for the next power of two above the case's length; `dtypes` are the precisions that
    hard inputs must suit, None for the workload's own. Raises :class:`WorkloadError` where :func:`applicable` has a reason,
    and where a function of the workload returns no batch like the plain one.
    """
    reason = applicable(loaded, case, batch)
    if reason:
        raise WorkloadError(f"case {case} cannot be made: {reason}")
    if case.variation == "padding":
        assert loaded.pad is not None
        length = padded_to or padded_length(case.length)
        if length < case.length:
            raise WorkloadError(f"case {case} cannot be padded to {length}, which is shorter than its length")
        return _like(batch, loaded.pad(dict(batch), length), f"pad(batch, {length})")
    if case.variation in HARD:
        if loaded.hard_batch is not None:
            made = loaded.hard_batch(case.size, case.length, case.variation)
            return _like(batch, made, f"hard_batch({case.size}, {case.length}, {case.variation!r})")
        return _hard(batch, case.variation, loaded.dtypes if dtypes is None else dtypes)
    return dict(batch)


def relayout(batch: Batch) -> Batch:
    """The same values in another memory order, on whatever device they are.

    Tensors take turns: the first keeps its last two dimensions the other way round in memory (as a transpose leaves them), the
    next is every second element of a buffer twice as wide (as slicing leaves them). A tensor with fewer than two dimensions
    longer than one can only be sliced; a single element has no order. A copy between devices straightens a
    sliced tensor and keeps a transposed one, so this is called on the device's own tensors.
    """
    return {name: _relaid(value, transposed=turn % 2 == 0) for turn, (name, value) in enumerate(batch.items())}


def _relaid(value: Tensor, transposed: bool) -> Tensor:
    if value.dim() == 0 or value.numel() < 2:
        return value
    if transposed and value.dim() > 1 and value.shape[-1] > 1 and value.shape[-2] > 1:
        return value.transpose(-1, -2).contiguous().transpose(-1, -2)
    axis = max(d for d in range(value.dim()) if value.shape[d] > 1)
    shape = list(value.shape)
    shape[axis] *= 2
    sliced = value.new_zeros(shape)[(slice(None),) * axis + (slice(None, None, 2),)]
    sliced.copy_(value)
    return sliced


def _like(plain: Batch, made: Any, what: str) -> Batch:
    """`made` if it is a batch with the names and dtypes of `plain`."""
    if not isinstance(made, dict) or not all(isinstance(value, Tensor) for value in made.values()):
        raise WorkloadError(f"{what} must return a dict of tensors, as make_batch() does")
    if made.keys() != plain.keys():
        names = ", ".join(sorted(made.keys() ^ plain.keys()))
        raise WorkloadError(f"{what} must return the tensors of make_batch(); only one of the two has {names}")
    for name, value in made.items():
        if value.dtype != plain[name].dtype:
            raise WorkloadError(f"{what} returned {name} as {value.dtype}; make_batch() makes it {plain[name].dtype}")
    return made


def _counts(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool) and value.numel() > 0


def _scales(value: Tensor) -> bool:
    """A floating tensor with values of its own; zeros, ones and infinities alone are a mask or carry nothing to scale."""
    if not value.is_floating_point() or not value.numel():
        return False
    finite = value[value.isfinite()]
    return bool(((finite != 0) & (finite != 1)).any())


def _hard(batch: Batch, kind: str, dtypes: tuple[str, ...]) -> Batch:
    if any(_scales(value) for value in batch.values()):
        largest = min((_LARGEST_EXPONENT.get(name, 127) for name in dtypes), default=127)
        change: Callable[[Tensor], Tensor] = {
            "large": lambda value: _scaled_to(value, largest // 4),
            "tiny": lambda value: _scaled_to(value, -largest // 2),
            "ties": _few_levels,
        }[kind]
        return {name: change(value) if _scales(value) else value for name, value in batch.items()}
    return {name: _one_value(value, kind) if _counts(value) else value for name, value in batch.items()}


def _exponent(value: Tensor) -> int:
    """Floor of the base-2 logarithm of the largest finite magnitude."""
    return math.frexp(float(value[value.isfinite()].abs().max()))[1] - 1


def _scaled_to(value: Tensor, exponent: int) -> Tensor:
    """`value` times the power of two that puts its largest magnitude into [2^exponent, 2^(exponent+1))."""
    return torch.ldexp(value.double(), torch.tensor(exponent - _exponent(value))).to(value.dtype)


def _few_levels(value: Tensor) -> Tensor:
    step = 2.0 ** (_exponent(value) - 1)
    return (value.double() / step).trunc().mul(step).to(value.dtype)


def _one_value(value: Tensor, kind: str) -> Tensor:
    valid = value[value >= 0]
    if not valid.numel():
        return value
    chosen = valid.max() if kind == "large" else valid.median()
    return torch.where(value >= 0, chosen, value)
