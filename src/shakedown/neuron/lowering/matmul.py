"""Matrix products and linear layers.

Half-precision products ask for a float32 result: XLA:CPU then takes its fast path, and the rounding happens once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..errors import LoweringError
from .common import HALF, Array, is_complex, is_float, number_as, opmath
from .registry import lower

_UNIT = {"beta": lambda v: v in (0, 1), "alpha": lambda v: v == 1}


_Dims = tuple[Sequence[int], Sequence[int]]


def contract(a: Array, b: Array, over: _Dims, batch: _Dims = ((), ())) -> Array:
    """``lax.dot_general`` as PyTorch multiplies: float32 in full precision, half types accumulated in float32.

    The result has the opmath type. Batch dimensions come first, then the free ones of `a`, then those of `b`.

    Raises:
        LoweringError: the operands' dtypes differ, or are bool. The CPU kernel says so in PyTorch's words.
    """
    if a.dtype != b.dtype or a.dtype == bool:
        raise LoweringError(f"a product of {a.dtype} and {b.dtype}")
    if a.dtype in HALF:
        a, over, batch = _contract_last(a, over, batch)
    numbers = (tuple(map(tuple, over)), tuple(map(tuple, batch)))

    def real(x: Array, y: Array) -> Array:
        if x.dtype in HALF:
            return lax.dot_general(x, y, numbers, preferred_element_type=opmath(x.dtype))
        return lax.dot_general(x, y, numbers, precision=lax.Precision.HIGHEST)

    if not is_complex(a.dtype):
        return real(a, b)
    # XLA:CPU has no fast complex product; four real ones are three times faster.
    re = real(a.real, b.real) - real(a.imag, b.imag)
    return lax.complex(re, real(a.real, b.imag) + real(a.imag, b.real))


def _contract_last(a: Array, over: _Dims, batch: _Dims) -> tuple[Array, _Dims, _Dims]:
    """`a` with its contracted dimensions last, in memory too.

    XLA:CPU's fast half-precision product wants that of the left operand, and is five times slower where a transposition
    is folded into the product (every gradient of a weight). A barrier around a flat array is what keeps it apart.
    """
    free = [d for d in range(a.ndim) if d not in over[0] and d not in batch[0]]
    order = [*batch[0], *free, *over[0]]
    moved = a.transpose(order)
    moved = lax.optimization_barrier(moved.reshape(-1)).reshape(moved.shape)
    first = len(order) - len(over[0])
    return moved, (range(first, len(order)), over[1]), (range(len(batch[0])), batch[1])


def _is(value: Any, number: int) -> bool:
    return isinstance(value, (int, float, complex)) and value == number


def _scaled(value: Array, factor: Any) -> Array:
    if _is(factor, 1):
        return value
    return value * number_as(factor, value.dtype)  # with integral tensors a fraction is cut off, as on the CPU


def _plus_product(self: Array, product: Array, beta: Any, alpha: Any, dtype: np.dtype[Any]) -> Array:
    """``beta * self + alpha * product`` in the opmath type; a literal 0 for beta hides `self`, NaN included."""
    if self.dtype != dtype:
        raise LoweringError(f"a sum of {self.dtype} and {dtype}")
    product = _scaled(product, alpha)
    if _is(beta, 0):
        return product
    return _scaled(self.astype(product.dtype), beta) + product


@lower("mm")
def mm(self: Array, mat2: Array) -> Array:
    return contract(self, mat2, ((1,), (0,)))


@lower("bmm")
def bmm(self: Array, mat2: Array) -> Array:
    return contract(self, mat2, ((2,), (1,)), ((0,), (0,)))


@lower("mv")
def mv(self: Array, vec: Array) -> Array:
    return contract(self, vec, ((1,), (0,)))


@lower("dot")
def dot(self: Array, tensor: Array) -> Array:
    return contract(self, tensor, ((0,), (0,)))


@lower("vdot")
def vdot(self: Array, other: Array) -> Array:
    return contract(self.conj() if is_complex(self.dtype) else self, other, ((0,), (0,)))


@lower("addmm", static=_UNIT)
def addmm(self: Array, mat1: Array, mat2: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
    return _plus_product(self, mm(mat1, mat2), beta, alpha, mat1.dtype)


@lower("_addmm_activation", static=_UNIT)
def _addmm_activation(
    self: Array, mat1: Array, mat2: Array, *, beta: Any = 1, alpha: Any = 1, use_gelu: bool = False
) -> Array:
    import jax

    x = _plus_product(self, mm(mat1, mat2), beta, alpha, mat1.dtype)
    return jax.nn.gelu(x, approximate=False) if use_gelu else jnp.maximum(x, 0)


@lower("baddbmm", static=_UNIT)
def baddbmm(self: Array, batch1: Array, batch2: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
    return _plus_product(self, bmm(batch1, batch2), beta, alpha, batch1.dtype)


@lower("addbmm", static=_UNIT)
def addbmm(self: Array, batch1: Array, batch2: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
    product = contract(batch1, batch2, ((0, 2), (0, 1)))
    return _plus_product(self, product, beta, alpha, batch1.dtype)


@lower("addmv", static=_UNIT)
def addmv(self: Array, mat: Array, vec: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
    return _plus_product(self, mv(mat, vec), beta, alpha, mat.dtype)


@lower("addr", static=_UNIT)
def addr(self: Array, vec1: Array, vec2: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
    common = jnp.promote_types(jnp.promote_types(self.dtype, vec1.dtype), vec2.dtype)
    if np.dtype(common) == np.bool_:
        if any(isinstance(x, float) or is_float(getattr(x, "dtype", np.int64)) for x in (beta, alpha)):
            raise LoweringError("a bool addr with a fraction")
        return (jnp.outer(vec1, vec2) & number_as(alpha, np.bool_)) | (self & number_as(beta, np.bool_))
    wide = opmath(common)
    product = _scaled(vec1.astype(wide)[:, None] * vec2.astype(wide)[None, :], alpha)
    return product if _is(beta, 0) else _scaled(self.astype(wide), beta) + product


def _rows(x: Array) -> Array:
    """`x` with all dimensions but the last one flattened: XLA:CPU is fastest on plain two-dimensional products."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


