"""Dtypes and decisions: what is narrowed, refused, hidden, or left open."""

from __future__ import annotations

from typing import Any, Final

from ..fault import By, Recipe, fault
from ..inject import Device

_GROUP: Final = "decisions and dtypes"
_FEW = {
    "variations.neighbours": "true",
    "variations.neighbour_operators": "8",
    "variations.neighbour_seconds": "150",
}
_PROBE = Recipe("plain", cases=("4x6",), kinds=("probe",), demand=_FEW)
_LONG = ("add.Tensor", "add.Scalar", "mul.Tensor", "mul.Scalar", "floor_divide", "sum", "sum.dim_IntList")


@fault(
    By("wrong", "narrowing cast removed", mode="compiled"),
    group=_GROUP,
    recipe=Recipe("plain", modes=("compiled",), cases=("4x6",), kinds=("probe",), demand=_FEW),
)
def narrowing_removed(device: Device) -> None:
    """The compiler folds a cast to a narrower type and back into nothing."""
    wide: dict[int, tuple[Any, Any]] = {}  # narrowed value, by its identity, and what it was made of

    def make(conform: Any) -> Any:
        def remember(step: Any, result: Any) -> Any:
            rounded = conform(step, result)
            if step.name.startswith("aten._to_copy") and str(rounded[0].dtype) in ("bfloat16", "float16"):
                wide[id(rounded[0])] = (rounded[0], result)
            return rounded

        return remember

    def unrounded(fn: Any, x: Any, **kwargs: Any) -> Any:
        if id(x) in wide and str(kwargs.get("dtype")) == "torch.float32":
            return wide[id(x)][1]
        return fn(x, **kwargs)

    device.patch("shakedown.neuron.program", "_conform", make)
    device.lowering("_to_copy", unrounded, "graphs")


@fault(By("precision-blocked(int64)", "high half lost"), group=_GROUP, recipe=_PROBE)
def int64_truncated(device: Device) -> None:
    """64-bit integers keep their low half."""

    def low(fn: Any, *args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        return result.astype("int32").astype("int64") if str(result.dtype) == "int64" else result

    for name in _LONG:
        device.lowering(name, low)


@fault(
    By("precision-blocked(float64)", "silently"),
    group=_GROUP,
    recipe=Recipe("plain", cases=("4x6",), kinds=("probe",), demand=_FEW | {"workload.float64": "true"}),
)
def float64_narrowed(device: Device) -> None:
    """float64 is asked for, and float32 is computed without a word."""

    def narrow(fn: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        return fn(x.astype("float32") if str(getattr(x, "dtype", "")) == "float64" else x, *args, **kwargs)

    for name in ("sub.Tensor", "sub.Scalar"):
        device.lowering(name, narrow)


@fault(By("crashed", "not implemented for 'Int'"), group=_GROUP, recipe=Recipe("counts", cases=("4x6",)))
def histogram_refused(device: Device) -> None:
    """A histogram of integers is left to the CPU, which has one for floating types only."""

    def refuse(fn: Any, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no program for histc")

    device.lowering("histc", refuse)


@fault(By("neighbour-differs", "nan row", phase="backward"), group=_GROUP, recipe=_PROBE)
def nan_hidden(device: Device) -> None:
    """The gradient of an activation takes what is not a number for zero."""
    device.result("gelu_backward", lambda r: device.numpy.where(r == r, r, 0))


@fault(By("flushes-denormals"), group=_GROUP, recipe=_PROBE, nature="legal")
def denormals_flushed(device: Device) -> None:
    """Numbers below the least normal one are taken for zero, as the embedded device does by itself."""

    def flushed(result: Any) -> Any:
        if str(result.dtype) != "float32":
            return result
        return device.numpy.where(abs(result) < 2.0**-126, 0, result)

    for name in ("add.Tensor", "add.Scalar"):
        device.result(name, flushed)


@fault(
    By("order-dependent", "scatter"),
    group=_GROUP,
    recipe=Recipe("ordered", cases=("4x6",), kinds=("sequence", "probe"), demand=_FEW),
    nature="legal",
)
def scatter_order(device: Device) -> None:
    """Of several writes to one place, the first one stays."""

    def first(fn: Any, x: Any, dim: int, index: Any, source: Any) -> Any:
        jnp = device.numpy
        flipped = [jnp.flip(v, dim) for v in (index, source)] if getattr(source, "ndim", 0) else (index, source)
        return fn(x, dim, *flipped)

    device.lowering("scatter.src", first)


@fault(
    By("order-dependent", "topk"),
    group=_GROUP,
    recipe=Recipe("ordered", cases=("4x6",), kinds=("sequence", "probe"), demand=_FEW),
    nature="legal",
)
def topk_ties(device: Device) -> None:
    """Of equal values, the last ones are among the best."""

    def last(fn: Any, x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        values, places = fn(device.numpy.flip(x, dim), k, dim, largest, sorted)
        return values, x.shape[dim] - 1 - places

    device.lowering("topk", last)


@fault(
    By("operator-differs", "topk"),
    group=_GROUP,
    recipe=Recipe("ordered", cases=("4x6",), kinds=("probe",), demand=_FEW),
)
def topk_wrong_places(device: Device) -> None:
    """The places of the best values are off by one, the values are right."""
    device.lowering(
        "topk", lambda fn, x, *rest, **more: (lambda r: (r[0], (r[1] + 1) % x.shape[-1]))(fn(x, *rest, **more))
    )


@fault(By("decision-flipped"), group=_GROUP)
def flipped_decisions(device: Device) -> None:
    """The columns of the logits come in reverse order."""
    device.result("linear", lambda r: r[..., ::-1] if r.shape[-1] == 48 else r)
