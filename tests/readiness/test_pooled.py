"""Step times of several processes become one, with an interval, a ratio to other sides, and the share of setting up."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from shakedown.readiness import requirements, trial
from shakedown.readiness.evidence import Evidence, SelfTest
from shakedown.readiness.judge import amortise, budgets, pooled, ratios, resample, timing, verdict
from shakedown.readiness.judge.measured import PooledTiming
from shakedown.readiness.judge.results import Cell, Outcome
from shakedown.readiness.requirements import Requirements, Resampling

from .support import TINY, InProcess

DEMAND = Requirements()
CASE = "2x8"
WELL = SelfTest(passed=True, ratio=1.0, read_back_share=0.0, calls=4, tries=5)


@dataclass(frozen=True)
class Real:
    """A trial of the tiny workload, in which five processes (here: five jobs in one) a side took turns."""

    root: Path
    cells: list[Cell]
    found: verdict.Found
    demand: Requirements

    def pooled(self) -> list[PooledTiming]:
        matched = dict.fromkeys(self.found.cases, True)
        return pooled.pooled(self.cells, self.found.cases, self.found.self_tests, matched, self.demand)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Real:
    folder = tmp_path_factory.mktemp("pooled")
    file = folder / "timing.toml"
    off = ("padding", "noncontiguous", "hard_inputs", "neighbours", "restart")
    file.write_text(
        "[numerics]\nsteps = 1\n[timing]\nsteps = 8\nprocesses = 5\nscaling_tolerance = 1e9\nrefuse_foreign_load = 1e9\n"
        "refuse_spread = 1e9\nlasting_change = 1e9\n[run]\nthreads = 1\n[parity]\nsteps = 0\n[variations]\nlogging_every = 0\n"
        + "".join(f"{name} = false\n" for name in off)
    )
    request = trial.Request(
        str(TINY), folder / "out", "neuron", modes=("eager",), dtypes=("float32",), cases=(CASE,), requirements=file
    )
    cells = trial.run(request, executor=InProcess()).cells
    root = folder / "out"
    return Real(root, cells, verdict.Found.read(root, cells), requirements.unlock(root / "requirements.json"))


@dataclass
class Bench:
    """Processes with made-up step times around real evidence."""

    base: Evidence
    cells: list[Cell] = field(default_factory=list)
    cases: dict[tuple[str, str], Evidence] = field(default_factory=dict)
    matched: dict[tuple[str, str], bool] = field(default_factory=dict)
    tests: dict[str, SelfTest] = field(default_factory=dict)

    def process(
        self,
        mode: str,
        number: int,
        started: float,
        level: float,
        *,
        cache: str = "none",
        steps: int = 30,
        status: str = "finished",
        **series: object,
    ) -> str:
        """One process whose steps take about `level` seconds; one that did not finish leaves no evidence."""
        outcome = Outcome(status=status, reason="" if status == "finished" else "as told")  # type: ignore[arg-type]
        cell = Cell(
            id=f"{mode}-float32-{CASE}-{number}",
            kind="single",
            mode=mode,  # type: ignore[arg-type]
            dtype="float32",
            cache=cache,  # type: ignore[arg-type]
            target="cpu",
            cases=[CASE],
            outcome=outcome,
        )
        self.cells.append(cell)
        if status == "finished":
            noise = np.random.default_rng(number + 100 * len(mode)).standard_normal(steps)
            later = self.base.timings.later.model_copy(
                update={
                    "seconds": list(level * (1 + 0.02 * noise)),
                    "dispatched": [level / 10] * steps,
                    "compiles": [0] * steps,
                    "compiles_during": 0,
                    "started": started,
                    "foreign_cores": 0.0,
                    "attempts": 1,
                }
                | series
            )
            timings = self.base.timings.model_copy(update={"later": later, "first_step": {"forward": 20 * level}})
            own = {"cell": cell.id, "mode": mode, "timings": timings}
            self.cases[cell.id, CASE] = self.base.model_copy(update=own)
            self.matched[cell.id, CASE] = True
            self.tests[cell.id] = WELL
        return cell.id

    def sides(self, one: list[float], other: list[float], apart: bool = False) -> None:
        """The CPU and eager mode taking turns, or one after the other."""
        for i, (a, b) in enumerate(zip(one, other)):
            self.process("reference", i, i * 10.0, a)
            self.process("eager", i, i * 10.0 + (1000.0 if apart else 5.0), b)

    def result(self, mode: str = "eager", demand: Requirements = DEMAND) -> PooledTiming:
        found = pooled.pooled(self.cells, self.cases, self.tests, self.matched, demand)
        return next(one for one in found if one.mode == mode)


@pytest.fixture
def bench(real: Real) -> Bench:
    return Bench(real.found.cases["reference-float32", CASE])


def test_a_real_trial_is_pooled_and_labelled(real: Real) -> None:
    cpu, device = real.pooled()
    assert (cpu.mode, device.mode, device.case) == ("reference", "eager", CASE)
    assert (cpu.kind, device.kind) == ("measured", "rehearsal")
    for one in (cpu, device):
        assert (one.launched, one.finished, one.used, one.n) == (5, 5, 5, 40)
        assert one.interval is not None
        assert one.median is not None
        assert one.interval.low <= one.median <= one.interval.high
        assert one.interval.coverage == 0.9375
        assert list(one.percentiles) == ["p50"], "40 steps carry no 90th percentile"
        assert one.dispatch is not None
        assert set(one.phases) == {"data", "forward", "backward", "optimizer"}
        assert "making the batch" in one.boundary.partition("outside: ")[2]
        assert one.throughput is not None
        assert one.throughput.positions == pytest.approx(16 / one.median)
    assert "torch.neuron.synchronize()" in device.boundary
    assert [start.cache for start in device.starts] == ["cold", "warm"]
    assert [len(start.setups) for start in device.starts] == [2, 3]
    assert not any(start.proved for start in device.starts), "one process for all has no cache of its own"
    assert [curve.cache for curve in device.curves] == ["cold", "warm"]
    (over_cpu,) = device.ratios
    assert over_cpu.over == "reference"
    assert over_cpu.paired, "the trial makes the sides take turns"
    assert over_cpu.interval is not None
    assert timing.findings(real.root, real.cells, real.demand) == []


def test_a_trial_verifies_its_pooled_times(real: Real) -> None:
    assert real.pooled() == real.pooled(), "a judgement draws the same samples each time"


def test_a_difference_is_claimed_when_sides_took_turns_and_the_interval_excludes_one(bench: Bench) -> None:
    slow_minutes = [1.0, 1.3, 0.9, 1.1, 1.6]  # the whole machine, from round to round
    bench.sides([0.010 * m for m in slow_minutes], [0.008 * m for m in slow_minutes])
    one = bench.result()
    (ratio,) = one.ratios
    assert ratio.claim == "faster"
    assert ratio.paired
    assert ratio.value == pytest.approx(0.8, abs=0.02)
    assert ratio.interval is not None
    assert ratio.interval.high - ratio.interval.low < 0.1, "what slowed both sides is not in the interval"
    assert one.interval is not None
    assert one.interval.high / one.interval.low > 1.3, "but it is in the step time's own"
    assert one.between is not None
    assert one.between > 0.5


@pytest.mark.parametrize(
    ("one", "other", "apart", "why"),
    [
        ([0.010] * 5, [0.0101, 0.0099, 0.0102, 0.0098, 0.0100], False, "the interval includes 1"),
        ([0.010] * 5, [0.008] * 5, True, "the sides did not take turns"),
        ([0.010] * 4, [0.008] * 4, False, "4 processes a side, and 5 are needed"),
        ([0.010], [0.008], False, "1 process a side"),
    ],
)
def test_otherwise_nothing_is_claimed(
    bench: Bench, one: list[float], other: list[float], apart: bool, why: str
) -> None:
    bench.sides(one, other, apart)
    (ratio,) = bench.result().ratios
    assert ratio.claim == "none"
    assert ratio.why.startswith("no claim: ")
    assert why in ratio.why
    assert (ratio.interval is None) == (len(one) == 1)


def test_turns() -> None:
    assert ratios.took_turns([0, 2, 4, 6, 8], [1, 3, 5, 7, 9]) == ""
    assert ratios.took_turns([0, 3, 4, 7, 8], [1, 2, 5, 6, 9]) == ""
    assert "1 changes" in ratios.took_turns([0, 1, 2], [3, 4, 5])
    assert ratios.took_turns([0, 1, 2, 3, 4, 20, 21, 22], [10, 11, 30, 31, 40]) != ""


def test_crashes_and_dropped_series_are_counted(bench: Bench) -> None:
    for number in range(4):
        bench.process("eager", number, number, 0.010, attempts=1 + (number == 2) * 2)
    bench.process("eager", 4, 4.0, 0.010, status="timeout")
    one = bench.result()
    assert (one.launched, one.finished, one.used, one.dropped_attempts) == (5, 4, 4, 2)
    assert list(one.ended.values()) == ["timeout: as told"]
    assert "4 of 5 processes finished" in one.warnings
    assert "2 series that strangers disturbed were dropped" in one.warnings
    assert one.median == pytest.approx(0.010, rel=0.02)


def test_processes_are_left_out_for_a_reason_and_never_for_their_speed(bench: Bench) -> None:
    for number in range(4):
        bench.process("eager", number, number, 0.010)
    bench.process("eager", 4, 4.0, 0.050)  # slow, and it counts
    stranger = bench.process("eager", 5, 5.0, 0.010, foreign_cores=1.5)
    clock = bench.process("eager", 6, 6.0, 0.010)
    bench.tests[clock] = WELL.model_copy(update={"passed": False, "reason": "the wait does not wait"})
    drifts = bench.process("eager", 7, 7.0, 0.010, seconds=list(np.linspace(0.010, 0.015, 30)))
    one = bench.result()
    assert one.used == 5
    assert set(one.left_out) == {stranger, clock, drifts}
    assert all(reason.startswith("untested(timing): ") for reason in one.left_out.values())
    assert one.between == pytest.approx(4, rel=0.1)
    assert one.events[0].event.kind == "drift"


def test_times_are_withheld(bench: Bench) -> None:
    wrong = bench.process("eager", 0, 0.0, 0.010)
    bench.process("eager", 1, 1.0, 0.010)
    bench.matched[wrong, CASE] = False
    assert bench.result().withheld == f"withheld: the numbers of {wrong} are not explained yet"
    bench.matched[wrong, CASE] = True
    assert bench.result().withheld == ""
    loose = list(np.tile([0.010, 0.016], 15))
    for number in range(2, 7):
        bench.process("eager", number, float(number), 0.010, seconds=loose)
    one = bench.result()
    assert one.withheld.startswith("untested(timing): quartiles 46%")
    assert one.median is None
    assert one.curves == one.ratios == []


def test_percentiles_need_enough_steps(bench: Bench) -> None:
    for number in range(5):
        bench.process("eager", number, float(number), 0.010)
    assert list(bench.result().percentiles) == ["p50", "p90"]
    for number in range(5, 23):
        bench.process("eager", number, float(number), 0.010)
    assert list(bench.result().percentiles) == ["p50", "p90", "p99"]


def test_evidence_of_another_host_is_not_pooled(bench: Bench) -> None:
    bench.process("eager", 0, 0.0, 0.010)
    other = bench.process("eager", 1, 1.0, 0.030)
    found = bench.cases[other, CASE]
    fixed = found.identity["fixed"] | {"host": "elsewhere"}
    bench.cases[other, CASE] = found.model_copy(update={"identity": found.identity | {"fixed": fixed}})
    bench.matched[other, CASE] = False  # judgement refuses to compare it
    one = bench.result()
    assert (one.used, one.withheld) == (1, "")
    assert "host" in one.left_out[other]


def test_an_interval_covers_the_median_as_often_as_it_says() -> None:
    """Heavy-tailed steps in processes that differ: 300 trials, of which 5 % would miss, and 9 % are allowed to by chance."""
    random, demand = np.random.default_rng(5), Resampling(draws=300)
    hits = 0
    for _ in range(300):
        processes = [
            np.exp(0.08 * random.standard_normal())
            * (1 + 0.03 * random.standard_normal(30) + (random.random(30) < 0.03) * 20)
            for _ in range(5)
        ]
        found = resample.interval(resample.medians(processes, demand.draws, resample.generator()), 5, demand)
        assert found is not None
        hits += found.low <= 1.001 and found.high >= 0.999
    assert resample.coverage(5, demand) == 0.9375
    assert hits / 300 >= 0.91


def test_steps_of_one_process_give_no_interval() -> None:
    demand = Resampling()
    assert resample.interval(np.asarray([1.0, 2.0]), 1, demand) is None
    assert [resample.coverage(n, demand) for n in (2, 3, 8)] == [0.5, 0.75, 0.95]


def test_amortised_cost_goes_from_setup_to_step(bench: Bench) -> None:
    for i in range(5):
        bench.process("reference", i, i * 10.0, 0.020)
        bench.process("eager", i, i * 10.0 + 5, 0.010, cache="cold" if i == 0 else "warm")
    cold, warm = bench.result(demand=DEMAND).curves
    assert [point.steps for point in warm.points] == [1, 10, 100, 1_000, 10_000, 100_000]
    assert warm.points[0].value == pytest.approx(warm.setup)
    assert warm.setup == pytest.approx(sum(bench.base.startup.model_dump().values()) + 20 * 0.010)
    assert warm.points[-1].value == pytest.approx(warm.step, rel=0.01)
    values = [point.value for point in warm.points]
    assert values == sorted(values, reverse=True)
    assert warm.points[1].value == pytest.approx((warm.setup + 9 * warm.step) / 10)
    assert all(p.low is not None and p.low <= p.value <= (p.high or 0) for p in warm.points)
    assert (cold.setup_processes, cold.points[0].low) == (1, None), "one cold start has no interval"
    assert cold.points[-1].low is not None, "over 100,000 steps it does not matter"
    assert "set-up was seen once" in cold.note
    assert warm.over_cpu[-1].value == pytest.approx(0.5, rel=0.02)
    assert amortise.counts(2_500) == [1, 10, 100, 1_000, 2_500, 10_000, 100_000]


def test_budgets_are_judged_by_intervals_and_never_by_a_rehearsal(bench: Bench, real: Real) -> None:
    for number, level in enumerate([0.010, 0.011, 0.012, 0.013, 0.014]):
        bench.process("eager", number, float(number), level)

    def found(step: float) -> list[tuple[str, bool]]:
        limits = DEMAND.budgets.model_copy(update={"step": step})
        demand = DEMAND.model_copy(update={"budgets": limits})
        times = pooled.pooled(bench.cells, bench.cases, bench.tests, bench.matched, demand)
        return [(one.word, one.fails) for one in budgets.findings(times, demand)]

    assert found(0.020) == []
    assert found(0.012) == [("untested(budget)", False)]
    assert found(0.008) == [("over-budget(step)", True)]
    limits = DEMAND.budgets.model_copy(update={"step": 1e-9, "cold_start": 1e-9, "warm_start": 1e-9})
    made = budgets.findings(real.pooled(), DEMAND.model_copy(update={"budgets": limits}))
    assert len(made) == 3
    assert {(one.word, one.fails) for one in made} == {("untested(budget)", False)}
    assert all("rehearsal" in one.text for one in made)
