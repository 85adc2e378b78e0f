"""What an operator promises: bit-equality, rounding, a sum's rounding, any legal answer, or a distribution only.

The class of an operator is derived from what PyTorch itself says about it (tags of the overload, whether it is a view,
dtypes of its results); exceptions are listed by hand, each with its reason. :mod:`.legal` decides whether an answer is
legal where several are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..evidence.probes import Comparison, Contract
from ..requirements import Numerics
from . import formats, numerics

_LEAST_NORMAL = {"float32": 2.0**-126, "bfloat16": 2.0**-126}  # below it a device may flush to zero: see the canary
_HUGE = 1e12
_SIGMAS = 6.0


@dataclass(frozen=True)
class Promise:
    """The contract of one operator, and where that is known from."""

    contract: Contract
    reason: str


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _listed(contract: Contract, reason: str, names: str) -> dict[str, Promise]:
    return {name: Promise(contract, reason) for name in names.split()}


# By name without overload, trailing underscore or `_copy`. Tags say nothing of these, or too little.
EXCEPTIONS: dict[str, Promise] = (
    _listed(
        "exact",
        "moves elements and computes nothing",
        "clone copy _to_copy cat stack gather index index_select take embedding masked_select repeat flip roll tril triu "
        "constant_pad_nd pad scatter slice_scatter select_scatter diagonal_scatter fill zero full full_like zeros zeros_like "
        "ones ones_like new_zeros new_ones new_full zeros_like lift_fresh lift detach contiguous _unsafe_view where "
        "masked_fill index_fill unfold_backward slice_backward select_backward _local_scalar_dense arange eye one_hot "
        "masked_scatter index_copy index_put reshape _reshape_alias channel_shuffle pixel_shuffle pixel_unshuffle nonzero",
    )
    | _listed(
        "exact",
        "selects one of its inputs, or changes a sign",
        "relu threshold threshold_backward clamp clamp_min clamp_max maximum minimum fmax fmin neg abs sign sgn positive "
        "floor ceil trunc round amax amin aminmax cummax cummin max min max_pool2d_with_indices max_pool3d_with_indices "
        "max_pool1d max_pool2d max_unpool2d hardtanh isnan isinf isfinite signbit",
    )
    | _listed("exact", "values are moved into order; which of equal ones comes first is judged apart", "sort topk kthvalue")
    | _listed("exact", "the value at a place that the operator chooses; the place is judged apart", "median nanmedian mode")
    | _listed(
        "order-dependent",
        "several places may hold the extreme value",
        "argmax argmin argsort",
    )
    | _listed(
        "reduction",
        "random only where dropout is on, and the trial switches it off",
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention scaled_dot_product_attention",
    )
    | _listed("unspecified", "returns memory that nothing was written to", "empty empty_like new_empty empty_strided "
              "new_empty_strided resize")
    | _listed("random", "draws random numbers", "native_dropout dropout bernoulli multinomial randperm normal uniform")
)  # fmt: skip

# IEEE 754 rounds these correctly: half a unit in the last place, or a few such steps in a row.
ARITHMETIC = _names(
    "add sub rsub mul div true_divide sqrt reciprocal addcmul addcdiv lerp square _foreach_add _foreach_sub "
    "_foreach_mul _foreach_div _foreach_sqrt _foreach_lerp _foreach_addcmul _foreach_addcdiv"
)


# Operators whose later integer results are places of the values in the first one.
PLACES = _names(
    "max min sort topk kthvalue median nanmedian mode cummax cummin aminmax max_pool2d_with_indices max_pool3d_with_indices "
    "fractional_max_pool2d adaptive_max_pool2d"
)
_PLACE = Promise("order-dependent", "the place of a value that may occur more than once")
_ADDS_AT = _names("embedding_dense_backward index_add scatter_add scatter_reduce index_reduce index_put")


def base_name(operator: str) -> str:
    """``aten.add_.Tensor`` or ``aten::add.Tensor`` to ``add``."""
    name = operator.replace("::", ".", 1).split(".")[1] if "." in operator.replace("::", ".", 1) else operator
    trimmed = name if name.startswith("__") else name.rstrip("_") or name
    return trimmed.removesuffix("_copy") if trimmed not in ("_to_copy", "index_copy") else trimmed


def promise(operator: str, tags: Iterable[str], dtype: str, view: bool = False, output: int = 0) -> Promise:
    """What `operator` promises of its result number `output`, of `dtype`. `tags` are the names of the overload's tags, as
    ``pointwise``.
    """
    tags, name = set(tags), base_name(operator)
    floating = dtype.startswith(("float", "bfloat", "complex"))
    if name in PLACES and output and not floating:
        return _PLACE
    if name in EXCEPTIONS:
        listed = EXCEPTIONS[name]
        return (
            Promise("exact", "integers and truth values") if listed.contract == "reduction" and not floating else listed
        )
    if "nondeterministic_seeded" in tags:
        return Promise("random", "PyTorch tags it as drawing from a seeded generator")
    if view or tags & {"view_copy", "inplace_view"}:
        return Promise("exact", "a view, or a copy of one")
    if not floating:
        return Promise("exact", "integers and truth values")
    if "pointwise" in tags or name in ARITHMETIC:
        return Promise(
            "rounding", "elementwise: PyTorch tags it as pointwise" if "pointwise" in tags else "elementwise"
        )
    if name.startswith("_foreach_"):
        return Promise("rounding", "elementwise, on each tensor of a list")
    if "reduction" in tags:
        return Promise("reduction", "PyTorch tags it as a reduction")
    return Promise("reduction", "not said to be elementwise, so it may sum")


def terms(operator: str, inputs: Sequence[tuple[int, ...]], output: tuple[int, ...]) -> int:
    """Terms in the longest sum of a call, from shapes: K in the gate. An upper bound where the operator is not known."""
    name = base_name(operator)
    sides = [shape for shape in inputs if len(shape) > 1]
    if name in ("mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "mv", "addmv", "dot", "vdot") and inputs:
        left = sides[-2] if len(sides) > 1 else (sides or list(inputs))[0]
        return max(1, left[-1] if left else 1)
    size = math.prod(output)
    folded = max((math.ceil(math.prod(shape) / max(size, 1)) for shape in inputs), default=1)
    longest = max((side for shape in inputs for side in shape), default=1)
    if name in _ADDS_AT and inputs:  # all may be added at one place
        folded = max(folded, math.prod(inputs[0][:-1]))
    if name == "convolution" and len(sides) > 1:
        return max(1, math.prod(sides[1][1:]))
    if (
        name == "convolution_backward" and len(sides) > 2
    ):  # over outputs for the input, over batch and places for the weight
        return max(1, math.prod(sides[2]) // max(sides[2][1], 1), math.prod(sides[0]) // max(sides[0][1], 1))
    return max(1, folded, longest)


@dataclass(frozen=True)
class Result:
    """One result of a call on three sides. Half precisions are widened; ``truth`` is None where float64 cannot be had.

    ``start`` is the argument that an elementwise sum starts from, None where there is none of the result's shape.
    """

    index: int
    dtype: str
    cpu: np.ndarray
    device: np.ndarray
    truth: np.ndarray | None
    start: np.ndarray | None = None


def compare(
    result: Result, kept: Promise, operator: str, inputs: Sequence[tuple[int, ...]], demand: Numerics
) -> Comparison:
    """Numbers and margin of one result under the contract `kept`; legality is judged by :mod:`.legal` and passed through
    :func:`with_illegal`.
    """
    if result.cpu.shape != result.device.shape:
        text = f"shape {list(result.device.shape)}, not {list(result.cpu.shape)}"
        return _comparison(result, kept, 1, margin=_HUGE, text=text)
    count = terms(operator, inputs, result.cpu.shape)
    unequal = int((~same(result.cpu, result.device)).sum())
    if not result.cpu.size or kept.contract == "unspecified":
        return _comparison(result, kept, count, unequal=unequal)
    if kept.contract == "random":
        return _distribution(result, kept, unequal)
    if kept.contract == "order-dependent":
        return _comparison(result, kept, count, unequal=unequal)
    if kept.contract == "exact" or not np.issubdtype(result.device.dtype, np.floating):
        different = ~same_bits(result.cpu, result.device, base_name(operator))
        text = ""
        if different.any():
            at = tuple(int(i) for i in np.argwhere(different)[0]) if different.ndim else ()
            text = f"{int(different.sum())} of {different.size} values differ where none may, the first at {list(at)}"
        return _comparison(result, kept, count, unequal=unequal, margin=_HUGE if text else 0.0, text=text)
    if kept.contract == "rounding":
        return _rounding(result, kept, operator, unequal, demand)
    return _reduction(result, kept, count, unequal, demand)


def with_illegal(comparison: Comparison, illegal: np.ndarray) -> Comparison:
    """`comparison` of an order-dependent result, given which of its elements no legal answer has."""
    count = int(illegal.sum())
    if not count:
        return comparison.model_copy(update={"illegal": 0, "margin": 0.0, "text": ""})
    at = tuple(int(i) for i in np.argwhere(illegal)[0]) if illegal.ndim else ()
    text = f"{count} of {illegal.size} values are not part of any legal answer, the first at {list(at)}"
    return comparison.model_copy(update={"illegal": count, "margin": _HUGE, "text": text})


def same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Equal elements; NaN equals NaN."""
    equal = one == other
    if np.issubdtype(one.dtype, np.inexact) and np.issubdtype(other.dtype, np.inexact):
        equal = equal | (np.isnan(one) & np.isnan(other))
    return np.asarray(equal)


