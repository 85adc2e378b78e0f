"""After how many steps a slower start is paid for: against made-up truth, and when nothing may be said."""

from __future__ import annotations

import numpy as np
import pytest

from shakedown.readiness import trial
from shakedown.readiness.judge import break_even, pooled, verdict
from shakedown.readiness.judge.break_even import BreakEven
from shakedown.readiness.judge.measured import Start
from shakedown.readiness.judge.processes import Group, Process
from shakedown.readiness.judge.results import Cell, Outcome
from shakedown.readiness.judge.series import Steady
from shakedown.readiness.requirements import Requirements, Resampling

from .support import TINY, InProcess, quick
from .test_pooled import Bench

DEMAND = Requirements()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory):
    """Real evidence of one process, which the made-up ones are changed copies of."""
    folder = tmp_path_factory.mktemp("even")
    request = trial.Request(
        str(TINY),
        folder / "out",
        "cpu",
        modes=("eager",),
        dtypes=("float32",),
        cases=("2x8",),
        requirements=quick(folder),
    )
    cells = trial.run(request, executor=InProcess()).cells
    return verdict.Found.read(folder / "out", cells).cases["reference-float32", "2x8"]


@pytest.fixture
def bench(base) -> Bench:
    return Bench(base)


def of(bench: Bench, demand: Requirements = DEMAND) -> list[BreakEven]:
    groups = pooled.groups(bench.cells, bench.cases, bench.tests, bench.matched, demand)
    return break_even.judge(groups, pooled.of(groups, bench.cases, demand), demand)


def startup(bench: Bench, cell: str, seconds: float, step: float) -> None:
    """Set what `cell` takes to start, with a first step like the others."""
    found = bench.cases[cell, "2x8"]
    begun = found.startup.model_copy(update=dict.fromkeys(type(found.startup).model_fields, 0.0) | {"launch": seconds})
    timings = found.timings.model_copy(update={"first_step": {"forward": step}})
    bench.cases[cell, "2x8"] = found.model_copy(update={"startup": begun, "timings": timings})


def sides(
    bench: Bench,
    start: float,
    step: float,
    processes: int = 5,
    mode: str = "eager",
    cpu: tuple[float, float] = (2.0, 0.020),
) -> None:
    """The CPU and `mode` taking turns, `mode` without a cache."""
    for i in range(processes):
        for name, (begin, one), when in (("reference", cpu, 0.0), (mode, (start, step), 5.0)):
            cell = bench.process(name, i, i * 10.0 + when, one, seconds=list(np.full(30, one)))
            startup(bench, cell, begin * (1 + 0.001 * (i - 2)), one)


def only(found: list[BreakEven]) -> BreakEven:
    (one,) = found
    return one


def test_five_seconds_more_and_ten_milliseconds_less_are_even_after_500_steps(bench: Bench) -> None:
    sides(bench, 7.0, 0.010)
    one = only(of(bench))
    assert (one.mode, one.over, one.answer, one.why) == ("eager", "reference", "after", "")
    assert one.extra is not None
    assert one.saved is not None
    assert one.steps is not None
    assert one.extra.value == pytest.approx(5.0)
    assert one.saved.value == pytest.approx(0.010)
    assert one.steps.value == pytest.approx(500)
    assert one.steps.low is not None
    assert one.steps.high is not None
    assert one.steps.low < 500 < one.steps.high
    assert one.steps.coverage == 0.9375
    assert (one.planned_steps, one.within_plan) == (10_000, "yes")
    # The curves cross there: seconds per step are equal over as many steps.
    assert [point.steps for point in one.points] == [point.steps for point in one.over_points]
    ahead = {p.steps: p.value < q.value for p, q in zip(one.points, one.over_points)}
    assert {count: ahead[count] for count in (10, 100, 1_000, 100_000)} == {
        10: False,
        100: False,
        1_000: True,
        100_000: True,
    }
    demand = DEMAND.model_copy(update={"workload": DEMAND.workload.model_copy(update={"training_steps": 500})})
    one = only(of(bench, demand))
    assert one.within_plan == "open"
    at = {p.steps: p.value for p in one.points}[500]
    assert at == pytest.approx({p.steps: p.value for p in one.over_points}[500])


