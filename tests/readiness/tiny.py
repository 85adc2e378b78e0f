"""A workload small enough to train dozens of times in a test: attention with a key bias, tied weights, AdamW."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, VOCABULARY = 16, 2, 48
CASES = ("2x8", "1x12")
DTYPES = ("float32", "bfloat16")
DIMENSIONS = {"width": WIDTH, "vocabulary": VOCABULARY}


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.drop = nn.Dropout(0.5)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids)
        size, length, _ = x.shape
        q, k, v = (
            part.view(size, length, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        return self.head(self.last(x + self.down(F.gelu(self.up(self.drop(x))))))


def build_model():
    return Tiny()


def make_batch(size, length):
    ids = torch.randint(0, VOCABULARY, (size, length + 1))
    return {"ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}


def forward(model, batch):
    logits = model(batch["ids"])
    return {"logits": logits, "best": logits.argmax(-1)}, F.cross_entropy(
        logits.flatten(0, 1), batch["labels"].flatten()
    )


def build_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=1e-2)