_SELECTS = frozenset(name for name, listed in EXCEPTIONS.items() if listed.reason.startswith("selects")) | _names(
    "sort topk kthvalue median nanmedian mode"
)


def same_bits(one: np.ndarray, other: np.ndarray, name: str) -> np.ndarray:
    """As :func:`same`, and zeros of one sign, except where an operator picks one of two equal zeros."""
    equal = same(one, other)
    if name not in _SELECTS and np.issubdtype(one.dtype, np.floating) and np.issubdtype(other.dtype, np.floating):
        equal = equal & ((np.signbit(one) == np.signbit(other)) | np.isnan(one))
    return equal


def _comparison(
    result: Result, kept: Promise, count: int, *, unequal: int = 0, margin: float = 0.0, text: str = "", **more: object
) -> Comparison:
    values: dict[str, object] = {
        "illegal": 0,
        "nonfinite_mismatches": 0,
        "relative_l2": None,
        "ratio_to_cpu": None,
    } | more
    return Comparison(
        output=result.index,
        dtype=result.dtype,
        shape=tuple(result.cpu.shape),
        contract=kept.contract,
        reason=kept.reason,
        terms=count,
        unequal=unequal,
        margin=min(margin, _HUGE),
        text=text,
        **values,  # type: ignore[arg-type]
    )