def test_no_break_even_where_steps_are_not_faster(bench: Bench) -> None:
    sides(bench, 7.0, 0.030)
    one = only(of(bench))
    assert (one.answer, one.why, one.steps, one.within_plan) == ("none", "steps are slower", None, "no")


def test_no_break_even_where_the_saving_may_be_zero(base) -> None:
    bench = Bench(base)
    for i, (cpu, device) in enumerate(zip((0.020, 0.022, 0.018, 0.021, 0.019), (0.019, 0.021, 0.0186, 0.020, 0.0195))):
        startup(bench, bench.process("reference", i, i * 10.0, cpu), 2.0, cpu)
        startup(bench, bench.process("eager", i, i * 10.0 + 5, device), 7.0, device)
    one = only(of(bench))
    assert (one.answer, one.why) == ("none", "the interval of what a step saves includes zero")
    assert one.saved is not None
    assert one.saved.low is not None
    assert one.saved.low < 0 < one.saved.value


def test_at_once_where_starting_costs_no_more(bench: Bench) -> None:
    sides(bench, 1.0, 0.010)
    one = only(of(bench))
    assert (one.answer, one.steps, one.within_plan) == ("at once", None, "yes")


def test_withheld_with_the_reason(bench: Bench, base) -> None:
    sides(bench, 7.0, 0.010, processes=4)
    assert only(of(bench)).why == "4 and 4 processes have steps that count, and 5 a side are needed"
    assert only(of(bench)).saved is not None
    single = Bench(base)
    sides(single, 7.0, 0.010, processes=1)
    assert only(of(single)).answer == "withheld"
    apart = Bench(base)
    for i in range(5):
        startup(apart, apart.process("reference", i, i, 0.020), 2.0, 0.020)
        startup(apart, apart.process("eager", i, 100.0 + i, 0.010), 7.0, 0.010)
    assert only(of(apart)).why.startswith("the sides did not take turns")
    full = Bench(base)
    sides(full, 7.0, 0.010)
    wrong = next(cell.id for cell in full.cells if cell.mode == "eager")
    full.matched[wrong, "2x8"] = False
    one = only(of(full))
    assert (one.answer, one.why) == ("withheld", f"eager: withheld: the numbers of {wrong} are not explained yet")
    assert (one.extra, one.saved, one.steps, one.points) == (None, None, None, [])


