"""torchvision: models at a small size, the operators of detection, and transforms of tensors on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torchvision import ops, tv_tensors
from torchvision.models import VisionTransformer, convnext, mobilenetv3, resnet
from torchvision.transforms import v2

from ..comparing import Results
from ..rows import Row, Way, trained


def _batch(size: int = 32) -> dict[str, torch.Tensor]:
    """Four pictures; 64 wide for models that normalise batches, whose last maps are more than a pixel then."""
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(4, 3, size, size, generator=generator), "y": torch.tensor([1, 3, 0, 1])}


def _loss(call: Any, given: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(call(given["x"]), given["y"])


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


def _classifier(make: Callable[[], Any], size: int = 32) -> Callable[[Way], Results]:
    def recipe(way: Way) -> Results:
        torch.manual_seed(0)
        return trained(make().train(), way, [_batch(size)] * 2, _loss, _sgd)

    return recipe


def _resnet() -> Any:
    return resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=5)


def _mobilenet() -> Any:
    from functools import partial

    row = partial(mobilenetv3.InvertedResidualConfig, width_mult=0.5)
    rows = [
        row(16, 3, 16, 16, True, "RE", 2, 1),
        row(16, 3, 48, 24, False, "RE", 2, 1),
        row(24, 5, 64, 24, True, "HS", 1, 1),
    ]
    return mobilenetv3.MobileNetV3(rows, last_channel=32, num_classes=5, dropout=0.0)


def _vit() -> Any:
    return VisionTransformer(32, 8, num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=5)


def _convnext() -> Any:
    blocks = [convnext.CNBlockConfig(8, 16, 1), convnext.CNBlockConfig(16, None, 1)]
    return convnext.ConvNeXt(blocks, stochastic_depth_prob=0.0, num_classes=5)


def _boxes(count: int, generator: torch.Generator) -> torch.Tensor:
    corner = torch.rand(count, 2, generator=generator) * 10
    return torch.cat([corner, corner + 1 + torch.rand(count, 2, generator=generator) * 6], 1)


def _detection(way: Way) -> Results:
    generator = torch.Generator().manual_seed(2)
    boxes, scores = _boxes(20, generator), torch.rand(20, generator=generator)
    groups = torch.arange(20) % 3
    features = torch.randn(2, 4, 16, 16, generator=generator)
    there = features.to(way.device).requires_grad_()
    b, s, g = boxes.to(way.device), scores.to(way.device), groups.to(way.device)
    regions = [b[:5], b[5:9]]
    found = {
        "nms": ops.nms(b, s, 0.3),
        "batched_nms": ops.batched_nms(b, s, g, 0.3),
        "box_iou": ops.box_iou(b, b),
        "generalized_box_iou": ops.generalized_box_iou(b, b),
        "masks_to_boxes": ops.masks_to_boxes(there[0].detach() > 1),
        "roi_align": ops.roi_align(there, regions, (3, 3), sampling_ratio=2),
        "roi_pool": ops.roi_pool(there, regions, (3, 3)),
        "ps_roi_align": ops.ps_roi_align(there, regions, (2, 2), sampling_ratio=2),
    }
    (found["roi_align"].sum() * 2 + found["roi_pool"].pow(2).sum()).backward()
    assert {t.device.type for t in found.values()} == {way.device}
    return {n: t.detach().cpu() for n, t in found.items()} | {"gradient of the features": there.grad.cpu()}


def _transforms(way: Way) -> Results:
    """What draws no random numbers; what does draws them on the CPU, and is given the same seed."""
    generator = torch.Generator().manual_seed(3)
    image = torch.randint(0, 256, (3, 20, 24), dtype=torch.uint8, generator=generator)
    there = tv_tensors.Image(image.to(way.device))
    boxes = tv_tensors.BoundingBoxes(torch.tensor([[2, 3, 9, 12]]).to(way.device), format="XYXY", canvas_size=(20, 24))
    known = v2.Compose(
        [
            v2.ToDtype(torch.float32, scale=True),  # of bytes the CPU has a resize in integers of its own
            v2.Resize((16, 16), antialias=True),
            v2.CenterCrop(12),
            v2.RandomHorizontalFlip(1.0),
            v2.Normalize([0.5] * 3, [0.2] * 3),
        ]
    )
    drawn = v2.Compose(
        [v2.RandomCrop(12), v2.ColorJitter(0.2, 0.2, 0.2, 0.1), v2.RandomErasing(1.0), v2.RandomRotation(20)]
    )
    torch.manual_seed(4)
    picture, box = known(there, boxes)
    assert isinstance(picture, tv_tensors.Image)
    found = {"known": picture.as_subclass(torch.Tensor), "boxes": box.as_subclass(torch.Tensor)}
    found["drawn"] = drawn(v2.functional.to_dtype(there, torch.float32, scale=True)).as_subclass(torch.Tensor)
    found["mixed"] = v2.functional.gaussian_blur(found["known"], [3, 3])
    assert {t.device.type for t in found.values()} == {way.device}
    return {n: t.cpu() for n, t in found.items()}


def _detector(way: Way) -> Results:
    """A whole detector: its anchors, matching, sampling and suppression."""
    torch.manual_seed(0)
    backbone = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 4, 1), torch.nn.ReLU())
    backbone.out_channels = 8
    model = torchvision.models.detection.RetinaNet(
        backbone,
        num_classes=3,
        score_thresh=0.0,
        detections_per_img=5,
        min_size=32,
        max_size=32,
        anchor_generator=torchvision.models.detection.anchor_utils.AnchorGenerator(((8, 16),), ((1.0,),)),
    )
    torch.nn.init.normal_(model.head.classification_head.cls_logits.weight, std=1.0)  # so that boxes differ in score
    model = model.to(way.device)
    x = [_batch()["x"][0].to(way.device)]
    targets = [
        {"boxes": torch.tensor([[4.0, 4.0, 20.0, 20.0]]).to(way.device), "labels": torch.tensor([1]).to(way.device)}
    ]
    losses = model(x, targets)
    sum(losses.values()).backward()
    found = {f"loss {n}": t.detach().cpu() for n, t in losses.items()}
    found |= {f"gradient of {n}": p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}
    model.eval()
    with torch.no_grad():
        seen = model(x)[0]
    return found | {n: t.cpu() for n, t in seen.items()}


ALL, BOTH = ("eager", "adaptive", "compile"), ("eager", "compile")
NMS, ALIGN, POOL, PS = (
    "torchvision::nms",
    "torchvision::roi_align",
    "torchvision::roi_pool",
    "torchvision::ps_roi_align",
)
ROWS = [
    Row("torchvision", "resnet", _classifier(_resnet, 64), ALL),
    Row("torchvision", "mobilenet_v3", _classifier(_mobilenet, 64), BOTH),
    Row("torchvision", "vit", _classifier(_vit), BOTH),
    Row("torchvision", "convnext", _classifier(_convnext), BOTH),
    Row(
        "torchvision",
        "nms, roi_align, roi_pool, boxes",
        _detection,
        ("eager",),
        falls_back=(NMS, PS, ALIGN, "torchvision::_roi_align_backward", POOL, "torchvision::_roi_pool_backward"),
    ),
    Row("torchvision", "RetinaNet", _detector, ("eager",), falls_back=(NMS,)),
    Row("torchvision", "v2 transforms", _transforms, ("eager",)),
]
