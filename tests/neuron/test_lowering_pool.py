"""Pooling, resampling and grid sampling against the CPU, values, indices and gradients."""

import pytest
import torch

from .agreement import LAYOUTS, agree, example, laid_out

pytestmark = pytest.mark.rotating(2, least=3)

F = torch.nn.functional
NAN, INF = torch.nan, torch.inf

POOLS = {
    "max": (lambda x: F.max_pool2d(x, 2), (2, 3, 6, 8)),
    "max with rest": (lambda x: F.max_pool2d(x, 2, return_indices=True), (2, 3, 7, 5)),
    "max overlapping": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (2, 3, 7, 8)),
    "max dilated": (lambda x: F.max_pool2d(x, (3, 2), 1, (1, 0), (2, 3), return_indices=True), (2, 3, 8, 9)),
    "max to the ceiling": (lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True), (2, 3, 6, 8)),
    "max over many": (lambda x: F.max_pool2d(x, 9, 2, 4, return_indices=True), (1, 2, 12, 11)),
    "max without batch": (lambda x: F.max_pool2d(x, 2, return_indices=True), (3, 6, 6)),
    "max, one dimension": (lambda x: F.max_pool1d(x, 3, 2, 1, return_indices=True), (2, 3, 9)),
    "max, three dimensions": (lambda x: F.max_pool3d(x, 2, 2, 1, return_indices=True), (1, 2, 5, 4, 6)),
    "average": (lambda x: F.avg_pool2d(x, 2), (2, 3, 6, 8)),
    "average with padding": (lambda x: F.avg_pool2d(x, 3, 2, 1), (2, 3, 7, 8)),
    "average without padding": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (2, 3, 7, 8)),
    "average to the ceiling": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (2, 3, 6, 8)),
    "average by a number": (lambda x: F.avg_pool2d(x, (2, 3), divisor_override=5), (2, 3, 6, 9)),
    "average over many": (lambda x: F.avg_pool2d(x, 9, 3, 4), (1, 2, 12, 11)),
    "average, one dimension": (lambda x: F.avg_pool1d(x, 3, 2, 1), (2, 3, 9)),
    "power average": (lambda x: F.lp_pool2d(x.abs() + 1, 2, 2), (2, 3, 6, 6)),
    "adaptive average": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (2, 3, 6, 8)),
    "adaptive average, uneven": (lambda x: F.adaptive_avg_pool2d(x, (4, 5)), (2, 3, 7, 9)),
    "adaptive average, upwards": (lambda x: F.adaptive_avg_pool2d(x, (5, 7)), (2, 3, 3, 4)),
    "global average": (lambda x: F.adaptive_avg_pool2d(x, 1), (2, 3, 6, 8)),
    "adaptive average, one dimension": (lambda x: F.adaptive_avg_pool1d(x, 4), (2, 3, 9)),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, (4, 5), return_indices=True), (2, 3, 7, 9)),
    "adaptive max, one dimension": (lambda x: F.adaptive_max_pool1d(x, 4, return_indices=True), (2, 3, 9)),
    "adaptive max, three dimensions": (
        lambda x: F.adaptive_max_pool3d(x, (2, 3, 2), return_indices=True),
        (1, 2, 5, 4, 3),
    ),
}
HALF_MISSING = ("power", "average, three", "average over many")


@pytest.mark.covering("torch.float32")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", POOLS)
def test_pools(name, dtype):
    fn, size = POOLS[name]
    if dtype is torch.bfloat16 and name.startswith(HALF_MISSING):
        pytest.skip("the CPU sums this one in bfloat16")
    agree(fn, example(dtype, *size), gradients=True)


@pytest.mark.parametrize("name", ["max overlapping", "max over many", "adaptive max", "max to the ceiling"])
def test_ties_and_nan(name):
    """The first of equal maxima, the last NaN, and a window of nothing but -inf."""
    fn, size = POOLS[name]
    agree(fn, torch.zeros(size))
    agree(fn, torch.full(size, -INF))
    x = example(torch.float32, *size)
    x[..., ::3, ::4] = NAN
    agree(fn, x)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    x = laid_out(example(torch.float32, 4, 4, 4, 4), layout)
    agree(lambda x: F.max_pool2d(x, 2, return_indices=True), x)
    agree(lambda x: F.avg_pool2d(x, 3, 1), x)
    agree(lambda x: F.adaptive_avg_pool2d(x, 3), x)


def test_unpooling():
    def fn(x):
        y, where = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(y, where, 2)

    agree(fn, example(torch.float32, 2, 3, 6, 6), gradients=True)
    agree(lambda x: F.max_unpool3d(*F.max_pool3d(x, 2, return_indices=True), 2), example(torch.float32, 1, 2, 4, 4, 4))


MODES = {
    "nearest": ({}, (1, 2, 3)),
    "nearest-exact": ({}, (1, 2, 3)),
    "linear": ({"align_corners": False}, (1,)),
    "bilinear": ({"align_corners": False}, (2,)),
    "bilinear aligned": ({"align_corners": True}, (2,)),
    "bilinear antialiased": ({"align_corners": False, "antialias": True}, (2,)),
    "bicubic": ({"align_corners": False}, (2,)),
    "bicubic aligned": ({"align_corners": True}, (2,)),
    "bicubic antialiased": ({"align_corners": False, "antialias": True}, (2,)),
    "trilinear": ({"align_corners": False}, (3,)),
    "area": ({}, (2,)),
}


@pytest.mark.covering
@pytest.mark.parametrize(
    "target",
    [{"size": 9}, {"scale_factor": 0.6}],
    ids=str,
)
@pytest.mark.parametrize("name", MODES)
def test_interpolation(name, target):
    named, ranks = MODES[name]
    for rank in ranks:
        x = example(torch.float32, 1, 2, *range(5, 5 + rank))
        agree(lambda x: F.interpolate(x, mode=name.split()[0], **named, **target), x, gradients=True)


def test_interpolation_dtypes():
    for dtype in (torch.bfloat16, torch.float64):
        agree(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), example(dtype, 1, 2, 4, 5), gradients=True)
    agree(lambda x: F.interpolate(x, scale_factor=2), example(torch.uint8, 1, 2, 4, 5))


@pytest.mark.covering
@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode, padding, align):
    generator = torch.Generator().manual_seed(0)
    x = example(torch.float32, 2, 3, 4, 5)
    grid = torch.rand(2, 3, 6, 2, generator=generator) * 3 - 1.5
    agree(lambda x, g: F.grid_sample(x, g, mode, padding, align), x, grid, gradients=True)
    if mode != "bicubic" and align:
        grid = torch.rand(2, 2, 3, 2, 3, generator=generator) * 3 - 1.5
        volume = example(torch.float32, 2, 2, 3, 4, 3)
        agree(lambda x, g: F.grid_sample(x, g, mode, padding, align), volume, grid, gradients=True)


def test_affine_grid():
    agree(lambda t: F.affine_grid(t, [2, 1, 3, 4], align_corners=False), example(torch.float32, 2, 2, 3))