def test_cold_and_warm_are_apart_and_a_start_seen_once_has_no_interval(base, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(base)
    monkeypatch.setattr(pooled.paths, "cache_proof", lambda own: (True, "as made up"))
    for i in range(5):
        startup(bench, bench.process("reference", i, i * 10.0, 0.040), 2.0, 0.040)
        startup(bench, bench.process("eager", i, i * 10.0 + 3, 0.020, cache="cold" if i == 0 else "warm"), 3.0, 0.020)
        cache = "cold" if i < 2 else "warm"
        start = (7.0, 7.2, 4.0, 4.0, 4.0)[i]
        startup(bench, bench.process("compiled", i, i * 10.0 + 6, 0.010, cache=cache), start, 0.010)
    found = {(one.mode, one.over, one.cache): one for one in of(bench)}
    assert set(found) == {
        ("eager", "reference", "cold"), ("eager", "reference", "warm"), ("compiled", "reference", "cold"),
        ("compiled", "reference", "warm"), ("compiled", "eager", "cold"), ("compiled", "eager", "warm"),
    }  # fmt: skip
    warm, cold = found["compiled", "eager", "warm"], found["compiled", "reference", "cold"]
    assert warm.over_cache == "warm"
    assert cold.over_cache == "none"
    assert warm.steps is not None
    assert warm.steps.value == pytest.approx(100, rel=0.05)
    assert warm.steps.coverage == 0.75, "three warm starts carry no more"
    assert cold.steps is not None
    assert cold.steps.value == pytest.approx(5.1 / 0.030, rel=0.05)
    assert cold.steps.coverage == 0.5
    once = found["compiled", "eager", "cold"]
    assert (once.answer, once.steps) == ("withheld", None)
    assert "seen only once" in once.why
    assert once.extra is not None
    assert once.extra.low is None


def test_a_start_of_the_same_kind_is_needed_on_the_other_side(base, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(base)
    monkeypatch.setattr(pooled.paths, "cache_proof", lambda own: (True, "as made up"))
    for i in range(5):
        startup(bench, bench.process("eager", i, i * 10.0, 0.020, cache="cold"), 3.0, 0.020)
        startup(bench, bench.process("compiled", i, i * 10.0 + 5, 0.010, cache="warm"), 4.0, 0.010)
    one = only(of(bench))
    assert (one.answer, one.over_cache, one.over_points) == ("withheld", None, [])
    assert one.why == "eager: no process began with this case and a warm cache"


def test_a_cache_that_was_not_proved_withholds(bench: Bench) -> None:
    for i in range(5):
        startup(bench, bench.process("reference", i, i * 10.0, 0.020), 2.0, 0.020)
        startup(bench, bench.process("eager", i, i * 10.0 + 5, 0.010, cache="cold"), 7.0, 0.010)
    assert only(of(bench)).why.startswith("eager: the cache was not proved to be cold")


def made(base, mode: str, steps: np.ndarray, after: float) -> Group:
    """Processes of one side, a row of `steps` each, that began `after` seconds into each round."""
    cells, seen = [], []
    for number, seconds in enumerate(steps):
        cell = Cell(
            id=f"{mode}-{number}", kind="single", mode=mode, dtype="float32", cache="none", target="cpu", cases=["2x8"],
            outcome=Outcome(status="finished"),
        )  # fmt: skip
        later = base.timings.later.model_copy(update={"started": number * 10.0 + after})
        one = base.model_copy(update={"timings": base.timings.model_copy(update={"later": later})})
        cells.append(cell)
        seen.append(Process(cell, one, Steady(steps=list(range(1, len(seconds) + 1)), events=[], reason=""), seconds))
    return Group((mode, "float32", "2x8"), cells, seen, seen, {})


def starts(seconds: np.ndarray) -> Start:
    return Start(cache="none", start_up=list(seconds), first_step=[0.0] * len(seconds), proved=True, proof="")


@pytest.mark.parametrize(("begun", "claimed"), [(5, 0.9375), (2, 0.5)])
def test_the_interval_covers_the_truth_as_often_as_it_says(base, begun: int, claimed: float) -> None:
    """Made-up trials with heavy tails, processes that differ and rounds that differ; the truth is 500 steps."""
    random = np.random.default_rng(11)
    demand = DEMAND.model_copy(update={"resampling": Resampling(draws=200)})
    hits = ends = trials = 0
    for _ in range(150):
        level = np.exp(0.02 * random.standard_normal((2, 5))) * np.exp(0.05 * random.standard_normal(5))
        noise = 1 + 0.02 * random.standard_normal((2, 5, 30)) + 20 * (random.random((2, 5, 30)) < 0.03)
        theirs, mine = np.array([0.020, 0.010])[:, None, None] * level[:, :, None] * noise
        slow = np.exp(0.03 * random.standard_normal((2, begun)))
        found = break_even._compared(
            made(base, "compiled", mine, 5.0), starts(7.010 * slow[0]), made(base, "eager", theirs, 0.0),
            starts(2.020 * slow[1]), demand,
        )  # fmt: skip
        steps = found["steps"]
        if steps is None:  # a saving that cannot be told from nothing
            continue
        trials += 1
        assert isinstance(steps, break_even.Estimate)
        assert steps.coverage == claimed
        ends += steps.low is None or steps.high is None
        hits += (steps.low or 0) <= 500 <= (steps.high or np.inf)
    assert trials >= 145
    assert ends == 0
    assert claimed - 0.05 <= hits / trials, f"{hits / trials:.1%} of {trials}"
