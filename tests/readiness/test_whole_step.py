"""``boundary = "step"``: the cell "compiled" trains by one program a step, with evidence like that of other cells."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shakedown.readiness import evidence, matrix, targets, trial
from shakedown.readiness.requirements import Requirements
from shakedown.readiness.requirements.model import Demanded
from shakedown.readiness.targets import Target

from .support import TINY, InProcess


def test_a_target_without_whole_steps_leaves_the_cell_untested() -> None:
    demand = Requirements(workload=Demanded(boundary="step"))
    assert matrix.lacks(targets.get("neuron"), "compiled", demand) == ""
    assert "target cpu does not have" in matrix.lacks(targets.get("cpu"), "compiled", demand)
    assert matrix.lacks(targets.get("cpu"), "eager", demand) == ""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory):
    """A trial of the compiled mode on the embedded device: one case, and a restart."""
    folder = tmp_path_factory.mktemp("whole")
    demand = folder / "requirements.toml"
    off = "".join(f"{name} = false\n" for name in ("padding", "noncontiguous", "hard_inputs", "neighbours"))
    demand.write_text(
        '[workload]\nboundary = "step"\n[timing]\nsteps = 5\nprocesses = 1\nscaling_tolerance = 1e9\n[run]\nthreads = 1\n'
        f"[parity]\nsteps = 0\n[variations]\nlogging_every = 0\nrestart = true\n{off}"
    )
    request = trial.Request(
        str(TINY),
        folder / "run",
        target="neuron",
        modes=("compiled",),
        dtypes=("float32",),
        cases=("2x8",),
        requirements=demand,
    )
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()  # a worker's process has none from before
    yield trial.run(request, executor=InProcess()), folder / "run"
    torch.compiler.reset()


def test_the_cell_runs_and_matches(finished) -> None:
    record, folder = finished
    verdicts = {cell.cell: cell.verdict for cell in record.judgement.cells}
    assert {name: verdict for name, verdict in verdicts.items() if name.startswith("compiled")} == {
        "compiled-float32-cold": "match",
        "compiled-float32-warm": "match",
        "compiled-float32-restart": "match",
    }
    (file,) = (folder / "evidence" / "compiled-float32-cold").glob("2x8.json")
    found = evidence.read(evidence.Evidence, file)
    kinds = {(info.step, info.role) for info in found.tensors}
    assert {(1, "output"), (1, "loss"), (1, "gradient"), (1, "weight"), (1, "state")} <= kinds
    assert set(found.timings.first_step) == {"data", "step"}


def test_the_step_is_one_program(finished) -> None:
    _, folder = finished
    found = evidence.read(evidence.Evidence, folder / "evidence" / "compiled-float32-cold" / "2x8.json")
    rows = [row for row in found.paths.later_step if row.phase == "step" and row.kind == "execute"]
    assert [row.count for row in rows if row.name.startswith("graph::")] == [1]
    assert not [row for row in found.paths.later_step if row.kind == "fallback"]
    assert found.graphs is not None
    assert not found.graphs.breaks


def test_a_package_that_compiles_no_step_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from shakedown.readiness import snapshot, workload
    from shakedown.readiness.errors import BadInput
    from shakedown.readiness.step import Stepper
    from shakedown.readiness.whole import compile_stepper

    loaded = workload.load(workload.resolve(str(TINY)))
    snapshot.create(loaded, [workload.Case.parse("2x8")], 1, tmp_path / "snapshot")
    restored = snapshot.restore(loaded, tmp_path / "snapshot", torch.float32)
    stepper = Stepper(loaded, restored, torch.device("cpu"), tmp_path / "snapshot")
    other = Target("cpu", "cpu", "aot_eager", "", asynchronous=False, persistent_cache=False, whole_step=True)
    with pytest.raises(BadInput, match="does not compile a whole training step: set workload.boundary"):
        compile_stepper(stepper, other, Requirements(workload=Demanded(boundary="step")))