@lower("linear")
def linear(input: Array, weight: Array, bias: Array | None = None) -> Array:
    rows = contract(_rows(input), weight, ((1,), (weight.ndim - 1,)))
    if bias is not None:
        if bias.dtype != input.dtype:
            raise LoweringError(f"a bias of {bias.dtype} for {input.dtype}")
        rows = rows + bias.astype(rows.dtype)
    return rows.reshape(*input.shape[:-1], *weight.shape[:-1])


def _conjugate(x: Array) -> Array:
    return lax.conj(x) if is_complex(x.dtype) else x


@lower("linear_backward")
def linear_backward(
    self: Array, grad_output: Array, weight: Array, output_mask: Sequence[bool]
) -> tuple[Array | None, Array | None, Array | None]:
    """A weight of one dimension stands for one row, whose output dimension is dropped."""
    rows = weight.reshape(-1, weight.shape[-1])
    grad = _rows(grad_output if weight.ndim == 2 else grad_output[..., None])
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        grad_input = contract(grad, _conjugate(rows), ((1,), (0,))).reshape(self.shape)
    if output_mask[1]:
        grad_weight = contract(grad, _conjugate(_rows(self)), ((0,), (0,))).reshape(weight.shape)
    if output_mask[2]:
        grad_bias = grad.astype(opmath(grad.dtype)).sum(axis=0).reshape(weight.shape[:-1])
    return grad_input, grad_weight, grad_bias


@lower("_trilinear")
def _trilinear(
    i1: Array,
    i2: Array,
    i3: Array,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Array:
    """The sum over `sumdim` of the product of three expanded tensors (``torch.nn.Bilinear``)."""
    wide = opmath(i1.dtype)
    ranks = i1.ndim + len(expand1)
    letters = "abcdefghijklmnopqrstuvwxyz"[:ranks]

    def names(expand: Sequence[int]) -> str:
        return "".join(c for d, c in enumerate(letters) if d not in {e % ranks for e in expand})

    kept = "".join(c for d, c in enumerate(letters) if d not in {s % ranks for s in sumdim})
    subscripts = f"{names(expand1)},{names(expand2)},{names(expand3)}->{kept}"
    operands = (i1.astype(wide), i2.astype(wide), i3.astype(wide))
    # A dimension that every operand expands has size 1 and does not reach the result by itself.
    lonely = [c for c in kept if c not in names(expand1) + names(expand2) + names(expand3)]
    if lonely:
        raise LoweringError("a trilinear product with a dimension of no operand")
    return jnp.einsum(subscripts, *operands, precision=lax.Precision.HIGHEST)


@lower("_grouped_mm")
def _grouped_mm(
    self: Array, mat2: Array, offs: Array | None = None, bias: Array | None = None, out_dtype: Any = None
) -> Array:
    """Products of groups of rows that end at `offs` (mixture-of-experts layers). Without `offs`, a batched product."""
    if bias is not None:
        raise LoweringError("_grouped_mm with a bias")
    if offs is None:
        return bmm(self, mat2)
    sizes = jnp.diff(offs.astype(jnp.int32), prepend=0)
    if self.ndim == 2 and mat2.ndim == 3:
        wide = opmath(self.dtype)
        return lax.ragged_dot(self, mat2, sizes, preferred_element_type=wide, precision=lax.Precision.HIGHEST)
    groups = jnp.arange(offs.shape[0])[:, None]
    if self.ndim == 2 and mat2.ndim == 2:
        place = jnp.arange(self.shape[1])
        inside = (place < offs[:, None]) & (place >= (offs[:, None] - sizes[:, None]))
        masked = jnp.where(inside[:, None, :], self[None], 0)
        return contract(masked, mat2, ((2,), (0,)))
    if self.ndim == 3 and mat2.ndim == 2:
        place = jnp.arange(mat2.shape[1])
        owner = jnp.searchsorted(offs, place, side="right")
        every = contract(self, mat2, ((2,), (0,)))  # group, row, column
        return jnp.where((owner == groups)[:, None, :], every, 0).sum(axis=0)
    raise LoweringError(f"_grouped_mm of {self.ndim} and {mat2.ndim} dimensions")
