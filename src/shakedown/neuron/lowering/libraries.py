"""Operators that libraries define for themselves, so that a graph which holds them is still one program.

Hugging Face Transformers computes the experts of a mixture by ``torch.nn.functional.grouped_mm``, but while Dynamo captures
and the weights are not bfloat16 by an operator of its own (transformers/integrations/moe.py, ``_can_use_grouped_mm``), whose
kernel is a loop over the experts that reads the group sizes on the host.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp

from .common import Array
from .elementwise import addcmul
from .matmul import _grouped_mm
from .registry import lower_custom


def _rows_of_groups(rows: Array, offs: Array) -> Array:
    """`rows` (S, N) with zeros in the rows after the last group, which the library leaves zero."""
    inside = jnp.arange(rows.shape[0]) < offs[-1]
    return jnp.where(inside[:, None], rows, 0)


@lower_custom("transformers::grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor")
def grouped_mm_fallback(input: Array, weight: Array, offs: Array) -> Array:
    """(S, I) times (experts, I, O): each row by the matrix of its group. Group e ends before row ``offs[e]``."""
    return _rows_of_groups(_grouped_mm(input, weight, offs), offs)


@lower_custom(
    "transformers::grouped_mm_fallback_backward(Tensor input, Tensor weight, Tensor offs, Tensor grad_output) "
    "-> (Tensor, Tensor)"
)
def grouped_mm_fallback_backward(input: Array, weight: Array, offs: Array, grad_output: Array) -> tuple[Array, Array]:
    grad_input = _rows_of_groups(_grouped_mm(grad_output, weight.swapaxes(1, 2), offs), offs)
    return grad_input, _grouped_mm(input.T, grad_output, offs)


@lower_custom("flex_lib::zeros_and_scatter(SymInt[] shape, Tensor[] indices, Tensor vals) -> Tensor")
def zeros_and_scatter(shape: Sequence[int], indices: Sequence[Array], vals: Array) -> Array:
    """`vals` added into zeros of sizes `shape` at `indices`: how flex_attention's backward pass sums gradients of what a
    score function reads (torch/_dynamo/_trace_wrapped_higher_order_op.py).
    """
    return jnp.zeros(tuple(shape), vals.dtype).at[tuple(indices)].add(vals)


@lower_custom("prims::fma(Tensor a, Tensor b, Tensor c) -> Tensor")
def fma(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c``: what Dynamo makes of ``add_``, ``addcmul_`` and ``addcdiv_`` by a number that is a tensor, as in
    ``torch.optim.Adam(capturable=True)``, so that it need not be read (torch/_dynamo/variables/tensor.py).
    """
    return addcmul(c, a, b)
