"""Which processes a trial consists of, in which order, and how long they are said to take."""

from __future__ import annotations

import itertools

import pytest

from shakedown.readiness import clock, matrix, targets
from shakedown.readiness.judge.results import Outcome
from shakedown.readiness.requirements import CaseDemand, Demanded, Parity, Requirements, Timing, Variations
from shakedown.readiness.workload import Case

OFF = Variations(
    padding=False, noncontiguous=False, logging_every=0, hard_inputs=False, neighbours=False, restart=False
)
NO_PARITY = Parity(steps=0)
MODES = ("eager", "adaptive", "compiled")


def plan(target: str = "neuron", processes: int = 1, variations: Variations = OFF, **options: bool) -> list[str]:
    demand = Requirements(timing=Timing(processes=processes), variations=variations, parity=NO_PARITY)
    varied = dict.fromkeys(matrix.wanted_variations(demand, ("1x8",)), "")
    shapes = matrix.Shapes(("1x8", "2x8", "1x8"), varied)
    return [c.id for c in matrix.plan(targets.get(target), MODES, ("float32",), shapes, demand, **options)]


def test_the_cpu_runs_first_and_cold_before_warm_and_modes_take_turns() -> None:
    assert plan() == [
        "reference-float32",
        *(f"{mode}-float32-{cache}" for cache in ("cold", "warm") for mode in MODES),
    ]


def test_adaptive_eager_meets_a_case_that_it_has_fused() -> None:
    demand = Requirements(timing=Timing(processes=1), variations=OFF)
    shapes = matrix.Shapes(("1x8", "2x8"), {})
    cells = matrix.plan(targets.get("neuron"), MODES, ("float32",), shapes, demand, quick=True)
    cases = {cell.mode: cell.cases for cell in cells if cell.kind == "sequence"}
    assert cases["adaptive"] == cases["reference"] == ["1x8", "2x8", "1x8#2"]
    assert cases["eager"] == cases["compiled"] == ["1x8", "2x8"]


def test_a_mode_that_a_target_lacks_is_listed_as_untested() -> None:
    demand = Requirements(timing=Timing(processes=1), variations=OFF, parity=NO_PARITY)
    cells = matrix.plan(targets.get("cpu"), MODES, ("float32",), matrix.Shapes(("1x8",), {}), demand)
    assert [(c.id, c.cache) for c in cells] == [
        ("reference-float32", "none"),
        ("eager-float32", "none"),
        ("compiled-float32", "none"),
        ("adaptive-float32", "none"),
    ]
    assert "no adaptive mode" in cells[-1].outcome.reason


def test_a_boundary_that_cannot_be_compiled_is_not_replaced_by_another() -> None:
    demand = Requirements(
        workload=Demanded(boundary="step"), timing=Timing(processes=1), variations=OFF, parity=NO_PARITY
    )
    cells = matrix.plan(targets.get("cpu"), ("eager", "compiled"), ("float32",), matrix.Shapes(("1x8",), {}), demand)
    reasons = {cell.id: cell.outcome.reason for cell in cells}
    assert "the whole step as one compiled program" in reasons["compiled-float32"]
    assert reasons["eager-float32"] == matrix.WAITING.reason


@pytest.mark.parametrize("target", ["neuron", "cpu"])
def test_each_case_is_timed_by_as_many_processes_as_were_asked_for(target: str) -> None:
    demand = Requirements(timing=Timing(processes=5), variations=OFF, parity=NO_PARITY)
    cells = matrix.plan(targets.get(target), ("eager",), ("float32",), matrix.Shapes(("1x8", "2x8", "1x8"), {}), demand)
    for mode, case in itertools.product(("reference", "eager"), ("1x8", "2x8")):
        assert sum(case in cell.cases for cell in cells if cell.mode == mode) == 5
    assert len({cell.id for cell in cells}) == len(cells)
    assert cells[0].cases == ["1x8", "2x8", "1x8#2"]


