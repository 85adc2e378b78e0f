"""An attention block with tied weights and AdamW: the smallest thing that trains as a language model does."""

import torch
from torch import nn
from torch.nn import functional as F

SEED = 0  # another one makes other weights and batches
WIDTH, HEADS, VOCABULARY = 16, 2, 48
CASES = ("2x8", "1x12")
DTYPES = ("float32", "bfloat16")


def _reseed():
    torch.manual_seed(torch.initial_seed() + 7919 * SEED)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)  # so small that the epsilon of a normalisation is seen
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids)
        size, length, _ = x.shape
        q, k, v = (
            part.view(size, length, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        return self.head(self.last(x + self.down(F.gelu(self.up(x)))))


def build_model():
    _reseed()
    return Block()


def make_batch(size, length):
    _reseed()
    ids = torch.randint(0, VOCABULARY, (size, length + 1))
    return {"ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}


def pad(batch, length):
    more = length - batch["ids"].shape[1]
    return {"ids": F.pad(batch["ids"], (0, more)), "labels": F.pad(batch["labels"], (0, more), value=-100)}


def forward(model, batch):
    logits = model(batch["ids"])
    return {"logits": logits, "best": logits.argmax(-1)}, F.cross_entropy(
        logits.flatten(0, 1), batch["labels"].flatten()
    )


def build_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=1e-2)
