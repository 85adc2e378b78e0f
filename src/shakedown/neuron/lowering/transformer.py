"""The inference kernels of ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer``, in terms of other operators.

In evaluation these layers call one fused operator each on "privateuse1" devices; without a kernel all of the layer would
run on the CPU.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from .registry import composite


def _hidden(mask: torch.Tensor | None, mask_type: int | None) -> torch.Tensor | None:
    """`mask` (true: forbidden) as something that broadcasts to (B, H, L, L). Type 0 is (L, L), type 1 is (B, L)."""
    if mask is None:
        return None
    mask = mask.to(torch.bool)
    return mask[:, None, None, :] if mask_type == 1 and mask.dim() == 2 else mask


@composite("_native_multi_head_attention")
def native_multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    def heads(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, weight, bias).unflatten(-1, (num_head, -1)).transpose(1, 2)

    q, k, v = (
        heads(x, w, b) for x, w, b in zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    )
    hidden = _hidden(mask, mask_type)
    if need_weights:
        scores = q @ k.mT * q.shape[-1] ** -0.5
        weights = torch.softmax(scores if hidden is None else scores.masked_fill(hidden, -torch.inf), -1)
        mixed = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        mixed = functional.scaled_dot_product_attention(q, k, v, None if hidden is None else hidden.logical_not())
        weights = query.new_empty(0)
    return functional.linear(mixed.transpose(1, 2).flatten(2), proj_weight, proj_bias), weights


@composite("_transformer_encoder_layer_fwd")
def transformer_encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    def attended(x: torch.Tensor) -> torch.Tensor:
        return native_multi_head_attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
        )[0]

    def transformed(x: torch.Tensor) -> torch.Tensor:
        inner = functional.linear(x, ffn_weight_1, ffn_bias_1)
        return functional.linear(functional.gelu(inner) if use_gelu else inner.relu(), ffn_weight_2, ffn_bias_2)

    def first(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attended(first(src))
        return x + transformed(second(x))
    x = first(src + attended(src))
    return second(x + transformed(x))
