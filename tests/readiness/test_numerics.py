"""The gates: what a correct device may do passes, what a wrong one does fails and is named."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shakedown.readiness.judge import formats
from shakedown.readiness.judge.numerics import Subject, measure
from shakedown.readiness.requirements import Numerics

DEMAND = Numerics()
ROWS, TERMS, COLUMNS = 64, 4096, 32


@pytest.fixture(scope="module")
def product() -> Subject:
    """A matrix product in float32, summed one term after the other: correct, and the least accurate order there is."""
    random = np.random.default_rng(7)
    a = random.standard_normal((ROWS, TERMS)).astype(np.float32)
    b = random.standard_normal((TERMS, COLUMNS)).astype(np.float32)
    total = np.zeros((ROWS, COLUMNS), np.float32)
    for k in range(TERMS):
        total += a[:, k : k + 1] * b[k]
    truth = a.astype(np.float64) @ b.astype(np.float64)
    return Subject("step1/output/product", "output", "float32", total, truth, None, reduction=TERMS)


def changed(subject: Subject, device: np.ndarray) -> Subject:
    return dataclasses.replace(subject, device=device.astype(np.float32))


def test_correct_sequential_sum_passes_although_an_elementwise_criterion_rejects_it(product: Subject) -> None:
    vector = measure(product, DEMAND)
    assert vector.findings == ()
    assert vector.margin < 1
    strict = Numerics.model_validate({"criteria": {"float32": {"absolute": 1e-5, "relative": 1.3e-6}}})
    outside = measure(product, strict).outside_criterion
    assert outside is not None
    assert outside > 0.1


def test_zeroed_row_is_named(product: Subject) -> None:
    device = product.device.copy()
    device[11] = 0
    vector = measure(changed(product, device), DEMAND)
    assert vector.worst_row == 11
    assert any("row 11 is zero" in text for text in vector.findings)


def test_zeroed_row_fails_where_the_whole_tensor_would_pass() -> None:
    random = np.random.default_rng(3)
    truth = random.standard_normal((4000, 8))
    device = formats.rounded(truth, "bfloat16")
    device[123] = 0
    subject = Subject("step1/output/x", "output", "bfloat16", device, truth, None, reduction=8)
    vector = measure(subject, dataclasses.replace(subject) and Numerics(rounding_factor=6))
    assert vector.margin < 1
    assert any("row 123 is zero" in text for text in vector.findings)


def test_several_zeroed_rows_are_named(product: Subject) -> None:
    device = product.truth.copy()
    device[-6:] = 0
    vector = measure(changed(product, device), DEMAND)
    first = len(device) - 6
    listed = ", ".join(str(first + row) for row in range(4))
    assert any(f"rows {listed} and 2 more are zero" in text for text in vector.findings), vector.findings


def test_uniform_scale_is_named(product: Subject) -> None:
    vector = measure(changed(product, product.truth * 1.002), DEMAND)
    assert any("uniformly scaled by 1.002" in text for text in vector.findings)
    assert vector.scale_minus_one == pytest.approx(0.002, rel=1e-3)


def test_a_shift_is_named(product: Subject) -> None:
    vector = measure(changed(product, product.truth + 0.5), DEMAND)
    assert any("every value is shifted by 5.00e-01" in text for text in vector.findings), vector.findings


def test_small_scale_fails_by_its_own_gate(product: Subject) -> None:
    """Within the gate on the norm, but all in one direction."""
    vector = measure(changed(product, product.truth * (1 + 6e-6)), DEMAND)
    assert vector.margin < 1
    assert any("uniformly scaled" in text for text in vector.findings)


def test_a_scale_that_rounding_of_one_factor_explains_passes() -> None:
    """Where one position carries the loss, all of a gradient is multiplied by one rounded number, on the CPU too: the same scale
    is rounding where the CPU's own error is as large, and a fault where it is not.
    """
    random = np.random.default_rng(11)
    truth = random.standard_normal((16, 48))
    noise = random.standard_normal(truth.shape)
    for own, fails in ((2.5e-7, False), (2.5e-8, True)):
        device = truth * (1 - 5e-7) + 2e-8 * noise
        subject = Subject("step1/gradient/w", "gradient", "float32", device, truth, own * noise, reduction=48)
        vector = measure(subject, DEMAND)
        assert vector.margin < 1
        assert any("uniformly scaled" in text for text in vector.findings) == fails


def test_one_sided_error_fails_by_its_own_gate() -> None:
    truth = np.random.default_rng(5).standard_normal((64, 64)) + 0.0
    u = formats.roundoff("float32")
    device = (truth + 2.0 * u).astype(np.float64)
    subject = Subject("step1/output/x", "output", "float32", device, truth, None, reduction=1)
    vector = measure(subject, DEMAND)
    assert vector.margin < 1
    assert any("one-sided" in text for text in vector.findings)


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bfloat16"), (torch.float16, "tf32 or float16")])
def test_narrower_arithmetic_is_named(product: Subject, dtype: torch.dtype, name: str) -> None:
    """Inputs rounded to a narrower format, as a device does that multiplies in it."""
    random = np.random.default_rng(7)
    a = torch.from_numpy(random.standard_normal((ROWS, TERMS)).astype(np.float32))
    b = torch.from_numpy(random.standard_normal((TERMS, COLUMNS)).astype(np.float32))
    narrow = (a.to(dtype).double() @ b.to(dtype).double()).numpy()
    # The yardstick is what rounding the inputs costs in float32, since that is all that this device does wrong.
    random = np.random.default_rng(8)
    spread = [random.uniform(-1, 1, x.shape) * formats.roundoff("float32") * x.double().numpy() for x in (a, b)]
    own = (a.double().numpy() + spread[0]) @ (b.double().numpy() + spread[1]) - product.truth
    vector = measure(dataclasses.replace(changed(product, narrow), reference_error=own), DEMAND)
    assert any(name in text for text in vector.findings), vector.findings


def test_wrong_sign_has_no_format(product: Subject) -> None:
    vector = measure(changed(product, -product.truth), DEMAND)
    assert any("scaled by -1.0" in text for text in vector.findings)


def test_non_finite_values_must_agree(product: Subject) -> None:
    device, truth = product.device.copy(), product.truth.copy()
    device[0, 0] = np.nan
    assert any("finite on one side" in text for text in measure(changed(product, device), DEMAND).findings)
    truth[0, 0] = np.inf
    assert measure(dataclasses.replace(changed(product, device), truth=truth), DEMAND).findings == ()


def test_noise_around_a_zero_gradient_is_judged_on_the_scale_of_its_peers() -> None:
    """A key bias has gradient zero on paper. Noise far below the other gradients passes, a value like theirs fails."""
    random = np.random.default_rng(2)
    noise = random.standard_normal(64) * 1e-11
    truth = random.standard_normal(64) * 1e-20
    subject = Subject("step1/gradient/k", "gradient", "float32", noise, truth, None, reduction=128, peers_rms=1e-3)
    assert measure(subject, DEMAND).findings == ()
    assert measure(dataclasses.replace(subject, device=noise * 1e6), DEMAND).findings != ()


class TestWeights:
    """A weight after a step, given its value before and the device's own gradient."""

    def subject(self, dtype: str, size: float, change: float = 1.0, decay: float = 1e-5) -> Subject:
        random = np.random.default_rng(9)
        start = formats.rounded(random.standard_normal((64, 64)) * size, dtype)
        step = 1e-3 * np.sign(random.standard_normal((64, 64)))
        truth = start * (1 - 1e-5) - step
        device = formats.rounded(start * (1 - decay) - change * step, dtype)
        return Subject("step1/weight/w", "weight", dtype, device, truth, None, reduction=64, start=start)

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    @pytest.mark.parametrize("size", [0.0, 0.02, 1.0])
    def test_right_update_passes(self, dtype: str, size: float) -> None:
        vector = measure(self.subject(dtype, size), DEMAND)
        assert vector.findings == ()

    def test_forgotten_decay_fails_in_float32(self) -> None:
        assert measure(self.subject("float32", 0.1, decay=0.0), DEMAND).findings != ()

    def test_forgotten_decay_is_below_what_bfloat16_can_store(self) -> None:
        """Not a weakness of the gate: the nearest bfloat16 numbers are the same with and without it."""
        assert measure(self.subject("bfloat16", 0.1, decay=0.0), DEMAND).margin < 1

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    @pytest.mark.parametrize("share", [0.0, 0.5])
    def test_missing_update_fails_even_where_rounding_hides_it_in_the_norm(self, dtype: str, share: float) -> None:
        vector = measure(self.subject(dtype, 0.125, change=share), DEMAND)
        assert any("of the update" in text for text in vector.findings)
        assert vector.update_made is not None
        assert vector.update_made == pytest.approx(share, abs=0.25)


