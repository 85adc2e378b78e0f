"""One decoder twice: as a PyTorch module, and written by hand in JAX with the same parameters and 2-D linear layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Size:
    width: int
    layers: int
    heads: int
    vocabulary: int
    batch: int
    length: int

    def __str__(self) -> str:
        return f"d={self.width}, {self.layers} layers, V={self.vocabulary}, {self.batch}x{self.length}"


SMALL = Size(width=64, layers=2, heads=4, vocabulary=1000, batch=2, length=32)
COMPILED = Size(width=256, layers=4, heads=4, vocabulary=1000, batch=4, length=128)
MEDIUM = Size(width=512, layers=6, heads=8, vocabulary=8000, batch=4, length=256)


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        d = size.width
        self.heads = size.heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.projection = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x_btd: Tensor) -> Tensor:
        b, t, d = x_btd.shape
        q, k, v = (
            part.view(b, t, self.heads, d // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm_attention(x_btd)).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x_btd = x_btd + self.projection(attended)
        return x_btd + self.down(F.gelu(self.up(self.norm_mlp(x_btd))))


class Decoder(nn.Module):
    """Ids in, cross-entropy loss out."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Parameter(torch.randn(size.length, size.width) * 0.02)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, ids_bt: Tensor, labels_bt: Tensor) -> Tensor:
        x_btd = self.tokens(ids_bt) + self.positions
        for block in self.blocks:
            x_btd = block(x_btd)
        return F.cross_entropy(self.head(self.norm(x_btd)).flatten(0, 1), labels_bt.flatten())


def batch(size: Size) -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, size.vocabulary, (size.batch, size.length + 1))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def jax_parameters(module: nn.Module) -> dict[str, jax.Array]:
    return {name: jnp.asarray(p.detach().cpu().numpy().copy()) for name, p in module.named_parameters()}


def _layer_norm(p: dict[str, Any], name: str, x: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def _linear(p: dict[str, Any], name: str, x_nd: jax.Array) -> jax.Array:
    return x_nd @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def jax_loss(p: dict[str, Any], ids_bt: jax.Array, labels_bt: jax.Array, *, size: Size) -> jax.Array:
    """The same loss. Rows of tokens are kept as one leading dimension, so that every linear layer is a 2-D dot."""
    b, t, d, h = size.batch, size.length, size.width, size.heads
    x = (p["tokens.weight"][ids_bt] + p["positions"]).reshape(b * t, d)
    causal = jnp.tril(jnp.ones((t, t), bool))
    for i in range(size.layers):
        name = f"blocks.{i}"
        qkv = _linear(p, f"{name}.qkv", _layer_norm(p, f"{name}.norm_attention", x))
        q, k, v = (a.reshape(b, t, h, d // h).transpose(0, 2, 1, 3) for a in jnp.split(qkv, 3, -1))
        scores = jnp.where(causal, q @ k.transpose(0, 1, 3, 2) / math.sqrt(d // h), -jnp.inf)
        attended = (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(b * t, d)
        x = x + _linear(p, f"{name}.projection", attended)
        hidden = jax.nn.gelu(_linear(p, f"{name}.up", _layer_norm(p, f"{name}.norm_mlp", x)), approximate=False)
        x = x + _linear(p, f"{name}.down", hidden)
    logits = _layer_norm(p, "norm", x) @ p["head.weight"].T
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits, -1), labels_bt.reshape(-1, 1), 1)
    return -chosen.mean()
