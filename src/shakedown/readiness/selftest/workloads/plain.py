"""A layer, an activation and SGD, with a write into a slice: for what concerns single operators and processes."""

import torch
from torch import nn
from torch.nn import functional as F

SEED = 0  # another one makes other weights and batches
WIDTH = 12
CASES = ("4x6",)
DTYPES = ("float32", "bfloat16")


def _reseed():
    torch.manual_seed(torch.initial_seed() + 7919 * SEED)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, 4)

    def forward(self, x):
        x = x + 0.0 * torch.rand_like(x)  # a training run draws numbers; these change nothing
        x = torch.hypot(x, torch.ones_like(x)) + torch.atan2(x, torch.ones_like(x) * 3)
        x = self.second(F.gelu(self.first(x)))
        y = x.clone()
        y[:, 0] *= 2.0
        return y


def build_model():
    _reseed()
    return Plain()


def make_batch(size, length):
    _reseed()
    return {"x": torch.randn(size, length, WIDTH), "wanted": torch.randn(size, length, 4)}


def forward(model, batch):
    y = model(batch["x"])
    return y, F.mse_loss(y, batch["wanted"])


def build_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)
