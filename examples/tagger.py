"""A user's own workload: label each reading of padded sensor sequences.

    shakedown run examples/tagger.py

Floating inputs take the precision of the run, the mask stays boolean and the labels stay integers.
"""

import torch
from torch import nn
from torch.nn import functional as F

FEATURES, WIDTH, LABELS = 12, 48, 5
CASES = ("8x40", "3x64")
DTYPES = ("float32", "bfloat16")
DIMENSIONS = {"features": FEATURES, "width": WIDTH, "labels": LABELS}


class Tagger(nn.Module):
    """Two causal convolutions over time, then a label for each reading."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(FEATURES, WIDTH, kernel_size=3)
        self.second = nn.Conv1d(WIDTH, WIDTH, kernel_size=3)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, LABELS)

    def forward(self, readings, mask):
        hidden = F.silu(self.first(F.pad(readings.transpose(1, 2), (2, 0))))
        hidden = F.silu(self.second(F.pad(hidden, (2, 0)))).transpose(1, 2)
        return self.head(self.norm(hidden)).masked_fill(~mask.unsqueeze(-1), 0.0)


def build_model():
    return Tagger()


def make_batch(size, length):
    lengths = torch.randint(length // 2, length + 1, (size,))
    return {
        "readings": torch.randn(size, length, FEATURES),
        "mask": torch.arange(length) < lengths.unsqueeze(1),
        "labels": torch.randint(0, LABELS, (size, length)),
    }


def forward(model, batch):
    scores = model(batch["readings"], batch["mask"])
    each = F.cross_entropy(scores.flatten(0, 1), batch["labels"].flatten(), reduction="none")
    kept = batch["mask"].flatten()
    return scores, (each * kept).sum() / kept.sum()


def build_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=3e-3)