def _exactly(result: Result) -> np.ndarray:
    """Truth in float64; where there is none, the CPU's own answer stands in and is bound to its own rounding."""
    return (result.cpu if result.truth is None else result.truth).astype(np.float64)


def _rounding(result: Result, kept: Promise, operator: str, unequal: int, demand: Numerics) -> Comparison:
    """Elementwise: |c - t| <= n*u*max(|t|, |s|) + f*max|r - t|, plus the least normal number where a device may flush.

    n is the factor c of the gates for arithmetic, which IEEE 754 rounds correctly, and twice the declared number of ULPs for
    functions that every library approximates. s is what a sum starts from, whose rounding stays when the rest cancels it;
    f*max|r - t| is a multiple of the CPU's own largest error.
    """
    device, truth, cpu = result.device.astype(np.float64), _exactly(result), result.cpu.astype(np.float64)
    sound = np.isfinite(device) & np.isfinite(truth) & np.isfinite(cpu)
    # Infinite in the format, finite in float64, is right: the CPU says so.
    mismatched = int((~same(np.where(np.isfinite(device), 0.0, device), np.where(np.isfinite(cpu), 0.0, cpu))).sum())
    u = formats.roundoff(result.dtype)
    factor = demand.rounding_factor if base_name(operator) in ARITHMETIC else 2 * demand.ulp_threshold
    error = np.where(sound, np.abs(device - truth), 0.0)
    own = np.where(sound, np.abs(cpu - truth), 0.0)
    floor = demand.reference_factor * float(own.max(initial=0.0)) + _LEAST_NORMAL.get(result.dtype, 0.0)
    size = np.abs(truth)
    if result.start is not None and result.start.shape == size.shape and base_name(operator) in ARITHMETIC:
        size = np.maximum(size, np.abs(result.start.astype(np.float64)))
    allowed = factor * u * np.where(sound, size, 0.0) + max(floor, formats.spacing(np.zeros(1), result.dtype)[0])
    ratios = error / allowed
    margin = float(ratios.max(initial=0.0))
    whole, own_size = numerics.norm(np.where(sound, truth, 0.0)), numerics.norm(own)
    relative = numerics.norm(error) / whole if whole else numerics.norm(error)
    text = ""
    if mismatched:
        text = f"{mismatched} values are infinite or not a number on one side only"
    elif margin > 1:
        at = [int(i) for i in np.unravel_index(int(ratios.argmax()), ratios.shape)]
        off = float(error[tuple(at)] / max(abs(float(truth[tuple(at)])), 1e-300))
        text = f"off by {off:.1e} of its size at {at}, {margin:.0f} times what rounding explains: {_behaves(relative)}"
    return _comparison(
        result,
        kept,
        1,
        unequal=unequal,
        margin=_HUGE if mismatched else margin,
        text=text,
        nonfinite_mismatches=mismatched,
        relative_l2=_finite(relative),
        ratio_to_cpu=_finite(numerics.norm(error) / own_size) if own_size else None,
    )


