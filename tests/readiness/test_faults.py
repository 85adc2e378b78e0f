"""The trial tries itself: a device made wrong on purpose fails and is named, one right in another way passes."""

from __future__ import annotations

import pytest

from shakedown.readiness.judge.disposition import CHANGE
from shakedown.readiness.record import Record

from . import faults, support

pytestmark = pytest.mark.timeout(900)  # a whole trial in one fixture, on a machine that may be busy
DTYPES = ("float32", "bfloat16")
# What half precision cannot show: these faults are smaller than its own rounding, or are its own arithmetic.
BELOW_BFLOAT16 = {"scaled", "no_decay", "narrow"}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return support.run_faults(tmp_path_factory.mktemp("faults") / "run", faults.WRONG | faults.RIGHT, DTYPES)


def verdict(record: Record, cell: str) -> tuple[set[str], str]:
    result = next(r for r in record.judgement.cells if r.cell == cell)
    return {case.verdict for case in result.cases}, " | ".join(f for case in result.cases for f in case.findings)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["reference", *faults.RIGHT])
def test_right_devices_pass(record: Record, name: str, dtype: str) -> None:
    verdicts, findings = verdict(record, f"{name}-{dtype}")
    assert verdicts == {"match"}, findings


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("zeroed_row", "step1/output/logits"),
        ("scaled", "scaled by 1.002"),
        ("zeroed_norm_gradient", "norm.weight: relative L2 error 1.00e+00"),
        ("no_decay", "weight/tokens.weight"),
        ("half_rate", "made 50.0% of the update"),
        ("lost_state", "step3/weight"),
        ("no_step", "made 0.0% of the update"),
        ("narrow", "significand"),
        ("not_a_number", "finite on one side only"),
        ("moved_wrongly", "weights read back after the move"),
        ("uncaused_attention", "gradient/qkv.weight"),
    ],
)
def test_wrong_devices_fail_in_float32_and_are_named(record: Record, name: str, words: str) -> None:
    verdicts, findings = verdict(record, f"{name}-float32")
    assert verdicts == {"mismatch"}
    assert words in findings


@pytest.mark.parametrize("name", sorted(faults.WRONG.keys() - BELOW_BFLOAT16))
def test_wrong_devices_fail_in_bfloat16(record: Record, name: str) -> None:
    assert verdict(record, f"{name}-bfloat16")[0] == {"mismatch"}


def test_optimizer_faults_are_not_blamed_on_gradients(record: Record) -> None:
    for name in ("no_decay", "half_rate", "lost_state", "no_step"):
        _, findings = verdict(record, f"{name}-float32")
        assert "/gradient/" not in findings
        assert "/output/" not in findings


def test_speed_of_a_wrong_device_is_withheld(record: Record) -> None:
    for result in record.judgement.cells:
        for case in result.cases:
            assert case.timing is not None
            explained = "not explained" not in case.timing.later.withheld
            assert explained == (case.verdict == "match")


def test_one_failed_cell_fails_the_trial(record: Record) -> None:
    assert record.judgement.decision.disposition == CHANGE
    assert record.exit_code == 1
