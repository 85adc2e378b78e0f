"""A workload that leaves the device in every phase: kernels that exist for the CPU alone, and masks made there."""

import torch
from torch import nn

WIDTH = 6
CASES = ("2x4",)
DTYPES = ("float32",)

if not hasattr(torch.ops.leaving, "squash"):  # the file is loaded more than once in a process
    library = torch.library.Library("leaving", "DEF")
    library.define("squash(Tensor x) -> Tensor")
    library.impl("squash", torch.tanh, "CPU")
    library.impl("squash", torch.empty_like, "Meta")
    library.define("slope(Tensor y) -> Tensor")
    library.impl("slope", lambda y: 1 - y * y, "CPU")
    library.impl("slope", torch.empty_like, "Meta")


class Squash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.ops.leaving.squash(x)  # line of squash
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * torch.ops.leaving.slope(y)  # line of slope


class Descent(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * torch.ops.leaving.squash(parameter.grad)  # line of descent


def build_model():
    return nn.Linear(WIDTH, WIDTH)


def make_batch(size, length):
    return {"x": torch.randn(size, length, WIDTH), "y": torch.randn(size, length, WIDTH)}


def forward(model, batch):
    length = batch["x"].shape[1]
    allowed = torch.ones(length, length, dtype=batch["x"].dtype).tril()  # line of mask
    allowed = allowed / allowed.sum(-1, keepdim=True)
    mixed = allowed.to(batch["x"].device) @ model(batch["x"])  # line of product
    out = Squash.apply(mixed)
    return {"out": out}, (out - batch["y"]).square().mean()


def build_optimizer(parameters):
    return Descent(parameters)
