"""How far one tensor is from truth, and whether that is more than rounding explains.

:func:`measure` gives a vector of numbers, since any single one can be fooled: a zeroed row keeps cosine 0.998, a
uniform 0.2 % scaling keeps cosine 1.0000000, and a correct sequential sum fails a fixed elementwise tolerance.
:func:`gates` turns the vector into findings. Arrays are NumPy's; truth is float64.

Notation: c device, t truth, r the CPU at the same precision with its own truth, u unit roundoff, K terms in the longest
sum.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from ..requirements import Criterion, Numerics
from . import formats

_TINY = 1e-300
_HUGE = 1e12  # a ratio to nothing: any number would mislead, and JSON has no infinity
_ACCUMULATE = "float32"  # half precisions multiply in their own format and add in this one


@dataclass(frozen=True)
class Allowed:
    """Largest error that passes, as L2 norms: of the whole tensor and of each row; and what they are shares of."""

    whole: float
    rows: np.ndarray
    scale: float


@dataclass(frozen=True)
class Subject:
    """One tensor to judge, with all that is known about it. ``start`` is a weight's value before the step."""

    name: str
    role: str
    dtype: str
    device: np.ndarray
    truth: np.ndarray
    reference_error: np.ndarray | None
    reduction: int
    decided_in: str = "float32"
    peers_rms: float = 0.0
    start: np.ndarray | None = None