def _reduction(result: Result, kept: Promise, count: int, unequal: int, demand: Numerics) -> Comparison:
    """The gates of whole tensors (:mod:`.numerics`), with K of this one call."""
    truth, cpu = _exactly(result), result.cpu.astype(np.float64)
    subject = numerics.Subject(
        name=f"output {result.index}",
        role="output",
        dtype=result.dtype,
        device=result.device,
        # Where the CPU overflows in this precision, truth is the CPU's infinity.
        truth=np.where(np.isfinite(cpu), truth, cpu),
        reference_error=np.where(np.isfinite(cpu) & np.isfinite(truth), cpu - truth, 0.0),
        reduction=count,
    )
    vector = numerics.measure(subject, demand.model_copy(update={"criteria": {}}))
    margin = max(vector.margin, vector.row_margin or 0.0)
    flushed = _LEAST_NORMAL.get(result.dtype, 0.0) * math.sqrt(count)
    if not vector.nonfinite_mismatches and vector.max_abs <= flushed:
        return _comparison(result, kept, count, unequal=unequal, relative_l2=_finite(vector.relative_l2))
    # One-sided errors and a wrong scale are gates of their own there; here they only count beyond the others.
    return _comparison(
        result,
        kept,
        count,
        unequal=unequal,
        margin=_HUGE if vector.nonfinite_mismatches else margin,
        text="; ".join(vector.findings) if margin > 1 or vector.nonfinite_mismatches else "",
        nonfinite_mismatches=vector.nonfinite_mismatches,
        relative_l2=_finite(vector.relative_l2),
        ratio_to_cpu=None if vector.ratio_to_cpu is None else _finite(vector.ratio_to_cpu),
    )


def _distribution(result: Result, kept: Promise, unequal: int) -> Comparison:
    """Mean and spread of two independent samples, within six standard errors; values of the same kind."""
    cpu, device = result.cpu.astype(np.float64).ravel(), result.device.astype(np.float64).ravel()
    text, margin = "", 0.0
    if np.isfinite(device).all() != np.isfinite(cpu).all():
        text, margin = "values are infinite or not a number on one side only", _HUGE
    elif cpu.size >= 30 and np.isfinite(cpu).all():
        spread = math.hypot(float(cpu.std()), float(device.std())) / math.sqrt(cpu.size)
        gap = abs(float(cpu.mean() - device.mean()))
        margin = gap / (_SIGMAS * spread) if spread else (0.0 if gap == 0 else _HUGE)
        if margin > 1:
            text = (
                f"mean {device.mean():.4g}, on the CPU {cpu.mean():.4g}: {margin * _SIGMAS:.0f} standard errors apart"
            )
    return _comparison(result, kept, 1, unequal=unequal, margin=margin, text=text)


def _behaves(relative: float) -> str:
    """Name the format whose rounding an elementwise error looks like; its RMS is u over sqrt(3)."""
    if not 0 < relative < 2.0**-3:
        return "no number format explains an error of this size"
    return f"behaves like {formats.nearest(relative * math.sqrt(3))}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
