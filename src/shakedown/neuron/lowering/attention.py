"""Fused scaled dot-product attention and its gradient.

The gradient recomputes the probabilities (Dao, Fu, Ermon, Rudra and Ré 2022, arXiv:2205.14135, appendix B)::

    P = softmax(scale * Q K' + bias)        dV = (P m)' dO          with m the dropout mask over (1 - p)
    dS = P * (m * dO V' - rowsum(dO * O))   dQ = scale * dS K       dK = scale * dS' Q       dbias = dS

where rowsum(dO * O) = rowsum(P * m * dO V'), which half types use because their O is rounded.
Queries of a group that share a key and value head are rows of one product, so grouped heads need no copies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..errors import LoweringError
from .common import Array, number_as, opmath
from .matmul import contract
from .random import keep_scale
from .registry import composite, lower

_NO_DROPOUT = {"dropout_p": lambda v: v == 0}
_BATCH = ((0, 1), (0, 1))


def _four(x: Array | None) -> Array | None:
    """With a batch dimension."""
    return x[None] if x is not None and x.ndim == 3 else x


def _rows(x: Array, heads: int) -> Array:
    """(B, Hq, L, E) as (B, heads, Hq / heads * L, E)."""
    return x.reshape(x.shape[0], heads, -1, x.shape[-1])


class _Scores:
    """What forward and backward share: the scaled, biased and masked scores as (B, Hkv, rows, S) in the opmath type."""

    def __init__(self, query: Array, key: Array, value: Array, attn_bias: Array | None, is_causal: bool, scale: Any):
        q, k, v = _four(query), _four(key), _four(value)
        assert q is not None
        assert k is not None
        assert v is not None
        if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or not k.shape[1] or q.shape[1] % k.shape[1]:
            raise LoweringError(f"attention of {q.shape} to {k.shape}")
        self.wide = opmath(q.dtype)
        self.full = (*q.shape[:3], k.shape[2])
        self.heads = k.shape[1]
        self.q, self.k, self.v = _rows(q, self.heads), k, v
        self.scale = number_as(1 / math.sqrt(q.shape[3]) if scale is None else scale, self.wide)
        scores = contract(self.q, k, ((3,), (3,)), _BATCH) * self.scale
        if attn_bias is not None:
            if attn_bias.dtype == np.bool_:
                attn_bias = jnp.where(attn_bias, 0, -jnp.inf)
            scores = scores + self.grouped(jnp.broadcast_to(attn_bias.astype(self.wide), self.full))
        if is_causal:
            row = lax.broadcasted_iota(jnp.int32, self.full[2:], 0)
            column = lax.broadcasted_iota(jnp.int32, self.full[2:], 1)
            scores = jnp.where(self.grouped(jnp.broadcast_to(row >= column, self.full)), scores, -jnp.inf)
        self.scores = scores

    def grouped(self, x: Array) -> Array:
        return x.reshape(x.shape[0], self.heads, -1, x.shape[-1])


def _keys_of(key: Array) -> tuple[Array, Array]:
    """A random key as the pair of int64 that the operator returns for its gradient."""
    return lax.bitcast_convert_type(key[:2], jnp.int64), lax.bitcast_convert_type(key[2:], jnp.int64)


def _key_from(seed: Array, offset: Array) -> Array:
    return jnp.concatenate([lax.bitcast_convert_type(x.reshape(()), jnp.uint32) for x in (seed, offset)])


def _drops(dropout_p: Any) -> bool:
    return not (isinstance(dropout_p, (int, float)) and dropout_p == 0)


def _logsumexp(at: _Scores) -> Array:
    """(..., Hq, L) in float32 (float64 for float64), minus infinity for a row without any key."""
    top = jnp.maximum(at.scores.max(axis=-1, keepdims=True), jnp.finfo(at.wide).min)
    total = jnp.log(jnp.exp(at.scores - top).sum(axis=-1, keepdims=True)) + top
    return total.reshape(at.full[:3])


def _probabilities(scores: Array) -> Array:
    """Softmax over the last dimension, with zeros for a row of -inf.

    Both cases follow from two bounds, and nothing but the probabilities leaves this function: XLA:CPU runs products and
    softmax together as one library call, which a selection or a second result breaks up at three times the cost.
    """
    limits = jnp.finfo(scores.dtype)
    top = jnp.maximum(scores.max(axis=-1, keepdims=True, initial=-jnp.inf), limits.min)
    weights = jnp.exp(scores - top)
    return weights / jnp.maximum(weights.sum(axis=-1, keepdims=True), limits.tiny)


def _draws(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return _drops(args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0))


@lower("_scaled_dot_product_fused_attention_overrideable", static=_NO_DROPOUT, random=True, draws=_draws)
def attention(
    query: Array,
    keys: Array,  # PyTorch's `key`; the random key has that name here
    value: Array,
    attn_bias: Array | None = None,
    dropout_p: Any = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Any = None,
    key: Array | None = None,
) -> tuple[Array, ...]:
    """(output, logsumexp, philox_seed, philox_offset). A row without any key to attend to gives zeros.

    ``return_debug_mask`` is how :func:`scaled_dot_product_attention`, which hands on the output alone, says that nobody
    will read logsumexp (NaN then). It costs as much as all the rest, see :func:`_probabilities`, and the gradient below
    needs none. There is no debug mask: PyTorch's meta kernel has an empty one in either case.
    """
    at = _Scores(query, keys, value, attn_bias, is_causal, scale)
    weights = _probabilities(at.scores)
    if key is None:
        key = jnp.zeros((4,), jnp.uint32)
    else:
        keep, growth = keep_scale(key, weights.shape, dropout_p)
        weights = weights * jnp.where(keep, growth, 0).astype(at.wide)
    out = contract(weights.astype(at.v.dtype), at.v, ((3,), (2,)), _BATCH)
    totals = jnp.full(at.full[:3], jnp.nan, jnp.float32) if return_debug_mask else _logsumexp(at)
    return out.reshape(*query.shape[:-1], value.shape[-1]), totals, *_keys_of(key)


@lower("_scaled_dot_product_fused_attention_overrideable_backward", static=_NO_DROPOUT)
def attention_backward(
    grad_out: Array,
    query: Array,
    key: Array,
    value: Array,
    attn_bias: Array | None,
    grad_input_mask: Sequence[bool],
    out: Array,
    logsumexp: Array,
    cum_seq_q: Array | None,
    cum_seq_k: Array | None,
    max_q: int,
    max_k: int,
    dropout_p: Any,
    is_causal: bool,
    philox_seed: Array,
    philox_offset: Array,
    *,
    scale: Any = None,
) -> tuple[Array, ...]:
    at = _Scores(query, key, value, attn_bias, is_causal, scale)
    narrow = query.dtype
    weights = _probabilities(at.scores)
    grad, y = (_rows(_four(x), at.heads) for x in (grad_out, out))
    grad_weights = contract(grad, at.v, ((3,), (3,)), _BATCH)
    kept = weights
    if _drops(dropout_p):
        keep, growth = keep_scale(_key_from(philox_seed, philox_offset), weights.shape, dropout_p)
        mask = jnp.where(keep, growth, 0).astype(at.wide)
        kept, grad_weights = weights * mask, grad_weights * mask
    grad_value = contract(kept.astype(narrow), grad, ((2,), (2,)), _BATCH)
    if narrow == at.wide:
        shift = (grad * y).sum(axis=-1, keepdims=True)
    else:
        shift = (weights * grad_weights).sum(axis=-1, keepdims=True)
    grad_scores = weights * (grad_weights - shift)
    half = grad_scores.astype(narrow)
    grad_query = contract(half, at.k, ((3,), (2,)), _BATCH) * at.scale
    grad_key = contract(half, at.q, ((2,), (2,)), _BATCH) * at.scale
    grads = [grad_query.reshape(query.shape), grad_key.reshape(key.shape), grad_value.reshape(value.shape)]
    if attn_bias is not None:
        if grad_input_mask[3]:
            grads.append(_sum_to(grad_scores.reshape(at.full), attn_bias.shape))
        else:
            grads.append(jnp.zeros(attn_bias.shape, attn_bias.dtype))
    return tuple(grads)


def _sum_to(x: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of broadcasting `shape` to the shape of `x`."""
    padded = (*([1] * (x.ndim - len(shape))), *shape)
    return x.sum(axis=tuple(d for d, n in enumerate(padded) if n == 1 and x.shape[d] != 1)).reshape(shape)


