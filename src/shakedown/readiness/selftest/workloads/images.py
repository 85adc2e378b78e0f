"""A convolution with batch normalisation, trained by SGD with momentum."""

import torch
from torch import nn
from torch.nn import functional as F

SEED = 0  # another one makes other weights and batches
CHANNELS, WIDTH, CLASSES = 3, 8, 5
CASES = ("4x8", "2x6")
DTYPES = ("float32", "bfloat16")


def _reseed():
    torch.manual_seed(torch.initial_seed() + 7919 * SEED)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(CHANNELS, WIDTH, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(F.silu(self.norm(self.stem(x))).mean((2, 3)))


def build_model():
    _reseed()
    return Images()


def make_batch(size, length):
    _reseed()
    return {"images": torch.randn(size, CHANNELS, length, length), "labels": torch.randint(0, CLASSES, (size,))}


def forward(model, batch):
    scores = model(batch["images"])
    return scores, F.cross_entropy(scores, batch["labels"])


def build_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=5e-2, momentum=0.9, weight_decay=1e-3)