@dataclass(frozen=True)
class Vector:
    """The numbers of one tensor. ``margin`` is error over allowed error: above 1 the tensor fails."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    relative_l2: float
    allowed_relative_l2: float
    margin: float
    ratio_to_cpu: float | None
    ulp_mean: float | None
    ulp_share_above: float | None
    worst_row: int | None
    worst_row_relative_l2: float | None
    row_margin: float | None
    max_abs: float
    max_abs_at: tuple[int, ...]
    outside_criterion: float | None
    nonfinite_mismatches: int
    bias_sigmas: float | None
    mean_error: float
    scale_minus_one: float | None
    update_made: float | None
    findings: tuple[str, ...] = ()


def _rows(values: np.ndarray, role: str) -> np.ndarray:
    """View as rows: positions of an output (all but its last axis), units of a weight or gradient (its first axis)."""
    if values.ndim < 2 or not values.size:
        return values.reshape(1, -1)
    return values.reshape(-1, values.shape[-1]) if role == "output" else values.reshape(values.shape[0], -1)


def norm(values: np.ndarray) -> float:
    """L2 norm. Not through BLAS, whose threads cost more than they save here and change the order of the sum."""
    return math.sqrt(float(np.square(values).sum()))


def _row_norms(rows: np.ndarray) -> np.ndarray:
    return np.sqrt(np.square(rows).sum(axis=1))


def allowed(subject: Subject, demand: Numerics) -> Allowed:
    """The gate: what rounding explains, by theory or by what the CPU itself shows at this precision.

    Theory: c*sqrt(K)*u of the precision sums are made in, or c*u of the precision results are stored in, whichever is
    larger, relative to the tensor's own norm. For a weight the norm counts once (it is stored again) and its update
    with sqrt(K) for the optimizer's roundings. Small tensors are judged on the scale of their peers. Practice: a
    multiple of the CPU's error in the same tensor.
    """
    truth_rows = _rows(subject.truth, subject.role)
    own = _rows(subject.reference_error, subject.role) if subject.reference_error is not None else None
    u = formats.roundoff(subject.dtype)
    if subject.start is not None:
        update = subject.truth - subject.start
        relative = demand.rounding_factor * u
        grown = math.sqrt(demand.update_operations)
        scale = norm(subject.truth) + grown * norm(update)
        row_scale = _row_norms(truth_rows) + grown * _row_norms(_rows(update, subject.role))
    else:
        in_sums = formats.roundoff(_ACCUMULATE) if u > formats.roundoff(_ACCUMULATE) else u
        relative = demand.rounding_factor * max(math.sqrt(subject.reduction) * in_sums, u)
        floor = demand.floor_share * subject.peers_rms * math.sqrt(max(subject.truth.size, 1))
        scale = max(norm(subject.truth), floor)
        row_scale = _row_norms(truth_rows)
    whole = relative * scale
    if own is not None:
        whole = max(whole, demand.reference_factor * norm(own))
    row_scale = np.maximum(row_scale, demand.floor_share * scale / math.sqrt(max(len(truth_rows), 1)))
    rows = demand.row_factor * whole / max(scale, _TINY) * row_scale
    if own is not None:
        rows = np.maximum(rows, demand.reference_factor * float(_row_norms(own).max(initial=0.0)))
    return Allowed(whole, rows, scale)


def measure(subject: Subject, demand: Numerics) -> Vector:
    """All numbers of one tensor, with the findings that its gates make of them."""
    if not np.issubdtype(subject.device.dtype, np.floating):
        return _decisions(subject, demand)
    device, truth = subject.device.astype(np.float64), subject.truth.astype(np.float64)
    mismatched = int((np.isfinite(device) != np.isfinite(truth)).sum())
    sound = np.isfinite(device) & np.isfinite(truth)
    device, truth = np.where(sound, device, 0.0), np.where(sound, truth, 0.0)
    start = None if subject.start is None else np.where(np.isfinite(subject.start), subject.start, 0.0)
    subject = dataclasses.replace(subject, device=device, truth=truth, start=start)
    # A weight is compared with the nearest storable number: an update below half a spacing is lost on every device.
    target = formats.rounded(truth, subject.dtype) if subject.start is not None else truth
    error = device - target
    limit = allowed(subject, demand)
    row_error = _row_norms(_rows(error, subject.role))
    row_margins = np.minimum(row_error / np.maximum(limit.rows, _TINY), _HUGE)
    worst = int(row_margins.argmax()) if row_margins.size else 0
    several = row_margins.size > 1
    row_truth = _row_norms(_rows(truth, subject.role))
    spaced = np.abs(error) / formats.spacing(truth, subject.dtype)
    criterion = criterion_of(subject, demand)
    outside = None
    if criterion is not None and error.size:
        outside = float((np.abs(device - truth) > criterion.absolute + criterion.relative * np.abs(truth)).mean())
    own = None if subject.reference_error is None else norm(subject.reference_error)
    at = np.unravel_index(int(np.abs(error).argmax()), error.shape) if error.size else ()
    deviation = float(error.std()) / math.sqrt(max(error.size, 1))
    mean = float(error.mean()) if error.size else 0.0
    squared = float((truth * truth).sum())
    vector = Vector(
        name=subject.name,
        role=subject.role,
        dtype=subject.dtype,
        shape=tuple(truth.shape),
        relative_l2=norm(error) / limit.scale if limit.scale else norm(error),
        allowed_relative_l2=limit.whole / limit.scale if limit.scale else 0.0,
        margin=_ratio(norm(error), limit.whole),
        ratio_to_cpu=None if not own else norm(error) / own,
        ulp_mean=float(spaced.mean()) if error.size else None,
        ulp_share_above=float((spaced > demand.ulp_threshold).mean()) if error.size else None,
        worst_row=worst if several else None,
        worst_row_relative_l2=_ratio(float(row_error[worst]), float(row_truth[worst])) if several else None,
        row_margin=float(row_margins[worst]) if several else None,
        max_abs=float(np.abs(error).max(initial=0.0)),
        max_abs_at=tuple(int(i) for i in at),
        outside_criterion=outside,
        nonfinite_mismatches=mismatched,
        bias_sigmas=_ratio(abs(mean), deviation),
        mean_error=mean,
        scale_minus_one=float((error * truth).sum()) / squared if squared else None,
        update_made=_update_made(subject, target),
    )
    return dataclasses.replace(vector, findings=tuple(gates(vector, subject, error, limit, demand)))


def _ratio(value: float, limit: float) -> float:
    if value == 0:
        return 0.0
    return min(value / limit, _HUGE) if limit else _HUGE


def _decisions(subject: Subject, demand: Numerics) -> Vector:
    """Integers and masks: equal, but for decisions between near ties.

    A counter or an index has one right answer. An output such as ``argmax`` flips on a correct device where two values
    lie within rounding of each other; it may do so as often as row_factor * c * u says, or a multiple of the CPU's.
    """
    wrong = subject.device != subject.truth
    count, total = int(wrong.sum()), max(wrong.size, 1)
    limit = 0.0
    if subject.role == "output":
        # The precision that values are decided in is not the integer's own; `decided_in` is that of the run.
        near = demand.row_factor * demand.rounding_factor * formats.roundoff(subject.decided_in)
        own = 0 if subject.reference_error is None else int((subject.reference_error != 0).sum())
        limit = max(math.floor(near * total), demand.reference_factor * own)
    at = tuple(int(i) for i in np.argwhere(wrong)[0]) if count else ()
    difference = np.abs(subject.device.astype(np.float64) - subject.truth.astype(np.float64))
    text = f"{count} of {total} values differ, {limit:.0f} could be near ties; the first at {list(at)}"
    return Vector(
        name=subject.name,
        role=subject.role,
        dtype=subject.dtype,
        shape=tuple(subject.truth.shape),
        relative_l2=count / total,
        allowed_relative_l2=limit / total,
        margin=_ratio(count, limit),
        ratio_to_cpu=None,
        ulp_mean=None,
        ulp_share_above=None,
        worst_row=None,
        worst_row_relative_l2=None,
        row_margin=None,
        max_abs=float(difference.max(initial=0.0)),
        max_abs_at=at,
        outside_criterion=None,
        nonfinite_mismatches=0,
        bias_sigmas=None,
        mean_error=0.0,
        scale_minus_one=None,
        update_made=None,
        findings=(text,) if count > limit else (),
    )


def _update_made(subject: Subject, target: np.ndarray) -> float | None:
    """Share of the expected update that the weight made: 1 right, 0 no step, 0.5 half the learning rate."""
    if subject.start is None:
        return None
    expected = target - subject.start
    squared = float((expected * expected).sum())
    return float(((subject.device - subject.start) * expected).sum()) / squared if squared else None


def criterion_of(subject: Subject, demand: Numerics) -> Criterion | None:
    """The elementwise criterion of this precision and class of tensor, else that of the precision; None where neither is
    declared.
    """
    return demand.criteria.get(f"{subject.dtype}/{subject.role}", demand.criteria.get(subject.dtype))


def _outside_criterion(v: Vector, criterion: Criterion) -> list[str]:
    """A finding where the criterion decides, for its owner says so, and more elements are outside than that allows."""
    if not criterion.decides or v.outside_criterion is None or v.outside_criterion <= criterion.allowed_share:
        return []
    reason = f" ({criterion.reason})" if criterion.reason else ""
    return [
        f"{v.outside_criterion:.2%} of its elements are outside the declared {criterion.absolute:g} + "
        f"{criterion.relative:g} * |truth|, allowed are {criterion.allowed_share:.2%}{reason}"
    ]


def gates(v: Vector, subject: Subject, error: np.ndarray, limit: Allowed, demand: Numerics) -> list[str]:
    """What is wrong with the tensor, in words; empty when rounding explains all of it."""
    found: list[str] = []
    if v.nonfinite_mismatches:
        found.append(f"{v.nonfinite_mismatches} values are finite on one side only")
    if v.margin > 1:
        found.append(
            f"relative L2 error {v.relative_l2:.2e}, allowed {v.allowed_relative_l2:.2e}: {_explain(v, subject, error)}"
        )
    if v.row_margin is not None and v.row_margin > 1 and v.margin <= 1:
        found.append(f"row {v.worst_row} is off by {v.worst_row_relative_l2:.1%} of its size: {_row_words(v, subject)}")
    material = demand.material_share * limit.whole
    if v.margin <= 1 and error.size > 1:
        rms_mean = abs(v.mean_error) * math.sqrt(error.size)
        if v.bias_sigmas is not None and v.bias_sigmas > demand.bias_sigmas and rms_mean > material:
            found.append(
                f"errors are one-sided: mean {v.mean_error:.2e}, {v.bias_sigmas:.0f} standard errors from zero"
            )
        off_scale = abs(v.scale_minus_one or 0.0) * norm(subject.truth)
        aligned = off_scale * math.sqrt(error.size) / max(norm(error), _TINY)  # in standard errors, as for the mean
        rounded = demand.rounding_factor * formats.roundoff(v.dtype) * norm(subject.truth)
        # Where few positions carry the loss, all gradients share the rounding of one factor: on every device they are scaled
        # by it, and how far is seen in the CPU's own error.
        own = 0.0 if subject.reference_error is None else norm(subject.reference_error)
        least = max(material, rounded, demand.reference_factor * own)
        if off_scale > least and aligned > demand.bias_sigmas:
            found.append(_scaled(v))
    if (
        v.update_made is not None
        and subject.start is not None
        and abs(v.update_made - 1) > _update_slack(subject, demand)
    ):
        found.append(f"the weight made {v.update_made:.1%} of the update that its own gradient calls for")
    criterion = criterion_of(subject, demand)
    return found + (_outside_criterion(v, criterion) if criterion is not None else [])


def _update_slack(subject: Subject, demand: Numerics) -> float:
    """Uncertainty of :func:`_update_made`: rounding of the stored weight, averaged over the elements of the tensor, and of a
    number that all of them are multiplied by, which is not averaged: 1 - 1e-5, a weight decay, is off by up to u, 0.6 %
    of the decay in float32.
    """
    assert subject.start is not None
    u = formats.roundoff(subject.dtype)
    expected = formats.rounded(subject.truth, subject.dtype) - subject.start
    moved = expected != 0
    weight, step = norm(np.where(moved, subject.truth, 0.0)), norm(expected)
    stored = u * weight / step * demand.rounding_factor / math.sqrt(max(int(moved.sum()), 1))
    together = u * abs(float((expected * subject.truth).sum())) / step**2
    return demand.rounding_factor * (u * math.sqrt(demand.update_operations) + stored + together)


def _explain(v: Vector, subject: Subject, error: np.ndarray) -> str:
    """The likeliest shape of a failure: zeroed, one row, a scale, or a narrower format."""
    device, truth = subject.device, subject.truth
    if not device.any() and truth.any():
        return "every value is zero"
    total = float((error * error).sum())
    per_row = (_rows(error, v.role) ** 2).sum(axis=1)
    if per_row.size > 1 and total and per_row.max() > 0.9 * total:
        return _row_words(v, subject, int(per_row.argmax()))
    lost = ~_rows(device, v.role).any(axis=1) & _rows(truth, v.role).any(axis=1)
    if lost.sum() > 1 and per_row[lost].sum() > 0.9 * total:
        listed = ", ".join(str(int(row)) for row in np.flatnonzero(lost)[:4])
        return f"rows {listed}{f' and {int(lost.sum()) - 4} more' if lost.sum() > 4 else ''} are zero"
    if v.scale_minus_one is not None:
        left = error - v.scale_minus_one * truth
        if float((left * left).sum()) < 0.1 * total:
            return _scaled(v)
    if total and error.size > 1 and float(((error - v.mean_error) ** 2).sum()) < 0.1 * total:
        return f"every value is shifted by {v.mean_error:.2e}"
    u = formats.roundoff(v.dtype)
    own = v.relative_l2 / v.ratio_to_cpu if v.ratio_to_cpu else math.sqrt(subject.reduction) * u
    observed = u * v.relative_l2 / own
    if v.relative_l2 > 0.5 or observed > 2.0**-3:
        return "no number format explains an error of this size"
    return f"behaves like {formats.nearest(observed)}"


def _scaled(v: Vector) -> str:
    off = v.scale_minus_one or 0.0
    return "values are uniformly scaled by " + (f"{1 + off:.6f}" if abs(off) > 1e-5 else f"1{off:+.1e}")


def _row_words(v: Vector, subject: Subject, row: int | None = None) -> str:
    row = v.worst_row if row is None else row
    assert row is not None
    zero = not _rows(subject.device, v.role)[row].any() and _rows(subject.truth, v.role)[row].any()
    return f"row {row} is zero" if zero else f"the error lies in row {row}"