def test_a_warm_process_comes_after_a_cold_one_that_used_the_same_directory() -> None:
    demand = Requirements(timing=Timing(processes=5), variations=OFF, parity=NO_PARITY)
    cells = matrix.plan(
        targets.get("neuron"), MODES, ("float32",), matrix.Shapes(("1x8", "2x8"), {}), demand, trace=True
    )
    filled = set()
    for cell in cells:
        if cell.cache == "cold":
            assert matrix.cache_of(cell) not in filled
            filled.add(matrix.cache_of(cell))
        elif cell.cache == "warm":
            assert matrix.cache_of(cell) in filled


def test_each_variation_is_a_process_of_its_own_for_every_mode() -> None:
    names = plan(variations=Variations())
    for variation in ("padding", "noncontiguous", "logging", "large", "tiny", "ties"):
        for mode in MODES:
            assert f"{mode}-float32-1x8~{variation}-cold" in names
    assert [n for n in names if "restart" in n] == [f"{mode}-float32-restart" for mode in MODES]
    assert [n for n in names if "probe" in n] == ["eager-float32-probe", "compiled-float32-probe"]


def test_a_variation_that_cannot_be_made_is_untested_and_says_why() -> None:
    shapes = matrix.Shapes(("1x8",), {"1x8~padding": "the workload has no function pad"})
    cells = matrix.plan(
        targets.get("cpu"), ("eager",), ("float32",), shapes, Requirements(variations=OFF, parity=NO_PARITY)
    )
    (padded,) = [cell for cell in cells if cell.kind == "variation"]
    assert padded.outcome.reason == "the workload has no function pad"
    assert "1x8~padding" not in cells[0].cases


def test_quick_leaves_out_what_speed_needs() -> None:
    assert plan(quick=True) == ["reference-float32", *(f"{mode}-float32-cold" for mode in MODES)]


def test_a_trace_has_processes_of_its_own() -> None:
    traced = [name for name in plan(trace=True) if "trace" in name]
    assert traced == [f"{mode}-float32-trace-{cache}" for mode in MODES for cache in ("cold", "warm")]


def test_one_long_run_of_the_smallest_case_in_each_mode_beside_the_cpu() -> None:
    demand = Requirements(timing=Timing(processes=1), variations=OFF, parity=Parity(steps=30))
    shapes = matrix.Shapes(("2x8", "1x8", "1x12"), {})
    cells = matrix.plan(targets.get("neuron"), MODES, ("float32", "bfloat16"), shapes, demand)
    long = [(cell.id, cell.cases) for cell in cells if cell.kind == "parity"]
    assert long == [
        (f"{mode}-{dtype}-parity", ["1x8"])
        for dtype in ("float32", "bfloat16")
        for mode in ("reference", "eager", "adaptive", "compiled")
    ]


def test_cases_come_from_the_command_line_or_the_requirements_or_the_workload() -> None:
    own = (Case(2, 8), Case(1, 12))
    listed = Requirements(cases=[CaseDemand(size=1, length=96), CaseDemand(size=4, length=96)])
    assert matrix.plain_cases(Requirements(), own, ()) == ("2x8", "1x12")
    assert matrix.plain_cases(listed, own, ()) == ("1x96", "4x96")
    assert matrix.plain_cases(listed, own, ("1x3",)) == ("1x3",)
    largest = listed.model_copy(update={"variations": Variations(maximum="8x256")})
    assert matrix.plain_cases(largest, own, ()) == ("1x96", "4x96", "8x256")


def test_time_left_is_judged_by_the_most_similar_process() -> None:
    demand = Requirements(timing=Timing(processes=1), variations=OFF, parity=NO_PARITY)
    cells = matrix.plan(targets.get("neuron"), ("eager", "compiled"), ("float32",), matrix.Shapes(("1x8",), {}), demand)

    def ended(cell: matrix.Cell, seconds: float) -> matrix.Cell:
        return cell.model_copy(update={"outcome": Outcome(status="finished", seconds=seconds)})

    assert clock.remaining(cells, []) is None
    assert clock.in_words(None) == ""
    done = [ended(cells[0], 3.0), ended(cells[1], 20.0), ended(cells[2], 40.0)]
    assert [c.id for c in cells[3:]] == ["eager-float32-warm", "compiled-float32-warm"]
    assert clock.remaining(cells[3:], done) == 60.0
    assert clock.in_words(60.0) == ", about 60 s left"
    assert clock.in_words(600.0) == ", about 10 min left"
