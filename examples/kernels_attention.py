"""Attention block by block: a Pallas kernel with an online softmax forward, a loop over blocks of keys backward.

    python examples/kernels_attention.py

The scores are never there as a whole: a block of queries meets one block of keys after another, and keeps the largest score, the
sum of exponentials and the weighted values so far (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018;
Dao, "FlashAttention-2", 2023, for the backward pass). What AWS's package exchanges: docs/kernels.md.
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
BLOCK = 64  # queries, and keys, at most

# --- on arrays ----------------------------------------------------------------------------------------------------------------


def _scores(q, k, first_query, first_key, scale, causal):
    """[queries, keys] of one block, -inf where a query would see a later key."""
    scores = jnp.dot(q, k.T, preferred_element_type=q.dtype) * scale
    if not causal:
        return scores
    queries = first_query + jnp.arange(q.shape[0])[:, None]
    return jnp.where(queries >= first_key + jnp.arange(k.shape[0])[None, :], scores, -jnp.inf)


def _attend(q_ref, k_ref, v_ref, out_ref, lse_ref, *, scale, causal, block):
    """One block of queries [1, queries, width] against all keys [1, length, width]."""
    wide = jnp.promote_types(q_ref.dtype, jnp.float32)
    q = q_ref[0].astype(wide)
    first = pl.program_id(1) * q.shape[0]

    def meet(i, carry):
        largest, total, values = carry
        keys = pl.ds(i * block, block)
        k, v = k_ref[0, keys, :].astype(wide), v_ref[0, keys, :].astype(wide)
        scores = _scores(q, k, first, i * block, scale, causal)
        larger = jnp.maximum(largest, jnp.max(scores, axis=-1, keepdims=True))
        shrink, terms = jnp.exp(largest - larger), jnp.exp(scores - larger)
        return larger, total * shrink + jnp.sum(terms, -1, keepdims=True), values * shrink + jnp.dot(terms, v)

    begin = (jnp.full((q.shape[0], 1), -jnp.inf, wide), jnp.zeros((q.shape[0], 1), wide), jnp.zeros(q.shape, wide))
    largest, total, values = jax.lax.fori_loop(0, k_ref.shape[1] // block, meet, begin)
    out_ref[0] = (values / total).astype(out_ref.dtype)
    lse_ref[0] = (largest + jnp.log(total))[:, 0]


def attention_kernel(q, k, v, causal, grid=None):
    """q, k, v [heads, length, width] -> the same of q, and the logarithms of the sums of exponentials [heads, length].

    `grid` divides the queries: (heads, blocks).
    """
    heads, length, width = q.shape
    if grid is None:
        grid = (heads, length // math.gcd(length, BLOCK))
    queries, keys = length // grid[1], math.gcd(k.shape[1], BLOCK)
    mine = pl.BlockSpec((1, queries, width), lambda h, i: (h, i, 0))
    all_keys = pl.BlockSpec((1, *k.shape[1:]), lambda h, i: (h, 0, 0))
    call = pl.pallas_call(
        functools.partial(_attend, scale=1 / math.sqrt(width), causal=causal, block=keys),
        out_shape=[
            jax.ShapeDtypeStruct(q.shape, q.dtype),
            jax.ShapeDtypeStruct((heads, length), jnp.promote_types(q.dtype, jnp.float32)),
        ],
        grid=grid,
        in_specs=[mine, all_keys, all_keys],
        out_specs=[mine, pl.BlockSpec((1, queries), lambda h, i: (h, i))],
        interpret=INTERPRET,
    )
    return call(q, k, v)


def attention_backward_kernel(grad, q, k, v, out, lse, causal):
    """Gradients of q, k and v, with one block of keys at a time."""
    dtypes, scale, block = (q.dtype, k.dtype, v.dtype), 1 / math.sqrt(q.shape[-1]), math.gcd(k.shape[1], BLOCK)
    grad, q, k, v, out = (a.astype(lse.dtype) for a in (grad, q, k, v, out))
    delta = jnp.sum(grad * out, axis=-1)

    def of_head(grad, q, k, v, lse, delta):
        def meet(grad_q, i):
            mine = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=i * block, slice_size=block)
            weights = jnp.exp(_scores(q, mine(k), 0, i * block, scale, causal) - lse[:, None])
            grad_scores = weights * (jnp.dot(grad, mine(v).T) - delta[:, None]) * scale
            return grad_q + jnp.dot(grad_scores, mine(k)), (jnp.dot(grad_scores.T, q), jnp.dot(weights.T, grad))

        grad_q, (grad_k, grad_v) = jax.lax.scan(meet, jnp.zeros_like(q), jnp.arange(k.shape[0] // block))
        return grad_q, grad_k.reshape(k.shape), grad_v.reshape(v.shape)

    made = jax.vmap(of_head)(grad, q, k, v, lse, delta)
    return [a.astype(dtype) for a, dtype in zip(made, dtypes)]


# --- on tensors ---------------------------------------------------------------------------------------------------------------


@nki_op("examples::attention", mutates_args={})
def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> tuple[Tensor, Tensor]:
    """q, k, v [batch, heads, length, width] -> what they attend to, and the logarithms of the sums [batch, heads, length]."""
    flat = [t.flatten(0, 1) for t in (q, k, v)]
    heads, length, _ = flat[0].shape
    grid = (heads, length // math.gcd(length, BLOCK))
    out, lse = wrap_nki(attention_kernel)[grid](*flat, causal)
    return out.reshape(q.shape), lse.reshape(q.shape[:-1])


@nki_op("examples::attention_backward", mutates_args={})
def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    flat = [t.flatten(0, 1) for t in (grad, q, k, v, out, lse)]
    grads = wrap_nki(attention_backward_kernel)(*flat, causal)
    return grads[0].reshape(q.shape), grads[1].reshape(k.shape), grads[2].reshape(v.shape)


def _setup(ctx, inputs, output):
    q, k, v, ctx.causal = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(q, k, v, *output)


def _backward(ctx, grad, _):
    return *attention_backward(grad, *ctx.saved_tensors, ctx.causal), None


attention.register_autograd(_backward, setup_context=_setup)


class CausalSelfAttention(torch.nn.Module):
    """Attention of a decoder over x [batch, length, width], by the kernels above."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.project(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(attention(q, k, v, True)[0].transpose(1, 2).reshape(x.shape))


if __name__ == "__main__":
    q, k, v = torch.randn(3, 2, 4, 128, 32)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    got, _ = attention(q.to("neuron"), k.to("neuron"), v.to("neuron"), True)
    print("largest difference from scaled_dot_product_attention:", float((got.cpu() - expected).abs().max()))
    print(
        "ran on the device:", torch.neuron.get_executed_ops(), "- on the CPU instead:", torch.neuron.get_fallback_ops()
    )
