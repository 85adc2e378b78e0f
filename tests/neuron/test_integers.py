"""Integers and booleans at their limits: wraparound, signs, conversions, promotion; held to the CPU's values and dtypes."""

from __future__ import annotations

import pytest
import torch

from .agreement import agree

pytestmark = pytest.mark.rotating(2, least=3)

INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)


def limits(dtype: torch.dtype, *, zero: bool = True) -> torch.Tensor:
    """The values at which integers of `dtype` behave unlike others."""
    if dtype is torch.bool:
        return torch.tensor([True, False]) if zero else torch.tensor([True])
    info = torch.iinfo(dtype)
    values = {0, 1, 2, 3, 7, 63, 64, info.max, info.max - 1, info.min, info.min + 1, -1, -2, -7}
    return torch.tensor(sorted(v for v in values if info.min <= v <= info.max and (zero or v)), dtype=dtype)


FLOATS = torch.tensor(
    [0.0, -0.0, 2.5, -2.5, 1.5, 255.0, 256.0, -129.0, 2.0**31, -(2.0**63), float("inf"), float("nan")]
)
ARITHMETIC = {
    "add": torch.add,
    "mul": torch.mul,
    "pow": lambda a, b: torch.pow(a, b.abs() % 5),
    "maximum": torch.maximum,
    "bitwise_xor": torch.bitwise_xor,
    "left shift": torch.bitwise_left_shift,
    "right shift": torch.bitwise_right_shift,
    "gcd": torch.gcd,
    "less": torch.lt,
    "divide": torch.true_divide,
}
DIVISIONS = {"floor_divide": torch.floor_divide, "remainder": torch.remainder, "fmod": torch.fmod}


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_arithmetic_wraps_as_on_the_cpu(dtype):
    def all_of_it(a, b, divisor):
        made = [fn(a, b) for fn in ARITHMETIC.values()]
        return made + [fn(a, divisor) for fn in DIVISIONS.values()]

    agree(all_of_it, limits(dtype)[:, None], limits(dtype)[None], limits(dtype, zero=False)[None])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8], ids=str)
def test_the_least_common_multiple_of_narrow_integers_wraps_after_its_absolute_value(dtype):
    agree(torch.lcm, limits(dtype)[:, None], limits(dtype)[None])


@pytest.mark.parametrize("number", [300, -3, 2.5, True], ids=repr)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool], ids=str)
def test_numbers_join_integers_by_promotion(dtype, number):
    def all_of_it(a):
        made = [a + number, a * number, number + a, a / number, a == number, a < number, torch.maximum(a, a * number)]
        if dtype is not torch.bool:
            made += [a - number, number - a] if number is not True else []
            made += [a // number, a % number]
        return made

    agree(all_of_it, limits(dtype))


@pytest.mark.parametrize("target", [torch.bool, *INTEGERS, torch.float16, torch.float32], ids=str)
def test_conversions_truncate_and_wrap_as_on_the_cpu(target):
    agree(lambda *tensors: [t.to(target) for t in tensors], FLOATS, *(limits(d) for d in (torch.bool, *INTEGERS)))


@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS], ids=str)
def test_sums_and_products_widen(dtype):
    def all_of_it(a):
        return [a.sum(), a.prod(), a.cumsum(0), a.cumprod(0), a.sum(0, dtype=torch.int32), a.any(), a.all(), a.amax()]

    agree(all_of_it, limits(dtype))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64], ids=str)
@pytest.mark.parametrize("layout", ["strided", "transposed"])
def test_in_place_arithmetic_through_views(dtype, layout):
    def all_of_it(base, other):
        base = base.clone()
        view = base[:, ::2] if layout == "strided" else base.t()[:3]
        view.mul_(other).add_(200).bitwise_xor_(5).floor_divide_(3).clamp_(1, 100)
        view.masked_fill_(view > 50, 7)
        return base

    base = torch.arange(24).to(dtype).view(4, 6)
    agree(all_of_it, base, torch.tensor(3, dtype=dtype).expand(4, 3) if layout == "strided" else base.t()[:3].clone())


def test_a_boolean_times_infinity_is_nan():
    """XLA makes a product with a converted boolean a choice, unless the conversion hides what it is."""

    def products(mask, values):
        return [mask * values, mask.float() * values, mask * float("inf"), mask // 0.0, values * mask.double()]

    agree(
        products, torch.tensor([True, False, False, True]), torch.tensor([float("inf"), float("inf"), float("nan"), 1])
    )


def test_a_boolean_times_infinity_is_nan_in_graphs():
    def product(mask, values):
        return mask.to(values.dtype) * values

    mask, values = torch.tensor([False, True]), torch.tensor([float("inf"), 2.0])
    made = torch.compile(product, backend="neuron", fullgraph=True)(mask.to("neuron"), values.to("neuron"))
    torch.testing.assert_close(made.cpu(), product(mask, values), equal_nan=True)


def test_products_leave_the_range_of_float32_and_come_back():
    agree(lambda x: torch.cumprod(x, 0), torch.tensor([1e30, 1e30, 1e-30, 0.0, 3.0]))


def test_addr_of_booleans_scales():
    a, b, c = torch.tensor([[True, False]]), torch.tensor([True]), torch.tensor([True, False])
    agree(lambda a, b, c: [torch.addr(a, b, c, beta=p, alpha=q) for p in (0, 1, 2) for q in (0, 1, 3)], a, b, c)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_bytes_are_resampled_in_fixed_point(mode, antialias):
    image = torch.randint(0, 256, (2, 3, 13, 17), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))

    def resized(x):
        sizes = ((7, 9), (20, 30), (13, 4))
        return [torch.nn.functional.interpolate(x, s, mode=mode, antialias=antialias) for s in sizes]

    agree(resized, image)


def test_rows_that_are_unique_keep_the_strides_of_the_cpu():
    rows = torch.tensor([[1, 1, 2], [0, 0, 5]])
    for fn in (torch.unique, torch.unique_consecutive):
        there, here = fn(rows.to("neuron"), dim=1), fn(rows, dim=1)
        assert there.stride() == here.stride()
        assert there.tolist() == here.tolist()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32], ids=str)
def test_a_fraction_scales_gradients_of_every_dtype(dtype):
    grad, mask = torch.tensor([0, 1, 1, 1]).to(dtype), torch.tensor([True, True, False, True])
    expected = torch.ops.aten.native_dropout_backward(grad, mask, 2.5)
    actual = torch.ops.aten.native_dropout_backward(grad.to("neuron"), mask.to("neuron"), 2.5)
    assert actual.dtype is expected.dtype
    assert torch.equal(actual.cpu(), expected)