def test_integers_must_be_equal() -> None:
    truth = np.arange(6)
    counter = Subject("step1/buffer/n", "buffer", "int64", truth.copy(), truth, None, reduction=1)
    assert measure(counter, DEMAND).findings == ()
    wrong = truth.copy()
    wrong[4] = 0
    assert "first at [4]" in measure(dataclasses.replace(counter, device=wrong), DEMAND).findings[0]


def test_decisions_between_near_ties_may_flip_in_half_precision_only() -> None:
    truth = np.arange(100)
    device = truth.copy()
    device[7] += 1
    output = Subject("step1/output/best", "output", "int64", device, truth, None, reduction=1, decided_in="bfloat16")
    assert measure(output, DEMAND).findings == ()
    assert measure(dataclasses.replace(output, decided_in="float32"), DEMAND).findings != ()


@settings(max_examples=300, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e30, max_value=1e30))
def test_rounding_is_that_of_the_format(value: float) -> None:
    single = float(np.float32(value))
    for name, dtype in (("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        expected = float(torch.tensor(single, dtype=torch.float32).to(dtype))
        assert formats.rounded(np.array([single]), name)[0] == expected


class TestElementwiseCriterion:
    """The owner's own criterion: reported always, decisive where it says so, by class of tensor where that is declared."""

    def demand(self, **criteria: dict[str, object]) -> Numerics:
        return Numerics.model_validate({"criteria": {name.replace("_", "/"): c for name, c in criteria.items()}})

    def test_it_is_reported_and_decides_nothing_by_default(self, product: Subject) -> None:
        vector = measure(product, self.demand(float32={"absolute": 1e-9, "relative": 0}))
        assert vector.outside_criterion is not None
        assert vector.outside_criterion > 0.9
        assert vector.findings == ()

    def test_it_fails_where_it_decides_and_says_why(self, product: Subject) -> None:
        strict = {"absolute": 1e-9, "relative": 0, "decides": True, "reason": "invoices are added up"}
        vector = measure(product, self.demand(float32=strict))
        assert any("outside the declared 1e-09 + 0 * |truth|" in text for text in vector.findings)
        assert any("invoices are added up" in text for text in vector.findings)
        assert measure(product, self.demand(float32=strict | {"allowed_share": 1.0})).findings == ()

    def test_a_class_of_tensor_goes_before_its_precision(self, product: Subject) -> None:
        strict = {"absolute": 1e-9, "relative": 0, "decides": True}
        loose = {"absolute": 1.0, "relative": 0}
        assert measure(product, self.demand(float32=loose, float32_output=strict)).findings != ()
        assert measure(product, self.demand(float32=strict, float32_output=loose)).findings == ()
        assert measure(product, self.demand(float32=loose, float32_gradient=strict)).findings == ()


@pytest.mark.parametrize(("decayed", "right"), [(True, True), (False, False)])
def test_a_decay_is_as_exact_as_the_number_that_stands_for_it(decayed: bool, right: bool) -> None:
    """Where one row of a table learns and the others only decay, the rounding of 1 - rate * decay shows in every element."""
    weights = np.random.default_rng(3).standard_normal((1000, 64)).astype(np.float32)
    factor = 1 - 1e-3 * 1e-2
    step = np.zeros((1000, 64))
    step[7] = -1e-3
    device = weights * np.float32(factor if decayed else 1.0) + step.astype(np.float32)
    subject = Subject(
        name="step1/weight/table",
        role="weight",
        dtype="float32",
        device=device,
        truth=weights.astype(np.float64) * factor + step,
        reference_error=None,
        reduction=64,
        start=weights.astype(np.float64),
    )
    assert (not measure(subject, Numerics()).findings) == right
