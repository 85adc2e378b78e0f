"""Tensors made from sizes and numbers."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..views import View
from .checks import extreme, require_fits
from .common import Array, is_complex, is_integral, number_as, opmath, quotient, to_numpy
from .registry import composite, lower

# --- one value everywhere ---------------------------------------------------------------------


@lower("full", static={"fill_value": extreme}, takes_outputs=True)
def full(size: Any, fill_value: Any, outputs: tuple[View, ...], **_: Any) -> Array:
    require_fits(fill_value, to_numpy(outputs[0].dtype))
    return jnp.broadcast_to(number_as(fill_value, to_numpy(outputs[0].dtype)), outputs[0].size)


@lower("zeros", "_efficientzerotensor", takes_outputs=True)
def zeros(size: Any, outputs: tuple[View, ...], **_: Any) -> Array:
    return full(size, 0, outputs)


@lower("ones", takes_outputs=True)
def ones(size: Any, outputs: tuple[View, ...], **_: Any) -> Array:
    return full(size, 1, outputs)


@lower("scalar_tensor", takes_outputs=True)
def scalar_tensor(s: Any, outputs: tuple[View, ...], **_: Any) -> Array:
    return full((), s, outputs)


# What only allocates is left to the kernels that make storages; a graph has no storages, so any value will do there.
@lower("empty.memory_format", "empty_permuted", "empty_strided", takes_outputs=True, graph_only=True)
def empty(*_: Any, outputs: tuple[View, ...], **__: Any) -> Array:
    return full((), 0, outputs)


@lower("empty_like", "new_empty", "new_empty_strided", takes_outputs=True, graph_only=True)
def empty_like(*_: Any, outputs: tuple[View, ...], **__: Any) -> Array:
    return full((), 0, outputs)


def _filled_like(name: str, value: Any) -> None:
    """Register an operator that takes sizes or a dtype from a tensor."""

    def fill(*args: Any, outputs: tuple[View, ...], fill_value: Any = value, **_: Any) -> Array:
        return full((), args[-1] if fill_value is None and value is None else fill_value, outputs)

    lower(name, static={"fill_value": extreme} if value is None else (), takes_outputs=True)(fill)


for _name, _value in (
    ("zeros_like", 0),
    ("ones_like", 1),
    ("full_like", None),
    ("new_zeros", 0),
    ("new_ones", 1),
    ("new_full", None),
):
    _filled_like(_name, _value)


# --- sequences --------------------------------------------------------------------------------


def _progression(start: Any, step: Any, output: View) -> Array:
    """start + i * step in the type that PyTorch counts in: int64 for integers, float64 for the rest."""
    kind = jnp.int64 if output.dtype in _INTEGERS else jnp.float64
    index = lax.iota(kind, output.size[0])
    return number_as(start, kind) + index * number_as(step, kind)


_INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64}


# The number of elements depends on these numbers, so they are part of the key.
@lower("arange", static=("end",), takes_outputs=True)
def arange(end: Any, outputs: tuple[View, ...], **_: Any) -> Array:
    return _progression(0, 1, outputs[0])


@lower("arange.start", static=("start", "end"), takes_outputs=True)
def arange_start(start: Any, end: Any, outputs: tuple[View, ...], **_: Any) -> Array:
    return _progression(start, 1, outputs[0])


@lower("arange.start_step", "arange.start_out", static=("start", "end", "step"), takes_outputs=True)
def arange_step(start: Any, end: Any, step: Any = 1, outputs: tuple[View, ...] = (), **_: Any) -> Array:
    return _progression(start, step, outputs[0])


def _even_steps(start: Any, end: Any, steps: int, dtype: np.dtype[Any], step_type: np.dtype[Any]) -> Array:
    """`steps` values from `start` to `end`, counted from the nearer end, so that both are exact."""
    if is_integral(dtype):
        for bound in (start, end)[: min(steps, 2)]:
            require_fits(bound, dtype)
    first, last = number_as(start, dtype).astype(step_type), number_as(end, dtype).astype(step_type)
    if steps == 1:
        return first[None]
    index = lax.iota(jnp.int64, steps)
    step = quotient(last - first, steps - 1)
    up = first + step * index.astype(step_type)
    down = last - step * (steps - 1 - index).astype(step_type)
    return jnp.where(index < steps // 2, up, down)


def _forms(name: str) -> tuple[str, ...]:
    return name, f"{name}.out", *(f"{name}.{first}_{last}" for first, last in _BOUND_KINDS)


_BOUND_KINDS = (("Tensor", "Tensor"), ("Tensor", "Scalar"), ("Scalar", "Tensor"))


def _step_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float64) if is_integral(dtype) else opmath(dtype)


@lower(
    "linspace",
    "linspace.Tensor_Tensor",
    "linspace.Tensor_Scalar",
    "linspace.Scalar_Tensor",
    "linspace.out",
    takes_outputs=True,
)
def linspace(start: Any, end: Any, steps: int, outputs: tuple[View, ...], **_: Any) -> Array:
    dtype = to_numpy(outputs[0].dtype)
    return _even_steps(start, end, steps, dtype, _step_type(dtype))


@lower(
    "logspace",
    "logspace.Tensor_Tensor",
    "logspace.Tensor_Scalar",
    "logspace.Scalar_Tensor",
    "logspace.out",
    takes_outputs=True,
)
def logspace(start: Any, end: Any, steps: int, base: Any = 10.0, outputs: tuple[View, ...] = (), **_: Any) -> Array:
    dtype = to_numpy(outputs[0].dtype)
    if is_complex(dtype):
        return number_as(base, dtype) ** _even_steps(start, end, steps, dtype, dtype)
    if steps == 1:  # the one value that is not counted from a bound, so an integer dtype does not round the exponent
        value = number_as(base, jnp.float64) ** number_as(start, jnp.float64)
        require_fits(value, dtype)
        return value[None]
    exponents = _even_steps(start, end, steps, dtype, _step_type(dtype))
    return number_as(base, jnp.float64) ** exponents.astype(jnp.float64)


@lower("eye", "eye.m", "eye.out", "eye.m_out", takes_outputs=True)
def eye(n: int, m: int | None = None, outputs: tuple[View, ...] = (), **_: Any) -> Array:
    rows, columns = outputs[0].size
    return jnp.eye(rows, columns, dtype=to_numpy(outputs[0].dtype))


@lower("tril_indices")
def tril_indices(row: int, col: int, offset: int = 0, **_: Any) -> Array:
    return jnp.asarray(np.stack(np.tril_indices(row, offset, col)))


@lower("triu_indices")
def triu_indices(row: int, col: int, offset: int = 0, **_: Any) -> Array:
    return jnp.asarray(np.stack(np.triu_indices(row, offset, col)))


@composite("range.out_")
def range_into(start: Any, end: Any, *, out: torch.Tensor) -> torch.Tensor:
    """PyTorch's kernel for every device, which this one replaces, writes to the CPU address that the storage has not got."""
    return torch.ops.aten.range.out(start, end, 1, out=out)


@composite("range", "range.step")
def range_(start: Any, end: Any, step: Any = 1, dtype: torch.dtype | None = None, **kwargs: Any) -> torch.Tensor:
    """As arange, with the end included."""
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if (step > 0 and end < start) or (step < 0 and end > start):
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    count = int((end - start) / step) + 1
    dtype = dtype or torch.get_default_dtype()
    index = torch.arange(count, dtype=torch.float64 if dtype.is_floating_point else torch.int64, device="neuron")
    return (index * step + start).to(dtype)
