"""A fused RMS norm: a Pallas kernel forward, another one backward, and the operator and module around them.

    python examples/kernels_rms_norm.py

The PyTorch half is what it is on AWS's package; the functions on arrays are exchanged for NKI there (docs/kernels.md).
"""

from __future__ import annotations

import functools
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
ROWS = 128  # of a block, at most

# --- on arrays ----------------------------------------------------------------------------------------------------------------


def _normalise(x_ref, weight_ref, out_ref, *, eps):
    x = x_ref[...].astype(jnp.promote_types(x_ref.dtype, jnp.float32))
    scale = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    out_ref[...] = (x * scale * weight_ref[...]).astype(out_ref.dtype)


def _gradients(grad_ref, x_ref, weight_ref, grad_x_ref, grad_weight_ref, *, eps):
    wide = jnp.promote_types(x_ref.dtype, jnp.float32)
    x, grad = x_ref[...].astype(wide), grad_ref[...].astype(wide)
    scale = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    normal, weighted = x * scale, grad * weight_ref[...]
    grad_x = scale * (weighted - normal * jnp.mean(weighted * normal, axis=-1, keepdims=True))
    grad_x_ref[...] = grad_x.astype(grad_x_ref.dtype)
    grad_weight_ref[...] = jnp.sum(grad * normal, axis=0, keepdims=True)


def _blocks(x):
    """(grid, block of rows, the weight's block) for x [rows, width]."""
    rows = math.gcd(x.shape[0], ROWS)
    return (
        (x.shape[0] // rows,),
        pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0)),
        pl.BlockSpec((x.shape[1],), lambda i: (0,)),
    )


def rms_norm_kernel(x, weight, eps):
    """x [rows, width], weight [width] -> [rows, width]"""
    grid, rows, whole = _blocks(x)
    call = pl.pallas_call(
        functools.partial(_normalise, eps=eps),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=grid,
        in_specs=[rows, whole],
        out_specs=rows,
        interpret=INTERPRET,
    )
    return call(x, weight)


def rms_norm_backward_kernel(grad, x, weight, eps):
    """Gradients of x and weight; each block gives a part of the weight's, which are summed."""
    grid, rows, whole = _blocks(x)
    wide = jnp.promote_types(x.dtype, jnp.float32)
    call = pl.pallas_call(
        functools.partial(_gradients, eps=eps),
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((grid[0], x.shape[1]), wide)],
        grid=grid,
        in_specs=[rows, rows, whole],
        out_specs=[rows, pl.BlockSpec((1, x.shape[1]), lambda i: (i, 0))],
        interpret=INTERPRET,
    )
    grad_x, parts = call(grad, x, weight)
    return grad_x, jnp.sum(parts, axis=0).astype(weight.dtype)


# --- on tensors ---------------------------------------------------------------------------------------------------------------


@nki_op("examples::rms_norm", mutates_args={})
def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return wrap_nki(rms_norm_kernel)(rows, weight, eps).reshape(x.shape)


@nki_op("examples::rms_norm_backward", mutates_args={})
def rms_norm_backward(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rows = (-1, x.shape[-1])
    grad_x, grad_weight = wrap_nki(rms_norm_backward_kernel)(grad.reshape(rows), x.reshape(rows), weight, eps)
    return grad_x.reshape(x.shape), grad_weight


def _setup(ctx, inputs, output):
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx, grad):
    grad_x, grad_weight = rms_norm_backward(grad, *ctx.saved_tensors, ctx.eps)
    return grad_x, grad_weight, None


rms_norm.register_autograd(_backward, setup_context=_setup)


class RMSNorm(torch.nn.Module):
    """``torch.nn.RMSNorm`` over the last dimension, by the kernels above."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


if __name__ == "__main__":
    x, weight = torch.randn(4, 96, 64), torch.rand(64)
    expected = torch.nn.functional.rms_norm(x, (64,), weight, 1e-6)
    got = rms_norm(x.to("neuron"), weight.to("neuron"))
    print("largest difference from torch.nn.functional.rms_norm:", float((got.cpu() - expected).abs().max()))
    print(
        "ran on the device:", torch.neuron.get_executed_ops(), "- on the CPU instead:", torch.neuron.get_fallback_ops()
    )
