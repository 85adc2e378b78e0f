"""The smallest workload that still has a weight, an update and a loss."""

import torch
from torch import nn
from torch.nn import functional as F

CASES = ("2x3",)
DTYPES = ("float32",)


def build_model():
    return nn.Linear(3, 2)


def make_batch(size, length):
    return {"x": torch.randn(size, length), "y": torch.randint(0, 2, (size,))}


def forward(model, batch):
    logits = model(batch["x"])
    return {"logits": logits}, F.cross_entropy(logits, batch["y"])


def build_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)
