"""A small language model trained for a few steps: embedding, causal attention, normalisation, MLP, projection, AdamW.

It holds every operator family that a text model brings (gather, layer norm, batched matmul, softmax, GELU, cross
entropy with integer labels, and their gradients), at a size where a step takes some milliseconds on a laptop.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS, LAYERS, HIDDEN, VOCABULARY, LONGEST = 64, 4, 2, 256, 1000, 512
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 1e-2

CASES = ("1x128", "1x512", "4x128", "4x512", "1x128")
DTYPES = ("float32", "bfloat16")
DIMENSIONS = {
    "width": WIDTH,
    "heads": HEADS,
    "layers": LAYERS,
    "hidden": HIDDEN,
    "vocabulary": VOCABULARY,
    "longest": LONGEST,
}


class Block(nn.Module):
    """Pre-norm transformer block: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.norm_mlp = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x_btd: Tensor) -> Tensor:
        size, length, _ = x_btd.shape
        q, k, v = (
            part.view(size, length, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in self.qkv(self.norm_attention(x_btd)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_btd = x_btd + self.projection(attended.transpose(1, 2).reshape(size, length, WIDTH))
        return x_btd + self.down(F.gelu(self.up(self.norm_mlp(x_btd))))


class Decoder(nn.Module):
    """Token ids to logits over the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids_bt: Tensor) -> Tensor:
        x_btd = self.tokens(ids_bt) + self.positions(torch.arange(ids_bt.shape[1], device=ids_bt.device))
        for block in self.blocks:
            x_btd = block(x_btd)
        return self.head(self.norm(x_btd))


def build_model() -> nn.Module:
    return Decoder()


def make_batch(size: int, length: int) -> dict[str, Tensor]:
    """Random ids, of which a model can learn the frequencies; each label is the next id."""
    ids = torch.randint(0, VOCABULARY, (size, length + 1))
    return {"ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}


def pad(batch: dict[str, Tensor], length: int) -> dict[str, Tensor]:
    """Ids padded with 0 at the end, where causal attention hides them; labels with -100, which the loss ignores."""
    more = (0, length - batch["ids"].shape[1])
    return {"ids": F.pad(batch["ids"], more), "labels": F.pad(batch["labels"], more, value=-100)}


def forward(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    logits_btv = model(batch["ids"])
    return logits_btv, F.cross_entropy(logits_btv.flatten(0, 1), batch["labels"].flatten())


def build_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)


def reduction_length(size: int, length: int) -> int:
    """The longest sum is the softmax over the vocabulary, or a weight gradient's sum over tokens."""
    return max(VOCABULARY, HIDDEN, size * length)
