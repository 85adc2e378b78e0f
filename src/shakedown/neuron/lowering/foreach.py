"""Operators on lists of tensors (``_foreach_*``): the lowering of one tensor, repeated inside a single program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import torch

from .common import Array, opmath, to_numpy
from .matmul import mm
from .registry import composite, lower, lowering_of, overload

Arrays = Sequence[Array]

# fmt: off
_UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac",
    "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin",
    "sinh", "sqrt", "tan", "tanh", "trunc",
)
# fmt: on
# name -> the operator of one tensor, for operators that take a second tensor or number
_BINARY = {
    "add": "add.Tensor",
    "sub": "sub.Tensor",
    "mul": "mul.Tensor",
    "div": "div.Tensor",
    "clamp_max": "clamp_max.Tensor",
    "clamp_min": "clamp_min.Tensor",
    "maximum": "clamp_min.Tensor",  # the same function, but it takes numbers too
    "minimum": "clamp_max.Tensor",
}


def _function(name: str) -> Callable[..., Any]:
    """The lowering of ``aten.<name>``, whose module is imported for it where that has not happened yet."""
    from . import compare, elementwise, special, unary  # noqa: F401

    found = lowering_of(overload(name))
    assert found is not None, f"aten.{name} has no lowering to repeat"
    return found.fn


def _each(fn: Callable[..., Array]) -> Callable[..., list[Array]]:
    return lambda self: [fn(x) for x in self]


def _pairwise(fn: Callable[..., Array]) -> Callable[..., list[Array]]:
    """For a second list, of tensors or of numbers; whatever else is passed by keyword goes to every call."""

    def lowering(self: Arrays, others: Sequence[Any], **more: Any) -> list[Array]:
        return [fn(x, y, **more) for x, y in zip(self, others)]

    return lowering


def _with_one(fn: Callable[..., Array]) -> Callable[..., list[Array]]:
    """For one tensor or number that meets every item of the list."""

    def lowering(self: Arrays, other: Any, **more: Any) -> list[Array]:
        return [fn(x, other, **more) for x in self]

    return lowering


for _name in _UNARY:
    lower(f"_foreach_{_name}")(_each(_function(_name)))

for _name, _single in _BINARY.items():
    _fn = _function(_single)
    lower(f"_foreach_{_name}.List", f"_foreach_{_name}.ScalarList")(_pairwise(_fn))
    lower(f"_foreach_{_name}.Scalar")(_with_one(_fn))
    if _name in ("add", "mul", "div"):
        lower(f"_foreach_{_name}.Tensor")(_with_one(_fn))


# --- three operands ---------------------------------------------------------------------------------------------------


def _register_fused(name: str) -> None:
    fn = _function(name)

    def with_number(self: Arrays, tensor1: Arrays, tensor2: Arrays, value: Any = 1) -> list[Array]:
        return [fn(x, a, b, value) for x, a, b in zip(self, tensor1, tensor2)]

    def with_numbers(self: Arrays, tensor1: Arrays, tensor2: Arrays, scalars: Sequence[Any]) -> list[Array]:
        return [fn(x, a, b, value) for x, a, b, value in zip(self, tensor1, tensor2, scalars)]

    def with_host_tensor(suffix: str) -> Callable[..., Any]:
        # `scalars` lies on the CPU by contract, so its values are numbers already.
        def run(self: list[torch.Tensor], tensor1: Any, tensor2: Any, scalars: torch.Tensor) -> Any:
            if scalars.device.type != "cpu":
                raise RuntimeError("Expected scalars to be on CPU, got neuron:0 instead.")
            return getattr(torch.ops.aten, f"_foreach_{name}{suffix}").ScalarList(
                self, tensor1, tensor2, scalars.tolist()
            )

        return run

    lower(f"_foreach_{name}.Scalar")(with_number)
    lower(f"_foreach_{name}.ScalarList")(with_numbers)
    composite(f"_foreach_{name}.Tensor")(with_host_tensor(""))
    composite(f"_foreach_{name}_.Tensor")(with_host_tensor("_"))


for _name in ("addcmul", "addcdiv"):
    _register_fused(_name)

_lerp = _function("lerp.Tensor")


@lower("_foreach_lerp.Scalar")
def foreach_lerp_number(self: Arrays, tensors1: Arrays, weight: Any) -> list[Array]:
    return [_lerp(x, y, weight) for x, y in zip(self, tensors1)]


@lower("_foreach_lerp.List", "_foreach_lerp.ScalarList")
def foreach_lerp(self: Arrays, tensors1: Arrays, weights: Sequence[Any]) -> list[Array]:
    return [_lerp(x, y, w) for x, y, w in zip(self, tensors1, weights)]


# --- powers and norms -------------------------------------------------------------------------------------------------

_pow_number = lowering_of(overload("pow.Tensor_Scalar"))
assert _pow_number is not None
_special_exponent = _pow_number.static["exponent"]


@lower("_foreach_pow.Scalar", static={"exponent": _special_exponent})
def foreach_pow_number(self: Arrays, exponent: Any) -> list[Array]:
    assert _pow_number is not None
    return [_pow_number.fn(x, exponent) for x in self]


@lower("_foreach_pow.List", "_foreach_pow.ScalarList")
def foreach_pow(self: Arrays, exponent: Sequence[Any]) -> list[Array]:
    power = _function("pow.Tensor_Tensor")
    return [power(x, e) for x, e in zip(self, exponent)]


@lower("_foreach_pow.ScalarAndTensor")
def foreach_number_pow(self: Any, exponent: Arrays) -> list[Array]:
    power = _function("pow.Scalar")
    return [power(self, e) for e in exponent]


def _powers_of(self: Arrays, dtype: torch.dtype | None) -> list[Array]:
    """Magnitudes in the precision that ATen sums them in."""
    wide = [x if dtype is None else x.astype(to_numpy(dtype)) for x in self]
    return [jnp.abs(x.astype(opmath(x.dtype))) for x in wide]


@lower("_foreach_norm.Scalar", static=("ord",))
def foreach_norm(self: Arrays, ord: Any = 2, dtype: torch.dtype | None = None) -> list[Array]:
    sizes = _powers_of(self, dtype)
    if ord == float("inf"):
        return [jnp.max(x) if x.size else jnp.zeros((), x.dtype) for x in sizes]
    if ord == float("-inf"):
        return [jnp.min(x) for x in sizes]
    if ord == 0:
        return [jnp.sum((x != 0).astype(x.dtype)) for x in sizes]
    if ord == 1:
        return [jnp.sum(x) for x in sizes]
    if ord == 2:
        return [jnp.sqrt(jnp.sum(x * x)) for x in sizes]
    return [jnp.power(jnp.sum(jnp.power(x, ord)), 1 / ord) for x in sizes]


@lower("_foreach_powsum.Scalar", static=("ord",))
def foreach_powsum(self: Arrays, ord: Any = 2, dtype: torch.dtype | None = None) -> list[Array]:
    sizes = _powers_of(self, dtype)
    return [jnp.sum(x * x if ord == 2 else jnp.power(x, ord)) for x in sizes]


if hasattr(torch.ops.aten, "_foreach_mm"):  # newer than some releases that the device loads on

    @lower("_foreach_mm")
    def _foreach_mm(self: Sequence[Array], mat2: Sequence[Array]) -> list[Array]:
        return [mm(a, b) for a, b in zip(self, mat2)]


@lower("_foreach_max")
def foreach_max(self: Arrays) -> list[Array]:
    return [jnp.max(x) for x in self]


# --- copies -----------------------------------------------------------------------------------------------------------


@lower("_foreach_zero")
def foreach_zero(self: Arrays) -> list[Array]:
    return [jnp.zeros_like(x) for x in self]


@lower("_foreach_clone")
def foreach_clone(self: Arrays, memory_format: Any = None) -> list[Array]:
    return list(self)


@lower("_foreach_copy")
def foreach_copy(self: Arrays, src: Arrays, non_blocking: bool = False) -> list[Array]:
    return [jnp.broadcast_to(y, x.shape) for x, y in zip(self, src)]


@functools.cache
def _copy_on_device() -> Callable[..., Any]:
    from ..dispatch import kernel_of, operator_of

    return kernel_of(operator_of(torch.ops.aten._foreach_copy_.default))


@composite("_foreach_copy_")
def foreach_copy_(self: list[torch.Tensor], src: list[torch.Tensor], non_blocking: bool = False) -> None:
    """One program where both lists are on the device; tensors from elsewhere are moved one by one."""
    from ..buffer import is_device_tensor

    if len(self) == len(src) and all(is_device_tensor(t) for t in (*self, *src)):
        _copy_on_device()(self, src)
        return
    for x, y in zip(self, src, strict=True):
        x.copy_(y, non_blocking)
