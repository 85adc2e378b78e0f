"""timm: architectures at a small size, its optimizers, schedules and the average of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import timm
import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3

from ..comparing import Results
from ..rows import Row, Way, changes, trained
from .vision import _batch, _loss, _sgd


def _trained(name: str, size: int, **options: Any) -> Callable[[Way], Results]:
    def recipe(way: Way) -> Results:
        torch.manual_seed(0)
        if name == "MlpMixer":  # whose registered names take no sizes
            model = timm.models.mlp_mixer.MlpMixer(num_classes=5, **options)
        else:
            model = timm.create_model(name, pretrained=False, num_classes=5, **options)
        for module in model.modules():
            if hasattr(module, "drop_prob"):
                module.drop_prob = 0.0  # what is dropped is each device's own
        return trained(model.train(), way, [_batch(size)] * 2, _loss, _sgd)

    return recipe


TRANSFORMER = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
SWIN = {"img_size": 32, "window_size": 4, "embed_dim": 8, "depths": (1, 1), "num_heads": (2, 2)}
MIXER = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "num_blocks": 1}
MODELS = {  # pictures' width, and what makes the model small
    "vit_tiny_patch16_224": (32, TRANSFORMER),
    "deit_tiny_distilled_patch16_224": (32, TRANSFORMER),
    "swin_tiny_patch4_window7_224": (32, SWIN),
    "MlpMixer": (32, MIXER),
    "convnext_atto": (32, {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)}),
    "resnetv2_50": (64, {"layers": (1, 1), "channels": (8, 16), "stem_chs": 8}),
    "test_efficientnet": (64, {}),
    "regnetx_002": (64, {}),
}


def _optimized(name: str, **options: Any) -> Callable[[Way], Results]:
    """Five steps of one of timm's optimizers on a small network, its schedule, and the average of weights."""

    def recipe(way: Way) -> Results:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 3))
        start = {n: t.clone() for n, t in net.state_dict().items()}
        net = net.to(way.device)
        optimizer = create_optimizer_v2(net, opt=name, lr=0.02, weight_decay=0.01, **options)
        schedule = CosineLRScheduler(optimizer, t_initial=5, warmup_t=2, warmup_lr_init=1e-3)
        average = ModelEmaV3(net, decay=0.9)
        x, y = torch.randn(4, 6).to(way.device), torch.tensor([0, 1, 2, 0]).to(way.device)
        found: Results = {}
        for step in range(5):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            schedule.step(step + 1)
            average.update(net, step=step)
            found[f"loss {step}"] = loss.detach().cpu()
        averaged = {f"average, {n}": t for n, t in changes(average.module, start).items()}
        return found | changes(net, start) | averaged

    return recipe


OPTIMIZERS = ("adamw", "lamb", "lars", "adan", "lion", "nadamw", "madgradw", "sgdw", "rmsproptf", "adopt")
ROWS = [
    *(
        Row("timm", name, _trained(name, size, **options), ("eager", "compile"))
        for name, (size, options) in MODELS.items()
    ),
    *(Row("timm", f"{name}, a schedule, ModelEmaV3", _optimized(name), ("eager",)) for name in OPTIMIZERS),
]
