"""Products of groups of rows, each with a matrix of its own, as the experts of a mixture need: Pallas kernels and a backward.

    python examples/kernels_grouped_matmul.py

Rows are sorted by group, and group g ends before row ``offs[g]`` (the sizes depend on data, the shapes do not). A block of rows
meets only the groups that have rows in it: each of those is one product with the other groups' rows set to zero, so that a
kernel does about as many products as there are blocks, and not one for each group (Gale et al., "MegaBlocks: Efficient Sparse
Training with Mixture-of-Experts", 2023, for products that follow the groups). The operator is ``torch.nn.functional.grouped_mm``
of 2-D rows; rows after the last group are zeros. What AWS's package exchanges: docs/kernels.md.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import torch
from jax.experimental import pallas as pl
from torch import Tensor

from torch_neuronx import nki_op, wrap_nki

INTERPRET = (
    jax.default_backend() == "cpu"
)  # Pallas has no compiler for CPUs: there its kernels become plain XLA operations
ROWS = 64  # of a block, at most
COLUMNS = 128

# --- on arrays ----------------------------------------------------------------------------------------------------------------


def _groups_of(row, offs):
    """The group of `row`: how many groups end at or before it. The number of groups where none has it."""
    return jnp.sum(offs <= row, dtype=jnp.int32)


def _rows_times(offs_ref, x_ref, weight_ref, out_ref):
    """x [rows, inner] and weight [groups, inner, columns] -> [rows, columns]."""
    rows, groups = x_ref.shape[0], offs_ref.shape[0]
    first = pl.program_id(0) * rows
    wide = jnp.promote_types(x_ref.dtype, jnp.float32)
    offs, numbers = offs_ref[...], first + jnp.arange(rows, dtype=jnp.int32)
    x = x_ref[...]

    def meet(g, total):
        begin = jnp.where(g == 0, 0, offs[jnp.maximum(g - 1, 0)])
        mine = jnp.where(((numbers >= begin) & (numbers < offs[g]))[:, None], x, 0)
        return total + jnp.dot(mine, weight_ref[g], preferred_element_type=wide)

    last = jnp.minimum(_groups_of(first + rows - 1, offs) + 1, groups)
    total = jax.lax.fori_loop(_groups_of(first, offs), last, meet, jnp.zeros(out_ref.shape, wide))
    out_ref[...] = total.astype(out_ref.dtype)


def grouped_matmul_kernel(x, weight, offs):
    """x [rows, inner], weight [groups, inner, columns], offs [groups] int32 -> [rows, columns]"""
    (count, inner), (groups, _, width) = x.shape, weight.shape
    if not (count and inner and groups and width):
        return jnp.zeros((count, width), x.dtype)
    rows, columns = math.gcd(count, ROWS), math.gcd(width, COLUMNS)
    call = pl.pallas_call(
        _rows_times,
        out_shape=jax.ShapeDtypeStruct((count, width), x.dtype),
        grid=(count // rows, width // columns),
        in_specs=[
            pl.BlockSpec((groups,), lambda i, j: (0,)),
            pl.BlockSpec((rows, inner), lambda i, j: (i, 0)),
            pl.BlockSpec((groups, inner, columns), lambda i, j: (0, 0, j)),
        ],
        out_specs=pl.BlockSpec((rows, columns), lambda i, j: (i, j)),
        interpret=INTERPRET,
    )
    return call(offs, x, weight)


def _of_group(offs_ref, x_ref, grad_ref, out_ref, *, rows):
    """The product of the transposed rows x [count, inner] and grad [count, columns] of one group -> [1, inner, columns]."""
    g = pl.program_id(0)
    offs, wide = offs_ref[...], jnp.promote_types(x_ref.dtype, jnp.float32)
    begin, end = jnp.where(g == 0, 0, offs[jnp.maximum(g - 1, 0)]), jnp.minimum(offs[g], x_ref.shape[0])

    def meet(i, total):
        block, numbers = pl.ds(i * rows, rows), i * rows + jnp.arange(rows, dtype=jnp.int32)
        mine = jnp.where(((numbers >= begin) & (numbers < end))[:, None], x_ref[block, :], 0)
        return total + jnp.dot(mine.T, grad_ref[block, :], preferred_element_type=wide)

    blocks = begin // rows, jnp.maximum((end + rows - 1) // rows, begin // rows)
    total = jax.lax.fori_loop(*blocks, meet, jnp.zeros(out_ref.shape[1:], wide))
    out_ref[0] = total.astype(out_ref.dtype)


def grouped_matmul_weight_kernel(grad, x, offs):
    """The weight's gradient: grad [rows, columns], x [rows, inner] -> [groups, inner, columns], zeros for an empty group"""
    (count, inner), width, groups = x.shape, grad.shape[1], offs.shape[0]
    if not (count and inner and groups and width):
        return jnp.zeros((groups, inner, width), x.dtype)
    columns = math.gcd(width, COLUMNS)

    def kernel(*refs):
        _of_group(*refs, rows=math.gcd(count, ROWS))

    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((groups, inner, width), x.dtype),
        grid=(groups, width // columns),
        in_specs=[
            pl.BlockSpec((groups,), lambda g, j: (0,)),
            pl.BlockSpec((count, inner), lambda g, j: (0, 0)),
            pl.BlockSpec((count, columns), lambda g, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((1, inner, columns), lambda g, j: (g, 0, j)),
        interpret=INTERPRET,
    )
    return call(offs, x, grad)


# --- on tensors ---------------------------------------------------------------------------------------------------------------


@nki_op("examples::grouped_matmul", mutates_args={})
def grouped_matmul(x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """x [rows, inner], weight [groups, inner, columns], offs [groups] int32, ascending -> [rows, columns]"""
    return wrap_nki(grouped_matmul_kernel)(x, weight, offs)


@nki_op("examples::grouped_matmul_weight", mutates_args={})
def grouped_matmul_weight(grad: Tensor, x: Tensor, offs: Tensor) -> Tensor:
    return wrap_nki(grouped_matmul_weight_kernel)(grad, x, offs)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad):
    x, weight, offs = ctx.saved_tensors
    # By the operators themselves, so that a second derivative is there too.
    return grouped_matmul(grad, weight.transpose(1, 2), offs), grouped_matmul_weight(grad, x, offs), None


def _weight_backward(ctx, grad):
    upstream, x, offs = ctx.saved_tensors
    return grouped_matmul(x, grad, offs), grouped_matmul(upstream, grad.transpose(1, 2), offs), None


grouped_matmul.register_autograd(_backward, setup_context=_setup)
grouped_matmul_weight.register_autograd(_weight_backward, setup_context=_setup)


class Experts(torch.nn.Module):
    """A mixture of experts over x [tokens, width]: each token goes through the `chosen` ones that the router prefers."""

    def __init__(self, width: int, hidden: int, experts: int, chosen: int = 2) -> None:
        super().__init__()
        self.chosen = chosen
        self.router = torch.nn.Linear(width, experts, bias=False)
        self.up = torch.nn.Parameter(torch.randn(experts, width, hidden) / math.sqrt(width))
        self.down = torch.nn.Parameter(torch.randn(experts, hidden, width) / math.sqrt(hidden))

    def forward(self, x: Tensor) -> Tensor:
        weights, experts = self.router(x).softmax(-1).topk(self.chosen)
        order = experts.flatten().argsort(stable=True)
        groups = torch.arange(self.up.shape[0], device=x.device)
        offs = (experts.flatten() <= groups[:, None]).sum(-1, dtype=torch.int32)
        rows = x[order // self.chosen]
        made = grouped_matmul(torch.nn.functional.silu(grouped_matmul(rows, self.up, offs)), self.down, offs)
        weighted = made * weights.flatten()[order, None]
        return torch.zeros_like(x).index_add(0, order // self.chosen, weighted)


if __name__ == "__main__":
    x, weight = torch.randn(256, 64), torch.randn(4, 64, 128)
    offs = torch.tensor([50, 50, 200, 256], dtype=torch.int32)
    expected = torch.nn.functional.grouped_mm(x, weight, offs=offs)
    got = grouped_matmul(x.to("neuron"), weight.to("neuron"), offs.to("neuron"))
    print("largest difference from torch.nn.functional.grouped_mm:", float((got.cpu() - expected).abs().max()))
    print(
        "ran on the device:", torch.neuron.get_executed_ops(), "- on the CPU instead:", torch.neuron.get_fallback_ops()
    )