_FUSED_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _is_regular(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, grouped: bool
) -> bool:
    """Whether the fused operators take these: equal batches, (grouped) heads, no empty dimension, one dtype."""
    rank = query.dim()
    if rank not in (3, 4) or key.dim() != rank or value.dim() != rank or query.dtype not in _FUSED_DTYPES:
        return False
    if not query.dtype == key.dtype == value.dtype or key.shape[:-1] != value.shape[:-1]:
        return False
    if query.shape[-1] != key.shape[-1] or query.shape[:-3] != key.shape[:-3]:
        return False
    if not (query.numel() and key.numel() and value.numel()):
        return False
    heads, shared = query.shape[-3], key.shape[-3]
    if heads != shared and not (grouped and heads % shared == 0):
        return False
    if mask is None:
        return True
    full = (*query.shape[:-1], key.shape[-2])
    fits = mask.dim() <= rank and all(n in (1, m) for n, m in zip(reversed(mask.shape), reversed(full)))
    return fits and mask.dtype in (torch.bool, query.dtype)


@composite("scaled_dot_product_attention")
def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Choose the fused operator: PyTorch asks a C++ table which devices have one, and finds none for this device."""
    op = torch.ops.aten.scaled_dot_product_attention.default
    if torch.autograd.forward_ad._current_level >= 0:  # the fused operator has no formula for forward mode
        return op.decompose(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if not torch._C._get_overrideable_sdp_enabled() or not _is_regular(query, key, value, attn_mask, enable_gqa):
        return op.decompose(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    fused = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default
    return fused(query, key, value, attn_mask, dropout_p, is_causal, True, scale=scale)[0]
