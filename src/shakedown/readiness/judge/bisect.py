"""Is one tensor of a module or an operator further from float64 than rounding explains? The trial's own gates decide."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..bisect.result import Numbers
from ..requirements import Numerics
from . import formats, numerics


@dataclass(frozen=True)
class Triple:
    """One tensor on three sides: the device, float64, and the CPU at the device's precision (None: not to be had).

    ``exact`` results move, compare or select values, so their bits must be the CPU's. ``start`` is what an optimizer's
    tensor was before the operator.
    """

    name: str
    dtype: str
    device: np.ndarray
    truth: np.ndarray
    cpu: np.ndarray | None
    start: np.ndarray | None = None
    exact: bool = False
    role: str = "output"


def judge(triples: Iterable[Triple], reduction: int, demand: Numerics, decided_in: str = "float32") -> list[Numbers]:
    """Measure tensors that belong together (the outputs of one operator, the gradients of one model).

    ``reduction`` is the number of terms in the longest sum, ``decided_in`` the precision of the values that integers were
    decided from. Tensors of another shape than truth's are wrong; dtypes without a unit roundoff (float8) are left out,
    which the caller has to say.
    """
    known = [t for t in triples if not _floating(t.device) or t.dtype in formats.BITS]
    sizes = [t.truth.size for t in known if _floating(t.truth)]
    squares = [numerics.norm(_finite(t.truth)) ** 2 for t in known if _floating(t.truth)]
    peers = float(np.sqrt(sum(squares) / sum(sizes))) if sum(sizes) and len(sizes) > 1 else 0.0
    return [_one(triple, reduction, peers, demand, decided_in) for triple in known]


def wrong(numbers: Iterable[Numbers]) -> list[Numbers]:
    """Those outside a gate, the worst first."""
    return sorted((n for n in numbers if n.findings), key=lambda n: -n.margin)


def absent(name: str) -> Numbers:
    """A tensor that the device did not make."""
    nothing = np.zeros(0)
    return _odd(Triple(name, "float32", nothing, nothing, None), "the device did not make it")


def raised(text: str) -> Numbers:
    """An operator that raises on the device and does not on the CPU."""
    nothing = np.zeros(0)
    return _odd(Triple("output", "float32", nothing, nothing, None), f"raises {text}, and the CPU does not")


def _floating(values: np.ndarray) -> bool:
    return bool(np.issubdtype(values.dtype, np.floating))


def _kind(values: np.ndarray) -> np.ndarray:
    """-1, 0 or 1 for minus infinity, NaN and infinity."""
    return np.sign(np.nan_to_num(values.astype(np.float64), nan=0.0))


def _finite(values: np.ndarray) -> np.ndarray:
    return np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def _one(triple: Triple, reduction: int, peers: float, demand: Numerics, decided_in: str) -> Numbers:
    device, truth, cpu = triple.device, triple.truth, triple.cpu
    if device.shape != truth.shape:
        return _odd(triple, f"shape {list(device.shape)}, not {list(truth.shape)}")
    if _floating(truth) != _floating(device):
        return _odd(triple, f"values of {triple.dtype}, which the CPU does not give")
    findings: list[str] = []
    error = None
    if _floating(truth):
        truth = truth.astype(np.float64)
        if cpu is not None and cpu.shape == truth.shape:
            # What overflows at this precision overflows on every device: there the CPU's infinity is the truth.
            truth = np.where(np.isfinite(cpu), truth, cpu)
            finite = np.isfinite(cpu) & np.isfinite(truth)
            near = np.where(finite, truth, 0.0)
            if triple.start is not None:
                near = formats.rounded(near, triple.dtype)  # a weight is compared with the nearest storable number
            error = np.where(finite, np.where(finite, cpu, 0.0) - near, 0.0)
        both = ~np.isfinite(device) & ~np.isfinite(truth)
        kinds = int((both & (_kind(device) != _kind(truth))).sum())
        if kinds:
            findings.append(f"{kinds} values are another kind of non-finite number")
        if triple.exact and cpu is not None and not np.array_equal(device, cpu, equal_nan=True):
            findings.append(f"{int((device != cpu).sum())} values are not the bits that were to be moved")
    subject = numerics.Subject(
        name=triple.name,
        role="weight" if triple.start is not None else triple.role,
        dtype=triple.dtype,
        device=device,
        truth=truth,
        reference_error=error,
        reduction=reduction,
        decided_in=decided_in,
        peers_rms=peers,
        start=None if triple.start is None else triple.start.astype(np.float64),
    )
    vector = numerics.measure(subject, demand)
    told = list(vector.findings)
    if told and vector.margin <= 1 and subject.start is not None and cpu is not None:
        # An update of a few roundings, such as a decay of 1e-5, is rounded as much on the CPU: then that gate decides nothing.
        own = numerics.measure(dataclasses.replace(subject, device=cpu), demand)
        told = [] if own.findings else told
    return Numbers(
        tensor=vector.name,
        dtype=vector.dtype,
        shape=vector.shape,
        relative_l2=vector.relative_l2,
        allowed_relative_l2=vector.allowed_relative_l2,
        margin=vector.margin,
        ratio_to_cpu=vector.ratio_to_cpu,
        worst_row=vector.worst_row,
        worst_row_relative_l2=vector.worst_row_relative_l2,
        max_abs=vector.max_abs,
        max_abs_at=vector.max_abs_at,
        nonfinite_mismatches=vector.nonfinite_mismatches,
        scale_minus_one=vector.scale_minus_one,
        findings=[*findings, *told],
    )


def _odd(triple: Triple, text: str) -> Numbers:
    """A tensor that cannot be subtracted from the truth at all."""
    return Numbers(
        tensor=triple.name,
        dtype=triple.dtype,
        shape=triple.device.shape,
        relative_l2=1.0,
        allowed_relative_l2=0.0,
        margin=numerics._HUGE,
        ratio_to_cpu=None,
        worst_row=None,
        worst_row_relative_l2=None,
        max_abs=0.0,
        max_abs_at=(),
        nonfinite_mismatches=0,
        scale_minus_one=None,
        findings=[text],
    )
