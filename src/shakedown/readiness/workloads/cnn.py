"""A small residual image classifier: convolutions, batch normalisation, pooling, SGD with momentum."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHANNELS, WIDTH, BLOCKS, CLASSES = 3, 16, 2, 10
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 1e-4

CASES = ("8x16", "4x32")  # batch x side in pixels
DTYPES = ("float32", "bfloat16")
DIMENSIONS = {"channels": CHANNELS, "width": WIDTH, "blocks": BLOCKS, "classes": CLASSES}


class Residual(nn.Module):
    """x + norm(conv(relu(norm(conv(x)))))."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(WIDTH)
        self.second = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(WIDTH)

    def forward(self, x_nchw: Tensor) -> Tensor:
        hidden = F.relu(self.first_norm(self.first(x_nchw)))
        return F.relu(x_nchw + self.second_norm(self.second(hidden)))


class Classifier(nn.Module):
    """Images to class scores."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(CHANNELS, WIDTH, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(WIDTH)
        self.blocks = nn.Sequential(*(Residual() for _ in range(BLOCKS)))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x_nchw: Tensor) -> Tensor:
        x_nchw = F.max_pool2d(F.relu(self.stem_norm(self.stem(x_nchw))), 2)
        return self.head(self.blocks(x_nchw).mean(dim=(2, 3)))


def build_model() -> nn.Module:
    return Classifier()


def make_batch(size: int, length: int) -> dict[str, Tensor]:
    return {"images": torch.randn(size, CHANNELS, length, length), "labels": torch.randint(0, CLASSES, (size,))}


def pad(batch: dict[str, Tensor], length: int) -> dict[str, Tensor]:
    """Images with a border of zeros at the right and the bottom. Averages over pixels see it: such padding is not neutral."""
    more = length - batch["images"].shape[-1]
    return batch | {"images": F.pad(batch["images"], (0, more, 0, more))}


def forward(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    scores = model(batch["images"])
    return scores, F.cross_entropy(scores, batch["labels"])


def build_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)


def reduction_length(size: int, length: int) -> int:
    """The longest sum is a weight gradient, or a batch statistic, over every pixel of the batch."""
    return size * length * length
