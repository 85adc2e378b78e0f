"""What judging makes of the paths of a step: causes, accepted fallbacks and their budgets, the share of a step on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shakedown.readiness import evidence as ev
from shakedown.readiness import targets, trial
from shakedown.readiness.evidence import Evidence, Paths
from shakedown.readiness.judge import checks, paths
from shakedown.readiness.judge.results import Cell, Finding
from shakedown.readiness.observe import paths as observe
from shakedown.readiness.requirements import AcceptedFallback, Budgets, Requirements

from . import leaving, tiny
from .stepping import Training, line
from .support import InProcess, quick

NEURON = targets.get("neuron")
SQUASH, SLOPE = "leaving::squash", "leaving::slope"
EVERYTHING = Budgets(fallback_share=1.0)


class Run:
    """One cell of a real trial on the embedded device, whose workload leaves the device in every phase."""

    def __init__(self, root: Path, cells: list[Cell], rows: dict[str, observe.Rows]) -> None:
        self.root, self.cells, self.rows = root, cells, rows
        self.file = root / "evidence" / cells[0].id / f"{cells[0].cases[0]}.json"

    def findings(self, requirements: Requirements) -> list[Finding]:
        return paths.findings(self.root, self.cells, requirements)

    def evidence(self) -> Evidence:
        return ev.read(Evidence, self.file)

    def put(self, found: Paths) -> None:
        ev.write(self.evidence().model_copy(update={"paths": found}), self.file)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("paths")
    request = trial.Request(
        str(leaving.__file__), folder / "run", modes=("eager",), requirements=quick(folder), quick=True
    )
    running = trial.Trial(trial.check(request), lambda what, share: None, InProcess())
    running.prepare()
    cell = next(cell for cell in running.cells if cell.mode == "eager" and cell.kind == "sequence")
    running.cells = [cell.model_copy(update={"cases": cell.cases[:1]})]
    running.candidates()
    assert running.cells[0].outcome.status == "finished", running.cells[0].outcome
    training, recorder = Training(leaving, NEURON), observe.recorder(NEURON)
    training.step(recorder)
    with recorder.step() as counted:
        training.step(recorder)
    with recorder.attributed(training.roots) as attributed:
        training.step(recorder)
    made = Run(running.root, running.cells, {"counted": counted, "attributed": attributed})
    made.put(account(made.evidence().paths, made.rows, 0.05))
    return made


def account(known: Paths, rows: dict[str, observe.Rows], seconds: float | None) -> Paths:
    """Paths of a case, with a later step of so many seconds."""
    return Paths(
        source=known.source,
        first_step=known.first_step,
        later_step=rows["counted"],
        later_seconds=seconds,
        attributed=rows["attributed"],
        attributed_seconds=rows["attributed"].seconds,
    )


def accept(operator: str, calls: int, phase: str = "", nbytes: int = 0) -> AcceptedFallback:
    return AcceptedFallback(operator=operator, phase=phase, calls=calls, nbytes=nbytes, reason="agreed in the review")


def fallbacks(found: list[Finding]) -> list[str]:
    return sorted(one.text for one in found if one.word == "fallback")


def test_a_fallback_that_is_not_accepted_is_named_with_phase_line_and_cause(run: Run) -> None:
    found = run.findings(Requirements(budgets=EVERYTHING))
    assert {(one.word, one.fails, one.case) for one in found} == {("fallback", False, run.cells[0].cases[0])}
    assert len(found) == 3
    slope, forward, optimizer = fallbacks(found)
    assert slope.startswith(f"{SLOPE} ran on the CPU in phase backward: 1 call, 384 bytes a step")
    assert line(leaving, "line of slope") in slope
    assert "lowering missing: no lowering; the requirements do not accept it" in slope
    assert line(leaving, "line of squash") in forward
    assert "2 calls" in optimizer
    assert line(leaving, "line of descent") in optimizer
    assert any(one.word == "fallback" for one in checks.findings(run.root, run.cells, Requirements(budgets=EVERYTHING)))


def test_accepted_fallbacks_are_decisions_with_a_budget(run: Run) -> None:
    both = [accept(SLOPE, 1), accept(SQUASH, 3)]
    assert run.findings(Requirements(fallbacks=both, budgets=EVERYTHING)) == []
    tight = run.findings(Requirements(fallbacks=[accept(SLOPE, 1), accept(SQUASH, 2)], budgets=EVERYTHING))
    # The budget is one step's, whatever the phase: three calls in all.
    assert all("over its budget: 3 calls a step, 2 accepted" in text for text in fallbacks(tight))
    assert len(tight) == 2
    forward = run.findings(Requirements(fallbacks=[accept(SLOPE, 1), accept(SQUASH, 1, "forward")], budgets=EVERYTHING))
    (text,) = fallbacks(forward)
    assert "phase optimizer" in text
    small = [accept(SLOPE, 1, nbytes=383), accept(SQUASH, 3)]
    (text,) = fallbacks(run.findings(Requirements(fallbacks=small, budgets=EVERYTHING)))
    assert "384 bytes a step, 383 accepted" in text


def test_a_step_that_the_cpu_takes_too_much_of_is_fallback_bound(run: Run) -> None:
    accepted = [accept(SLOPE, 9), accept(SQUASH, 9)]
    share = paths.summarise(run.evidence()).on_host
    assert share is not None
    assert not share.at_least
    left = sum(row.seconds or 0 for row in run.rows["counted"] if row.kind == "fallback")
    host = sum(row.seconds or 0 for row in run.rows["attributed"] if row.kind == "execute" and row.where == "host")
    assert (share.fallback_seconds, share.host_seconds) == pytest.approx((left, host))
    assert share.share == pytest.approx((left + host) / 0.05)
    within = Budgets(fallback_share=min(1.0, (left + host) / 0.05 + 1e-6))
    assert run.findings(Requirements(fallbacks=accepted, budgets=within)) == []
    (found,) = run.findings(Requirements(fallbacks=accepted, budgets=Budgets(fallback_share=1e-6)))
    assert (found.word, found.fails) == ("fallback-bound", True)
    assert "of a step of 50 ms went into operators on the CPU" in found.text
    assert "0% is the budget" in found.text


@pytest.mark.parametrize(("timed", "fails"), [(0.004, False), (0.05, True)])
def test_a_step_that_others_disturbed_fails_no_cell(run: Run, timed: float, fails: bool) -> None:
    """40 ms of fallbacks in a step of 50: certain where all steps take so long, not where the timed ones take 4."""
    before = run.evidence()
    slow = [
        row.model_copy(update={"seconds": 0.02 if row.phase == "optimizer" else 0.01})
        if row.kind == "fallback"
        else row
        for row in run.rows["counted"]
    ]
    later = before.timings.later.model_copy(update={"seconds": [timed] * 5})
    changed = before.model_copy(
        update={
            "paths": before.paths.model_copy(update={"later_step": slow}),
            "timings": before.timings.model_copy(update={"later": later}),
        }
    )
    ev.write(changed, run.file)
    try:
        accepted = [accept(SLOPE, 9), accept(SQUASH, 9)]
        (found,) = run.findings(Requirements(fallbacks=accepted, budgets=Budgets(fallback_share=0.5)))
        assert (found.word, found.fails) == ("fallback-bound", fails)
        assert ("a busy machine may be to blame" in found.text) != fails
        assert "of a step of 50 ms went into operators on the CPU (fallbacks 40 ms" in found.text
    finally:
        ev.write(before, run.file)


def test_the_summary_counts_bytes_and_composites_once(run: Run) -> None:
    summary = paths.summarise(run.evidence())
    phases = {phase.phase: phase for phase in summary.phases}
    for name, phase in phases.items():
        rows = [row for row in run.rows["counted"] if row.phase == ("" if name == "outside" else name)]
        moved = [row for row in rows if row.kind == "transfer"]
        assert phase.moved_bytes == sum(row.nbytes for row in moved)
        assert phase.fallbacks == sum(row.count or 0 for row in rows if row.kind == "fallback")
    assert phases["forward"].host == 4
    assert phases["backward"].moved_bytes == 384
    operators = summary.operators
    assert operators is not None
    (squash,) = [one for one in operators if one.name == SQUASH and one.phase == "forward"]
    assert (squash.where, squash.fell_back, squash.count) == ("host", True, 1)
    assert [one.phase for one in operators] == sorted(
        [one.phase for one in operators], key=["data", "forward", "backward", "optimizer", "logging", ""].index
    )


def test_a_composite_is_not_counted_beside_its_parts(run: Run) -> None:
    training, recorder = Training(tiny, NEURON, (2, 8)), observe.recorder(NEURON)
    training.step(recorder)
    with recorder.step() as counted:
        training.step(recorder)
    rows = {row.name: row for row in counted if row.kind == "execute" and row.phase == "forward"}
    assert rows["aten::layer_norm"].detail == paths.COMPOSITE
    assert rows["aten::layer_norm"].count == rows["aten::native_layer_norm"].count == 2
    found = run.evidence()
    found = found.model_copy(update={"paths": found.paths.model_copy(update={"later_step": counted})})
    (forward,) = [phase for phase in paths.summarise(found).phases if phase.phase == "forward"]
    assert forward.executed == sum(row.count or 0 for row in rows.values() if row.detail != paths.COMPOSITE)
    assert forward.distinct == sum(row.detail != paths.COMPOSITE for row in rows.values())


def test_what_a_target_does_not_tell_is_not_filled_in(run: Run) -> None:
    before = run.evidence().paths
    training = Training(leaving, NEURON)
    recorder = observe.PublicTracking(NEURON, torch.neuron)  # type: ignore[arg-type]
    training.step()
    with recorder.step() as counted:
        training.step(recorder)
    with recorder.attributed(training.roots) as attributed:
        training.step(recorder)
    run.put(
        Paths(
            source=recorder.source,
            first_step=None,
            later_step=counted,
            attributed=attributed,
            attributed_seconds=attributed.seconds,
            unobservable=dict(recorder.unobservable),
        )
    )
    try:
        summary = paths.summarise(run.evidence(), Requirements(fallbacks=[accept(SQUASH, 9)]))
        assert {(f.name, f.phase, f.count, f.seconds, f.nbytes) for f in summary.fallbacks or []} == {
            (name, phase, None, None, None)
            for name, phase in ((SQUASH, "forward"), (SLOPE, "backward"), (SQUASH, "optimizer"))
        }
        assert {f.cause for f in summary.fallbacks or []} == {"not told"}
        assert {phase.fallbacks for phase in summary.phases} == {None}
        assert summary.compiled is None
        assert summary.on_host is not None
        assert summary.on_host.at_least
        assert summary.on_host.fallback_seconds is None
        assert summary.on_host.reason
        found = run.findings(Requirements(fallbacks=[accept(SQUASH, 9)], budgets=Budgets(fallback_share=1e-6)))
        texts = fallbacks(found)
        assert sum("a budget that cannot be checked" in text for text in texts) == 2
        assert all("an unknown number of calls" in text for text in texts)
        assert [one.text.startswith("at least ") for one in found if one.word == "fallback-bound"] == [True]
    finally:
        run.put(before)


def test_the_cpu_itself_has_nothing_to_leave(run: Run) -> None:
    recorder = observe.recorder(targets.get("cpu"))
    training = Training(leaving, targets.get("cpu"))
    with recorder.step() as counted:
        training.step(recorder)
    with recorder.attributed(training.roots) as attributed:
        training.step(recorder)
    found = run.evidence().model_copy(
        update={
            "paths": Paths(
                source=recorder.source,
                first_step=None,
                later_step=counted,
                attributed=attributed,
                unobservable=dict(recorder.unobservable),
            )
        }
    )
    summary = paths.summarise(found)
    assert summary.fallbacks is None
    assert {(phase.fallbacks, phase.moved_bytes) for phase in summary.phases} == {(None, None)}
    assert set(summary.unobservable) >= {"fallbacks", "bytes moved", "compilations"}
    assert {one.where for one in summary.operators or []} == {"device"}
    assert summary.on_host is not None
    assert summary.on_host.share is None
    assert "no device to leave" in summary.on_host.reason


def test_causes_are_told_apart_by_what_the_device_says() -> None:
    """The reasons are those of the device: each comes from a real call, or stands in its source."""
    source = "".join(path.read_text() for path in (Path(targets.__file__).parents[1] / "neuron").rglob("*.py"))
    known = {
        "repeats whose sum only the device knows; give output_size": "data-dependent",
        "a mask as an index, whose result's sizes depend on its values": "data-dependent",
        "sizes that depend on data": "data-dependent",
        "a sparse gradient": "lowering incomplete",
    }
    for reason, cause in known.items():
        assert reason in source
        assert paths.cause(reason) == cause
    assert paths.cause("aten.take.default: no lowering") == "lowering missing"
    assert paths.cause("RuntimeError: shapes do not match") == "error"
    assert paths.cause("IndexError: ") == "error"
    recorder = observe.recorder(NEURON)
    weights = torch.rand(4, 8).to("neuron")
    with torch.neuron.use_profile("neuron-2.33"), recorder.step() as rows, recorder.phase("data"):
        torch.multinomial(weights, 2)
    (row,) = [row for row in rows if row.kind == "fallback"]
    assert (row.name, row.phase, row.where) == ("aten::multinomial", "data", "host")
    assert paths.cause(row.detail) == "profile rule"
