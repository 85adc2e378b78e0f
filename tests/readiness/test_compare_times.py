"""Step times of two records: no ratio that must not be made, and no claim that drift could have made."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shakedown.readiness import compare, requirements
from shakedown.readiness import record as records
from shakedown.readiness.compare import steps as steps_of
from shakedown.readiness.compare.results import StepChange
from shakedown.readiness.judge import resample
from shakedown.readiness.judge.results import Cell

from . import comparing
from .comparing import CASE, CPU, EAGER, Edit, compared, edited, judged_again, resealed


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rehearsal of one case in which all is well."""
    return comparing.made(tmp_path_factory.mktemp("base") / "run")


def timed(base: Path, out: Path, cpu: float, eager: float, processes: int = 5) -> Path:
    """A trial whose steps take about so many seconds, in so many processes a side."""

    def change(root: Path) -> list[Cell]:
        known = records.load(root)
        cells = []
        for number in range(processes):
            for cell in known.cells:
                level = cpu if cell.id == CPU else eager
                name = cell.id if not number else f"{cell.mode}-float32-{CASE}-{number}"
                folder = root / "evidence" / name
                if number:
                    shutil.copytree(root / "evidence" / cell.id, folder)
                noise = np.random.default_rng(number + 10 * len(cell.mode)).standard_normal(30)
                later = {
                    "seconds": list(level * (1 + 0.02 * noise)),
                    "compiles_during": 0,
                    "foreign_cores": 0.0,
                    "attempts": 1,
                    "started": 1000.0 * number,
                    "dispatched": None,
                    "compiles": [0] * 30,
                }

                def edit(raw: dict[str, Any], name: str = name, later: dict[str, Any] = later) -> None:
                    raw["cell"] = name
                    raw["timings"]["later"] = later

                edited(folder / f"{CASE}.json", edit)
                edited(folder / "self-test.json", lambda raw: raw.update(passed=True, reason=""))
                cells.append(cell.model_copy(update={"id": name, "kind": "single" if number else "sequence"}))
        return cells

    return judged_again(base, out, change)


@pytest.fixture(scope="module")
def even(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return timed(base, tmp_path_factory.mktemp("even") / "run", cpu=0.010, eager=0.020)


def steps(before: Path, after: Path) -> dict[str, Any]:
    return {one.mode: one for one in compared(before, after).steps}


def test_a_step_that_takes_longer_on_the_same_machine_is_claimed(base: Path, even: Path, tmp_path: Path) -> None:
    slow = timed(base, tmp_path / "slow", cpu=0.010, eager=0.030)
    one = steps(even, slow)["eager"]
    assert one.claim == "slower"
    assert one.ratio == pytest.approx(1.5, rel=0.02)
    assert one.interval.low < 1.5 < one.interval.high
    assert one.saving == pytest.approx(-0.010, rel=0.1)
    assert one.saving_interval.high < 0
    assert (one.kind_before, one.kind_after) == ("rehearsal", "rehearsal")
    back = steps(slow, even)["eager"]
    assert (back.claim, back.processes) == ("faster", 5)
    assert back.ratio == pytest.approx(1 / 1.5, rel=0.02)
    assert compared(even, slow).exit_code == 0  # a time is no verdict
    assert compare.effect(even, slow).steps == compared(even, slow).steps


def test_a_machine_that_became_slower_is_not_taken_for_the_device(base: Path, even: Path, tmp_path: Path) -> None:
    found = steps(even, timed(base, tmp_path / "slow", cpu=0.015, eager=0.030))
    assert found["eager"].claim == "none"
    assert "the CPU's own step changed by +50%" in found["eager"].why
    assert "control" in found["reference"].why


def test_a_small_change_is_no_claim_between_records(base: Path, even: Path, tmp_path: Path) -> None:
    one = steps(even, timed(base, tmp_path / "near", cpu=0.010, eager=0.0216))["eager"]
    assert one.interval.low > 1  # within one trial that would do
    assert one.claim == "none"
    assert "did not take turns" in one.why


def test_few_processes_are_no_claim(base: Path, even: Path, tmp_path: Path) -> None:
    one = steps(even, timed(base, tmp_path / "few", cpu=0.010, eager=0.040, processes=2))["eager"]
    assert (one.claim, one.processes) == ("none", 2)
    assert "2 processes a side, and 5 are needed" in one.why


def test_drift_between_records_makes_no_claims() -> None:
    """Pairs of records of one device on a machine that is 8 % faster or slower on another day: an interval that leaves 1
    would claim something for a third of them.
    """
    random = np.random.default_rng(5)
    demand = requirements.Requirements()

    def record(level: float) -> list[np.ndarray]:
        """Five processes, 5 % apart, of thirty steps with 3 % of stalls."""
        found = []
        for own in level * np.exp(0.05 * random.standard_normal(5)):
            series = own * (1 + 0.03 * np.abs(random.standard_normal(30)))
            series[random.random(30) < 0.03] *= 5
            found.append(series)
        return found

    def change(mode: str, before: list[np.ndarray], after: list[np.ndarray]) -> StepChange:
        source = resample.generator()
        mine, theirs = (resample.medians(side, 200, source) for side in (after, before))
        return StepChange(
            mode=mode,
            dtype="float32",
            case=CASE,
            kind_before="measured",
            kind_after="measured",
            before=resample.middle(before),
            after=resample.middle(after),
            ratio=resample.middle(after) / resample.middle(before),
            interval=resample.interval(mine / theirs, 5, demand.resampling),
            processes=5,
        )

    claims = plain = found = 0
    for _ in range(40):
        days = np.exp(0.08 * random.standard_normal(2))
        control = change("reference", record(days[0]), record(days[1]))
        same = change("eager", record(2 * days[0]), record(2 * days[1]))
        slower = change("eager", record(2.0), record(2.8))
        still = control.model_copy(update={"ratio": 1.0})
        assert same.interval is not None
        claims += steps_of.claimed(same, demand, control)[0] != "none"
        plain += not same.interval.low <= 1 <= same.interval.high
        found += steps_of.claimed(slower, demand, still)[0] == "slower"
    assert claims <= 2
    assert plain >= 12
    assert found >= 38


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda raw: raw["identity"]["fixed"].update(cpu="another"), "host differs (cpu)"),
        (lambda raw: raw.update(label="measurement"), "one record is a rehearsal and the other a measurement"),
        (lambda raw: raw["trial"].update(target="cuda"), "target differs"),
    ],
)
def test_times_that_must_not_be_divided_are_not(even: Path, tmp_path: Path, edit: Edit, words: str) -> None:
    found = compared(even, resealed(even, tmp_path / "other", edit))
    for one in found.steps:
        assert (one.ratio, one.interval, one.saving, one.claim) == (None, None, None, "none")
        assert words in one.why
        assert one.before == one.after is not None  # side by side all the same


def test_step_times_are_read_from_sealed_evidence_only(even: Path, tmp_path: Path) -> None:
    alone = resealed(even, tmp_path / "alone", lambda raw: None, keep=False)
    assert "not beside" in steps(even, alone)["eager"].why
    changed = Path(shutil.copytree(even, tmp_path / "changed"))
    edited(changed / "evidence" / EAGER / f"{CASE}.json", lambda raw: raw["timings"]["later"].update(attempts=2))
    assert "not the file that the record was sealed with" in steps(even, changed)["eager"].why
