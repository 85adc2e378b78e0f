"""Localisation on an embedded device that is wrong on purpose, in real processes (``shakedown.readiness.selftest``)."""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import trial
from shakedown.readiness.bisect import child
from shakedown.readiness.bisect import run as bisection
from shakedown.readiness.bisect.job import BisectJob
from shakedown.readiness.bisect.result import Bisect
from shakedown.readiness.judge.results import Outcome
from shakedown.readiness.runner import Launch, LocalProcesses
from shakedown.readiness.selftest import inject

from .faults import moved_wrongly
from .support import TINY, InProcess, quick

EAGER, COMPILED, ADAPTIVE = "eager-float32-cold", "compiled-float32-cold", "adaptive-float32-cold"
# fault -> cell, phase, operator
FAULTS = {
    "scaled_activation": (EAGER, "forward", "aten::gelu"),
    "wrong_loss_gradient": (EAGER, "backward", "aten::_log_softmax_backward_data"),
    "shifted_update": (EAGER, "optimizer", "aten::_foreach_addcdiv_.ScalarList"),
    "compiled_only": (COMPILED, "forward", "aten::gelu"),
}


def line_of(text: str) -> str:
    """Where `text` stands in the tiny workload, as a finding names it."""
    number = next(i for i, line in enumerate(TINY.read_text().splitlines(), start=1) if text in line)
    return f"tiny.py:{number}"


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished trial of the healthy device in eager mode.

    Localisation reads the name, the mode and the outcome of a cell and no evidence of it, so the cells of the other modes need
    not have run to be looked into.
    """
    folder = tmp_path_factory.mktemp("record")
    request = trial.Request(
        str(TINY),
        folder / "run",
        target="neuron",
        modes=("eager",),
        dtypes=("float32",),
        cases=("2x8",),
        requirements=quick(folder),
        quick=True,
    )
    running = trial.Trial(trial.check(request), lambda what, share: None, InProcess())
    running.prepare()
    running.references()
    running.candidates()
    running.truth()
    cell = next(cell for cell in running.cells if cell.id == EAGER)
    running.cells += [cell.model_copy(update={"id": c, "mode": c.split("-")[0]}) for c in (COMPILED, ADAPTIVE)]
    running.finish()
    return folder / "run"


class Processes(LocalProcesses):
    """Real processes that share one cache of compiled programs; a stage that a fault does not touch runs in this process."""

    def __init__(self, cache: Path, here: tuple[str, ...] = ()) -> None:
        super().__init__(bisection.CHILD)
        self.cache, self.here = cache, here

    def run(self, launch: Launch) -> Outcome:
        assert isinstance(launch.job, BisectJob)
        if launch.job.stage in self.here:
            child.leave(launch.job)
            return Outcome(status="finished", exit_code=0)
        environment = launch.environment | {"SHAKEDOWN_CACHE_DIR": str(self.cache)}
        return super().run(dataclasses.replace(launch, environment=environment))


class Runs:
    """One localisation for each fault, made when a test first asks for it."""

    def __init__(self, record: Path, folder: Path) -> None:
        self.record, self.folder = record, folder
        self.known: dict[str, Bisect] = {}

    def of(self, fault: str, cell: str) -> Bisect:
        if fault not in self.known and fault == "shifted_update":  # this one as a user does it
            options = ["--out", str(self.folder / fault), "--json"]
            done = CliRunner().invoke(cli.app, ["bisect", str(self.record), cell, *options], env=faulty(fault))
            self.known[fault] = Bisect.model_validate_json(done.stdout)
            assert done.exit_code == self.known[fault].exit_code
            assert "eager: operators of the optimizer pass" in done.stderr  # what it is doing
        elif fault not in self.known:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(inject.VARIABLE, fault)
                executor = Processes(self.folder / "cache", () if cell == EAGER else ("eager",))
                request = bisection.Request(self.record, cell, self.folder / fault)
                self.known[fault] = bisection.run(request, lambda text: None, executor)
        return self.known[fault]


@pytest.fixture(scope="module")
def runs(record: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(record, tmp_path_factory.mktemp("bisect"))


@pytest.mark.parametrize("fault", FAULTS)
def test_the_operator_is_named(runs: Runs, fault: str) -> None:
    cell, phase, operator = FAULTS[fault]
    found = runs.of(fault, cell)
    assert (found.verdict, found.exit_code, found.label) == ("located", 1, "rehearsal")
    stage = found.found
    assert stage is not None
    assert (stage.mode, stage.phase) == (cell.split("-")[0], phase)
    assert stage.operator is not None
    assert stage.operator.names == [operator]
    worst = stage.operator.numbers[0]
    assert worst.margin > 100
    assert worst.findings
    assert (runs.folder / fault / "bisect.json").read_text() == found.model_dump_json(indent=1) + "\n"


def test_the_module_and_the_line_are_named(runs: Runs) -> None:
    for fault, kind, line in (
        ("scaled_activation", "Tiny", line_of("F.gelu")),
        ("wrong_loss_gradient", "forward", line_of("F.cross_entropy")),
        ("compiled_only", "Tiny", line_of("F.gelu")),
    ):
        stage = runs.of(fault, FAULTS[fault][0]).found
        assert stage is not None
        assert stage.module is not None
        assert stage.operator is not None
        # A function between modules is in nobody's forward but that of the module around them, or the workload's own.
        assert (stage.module.path, stage.module.kind) == ("" if kind == "Tiny" else None, kind)
        name, number = stage.operator.line.split(":")
        wanted = int(line.split(":")[1])
        assert name == "tiny.py"
        assert wanted <= int(number) <= wanted + 2
    stage = runs.of("shifted_update", EAGER).found
    assert stage is not None
    assert stage.module is not None
    assert stage.module.kind == "AdamW"


def test_the_error_is_put_into_words_and_numbers(runs: Runs) -> None:
    stage = runs.of("scaled_activation", EAGER).found
    assert stage is not None
    assert stage.operator is not None
    (numbers,) = stage.operator.numbers
    assert numbers.scale_minus_one == pytest.approx(0.002, rel=1e-3)
    assert "uniformly scaled by 1.002" in numbers.findings[0]
    assert numbers.relative_l2 > 100 * numbers.allowed_relative_l2


def test_eager_is_looked_into_first(runs: Runs) -> None:
    found = runs.of("compiled_only", COMPILED)
    assert [stage.mode for stage in found.stages] == ["eager", "compiled"]
    assert found.stages[0].verdict == "nothing"
    assert "eager mode on the same target is right" in found.text


def faulty(faults: str) -> dict[str, str]:
    """The environment of a process whose device has `faults`, of the trial or not."""
    path = os.pathsep.join(filter(None, (str(inject.PROPAGATE), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, inject.VARIABLE: faults}


def healthy(case: Path) -> int:
    """Exit code of a case in this process, whose device is right."""
    torch._dynamo.reset()
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(case))
    return int(end.value.code or 0)


def outcomes(runs: Runs, faults: str) -> dict[str, int]:
    """Exit code of every case, run one after the other in one process whose device has `faults`."""
    script = (
        "import json, runpy, sys\ncodes = {}\nfor fault in sys.argv[2:]:\n    try:\n"
        "        runpy.run_path(f'{sys.argv[1]}/{fault}/case/case.py')\n    except SystemExit as end:\n"
        "        codes[fault] = int(end.code or 0)\nprint(json.dumps(codes))"
    )
    command = [sys.executable, "-c", script, str(runs.folder), *FAULTS]
    done = subprocess.run(command, env=faulty(faults), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def test_every_case_reproduces_the_fault_and_passes_without_it(runs: Runs) -> None:
    for fault, (cell, _, _) in FAULTS.items():
        stage = runs.of(fault, cell).found
        assert stage is not None
        assert stage.case == "case", stage.case_note
        assert healthy(runs.folder / fault / "case" / "case.py") == 0
    assert outcomes(runs, "compiled_only") == dict.fromkeys(FAULTS, 0) | {"compiled_only": 1}
    assert outcomes(runs, "scaled_activation,wrong_loss_gradient,shifted_update,compiled_only") == dict.fromkeys(
        FAULTS, 1
    )


def test_a_case_is_small(runs: Runs) -> None:
    """Shrinking halves what it can: the update is one tensor of fourteen, the activation a part of 2 x 8 x 32 values."""
    runs.of("shifted_update", EAGER)
    runs.of("scaled_activation", EAGER)
    update = (runs.folder / "shifted_update" / "case" / "case.py").read_text()
    assert update.count('t["self_') == 2  # given, and compared
    assert (runs.folder / "scaled_activation" / "case" / "tensors.safetensors").stat().st_size < 2 * 8 * 32 * 4 / 2
    assert len((runs.folder / "scaled_activation" / "case" / "case.py").read_text().splitlines()) < 60


def test_a_fused_program_alone_is_wrong(runs: Runs) -> None:
    """Adaptive eager: eager is right, the fused program is not, and the case brings it about again."""
    found = runs.of("adaptive_only", ADAPTIVE)
    assert [(s.mode, s.verdict) for s in found.stages] == [("eager", "nothing"), ("adaptive", "located")]
    stage = found.found
    assert stage is not None
    assert stage.operator is not None
    assert stage.operator.names == ["aten::gelu"]
    assert "in a fused program" in found.text
    case = runs.folder / "adaptive_only" / "case" / "case.py"
    for fault, code in (("adaptive_only", 1), ("", 0)):
        done = subprocess.run([sys.executable, str(case)], env=faulty(fault), capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr


def command(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli.app, ["bisect", *arguments])
    return done.exit_code, done.stdout + done.stderr


def test_nothing_to_localise_on_a_healthy_device(record: Path, tmp_path: Path) -> None:
    answer = here(record, tmp_path / "out")
    assert (answer.exit_code, answer.verdict, answer.step) == (0, "nothing", 1)
    assert answer.text.startswith("nothing to localise")
    assert answer.record_seal == json.loads((record / "record.json").read_text())["seal"]
    assert not (tmp_path / "out" / "case").exists()
    assert not (tmp_path / "out" / "cache").exists()


def here(record: Path, out: Path) -> Bisect:
    """Localise in this process."""
    return bisection.run(bisection.Request(record, EAGER, out), executor=Processes(out / "cache", ("eager",)))


def test_a_finding_that_does_not_come_back_is_said(record: Path, tmp_path: Path) -> None:
    """All operators of the step are judged then, one by one, in the step that the trial found wrong."""
    copy = Path(shutil.copytree(record, tmp_path / "copy"))
    raw = json.loads((copy / "record.json").read_text())
    next(c for c in raw["judgement"]["cells"] if c["cell"] == EAGER)["cases"][0]["verdict"] = "mismatch"
    (copy / "record.json").write_text(json.dumps(raw))
    vectors = json.loads((copy / "vectors.json").read_text())
    next(v for v in vectors[EAGER]["2x8"] if v["name"].startswith("step3/weight"))["findings"] = ["off"]
    (copy / "vectors.json").write_text(json.dumps(vectors))
    answer = here(copy, tmp_path / "out")
    assert (answer.exit_code, answer.verdict, answer.step) == (1, "not reproduced", 3)
    assert answer.stages[0].operators_judged > 30


def test_a_weight_that_changes_on_its_way_is_found_first(record: Path, tmp_path: Path) -> None:
    with moved_wrongly():
        answer = here(record, tmp_path / "out")
    stage = answer.found
    assert stage is not None
    assert (stage.phase, answer.verdict) == ("data", "located")
    assert stage.operator is not None
    assert "not the bits that were to be moved" in stage.operator.numbers[0].findings[0]
    assert stage.case_note  # a copy alone is right on this device


def test_bad_input_is_one_clear_message(record: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for arguments, words in (
        ((str(record), "eager-float16"), "no cell 'eager-float16'"),
        ((str(record), EAGER, "--case", "9x9"), "has no case '9x9'; choose among 2x8"),
        ((str(record), EAGER, "--step", "7"), "step 7 is not in the record; it has batches for steps 1 to 3"),
        ((str(tmp_path / "nowhere"), EAGER), "only a finished trial can be localised"),
    ):
        code, said = command(*arguments, "--out", str(out), "--json")
        assert code == 2
        assert words in json.loads(said)["error"]
        assert not out.exists()


def test_an_unfinished_record_or_a_changed_workload_is_refused(record: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(record, tmp_path / "copy"))
    (copy / "workload.py").write_text("# other\n" + TINY.read_text())
    (copy / "trial.json").unlink()
    code, said = command(str(copy), EAGER, "--out", str(tmp_path / "out"))
    assert code == 2
    assert "the workload changed" in said
    (copy / "record.json").unlink()
    code, said = command(str(copy), EAGER, "--out", str(tmp_path / "out"))
    assert code == 2
    assert "there is no record" in said


def test_an_existing_directory_is_left_as_it_is(record: Path, tmp_path: Path) -> None:
    code, said = command(str(record), EAGER, "--out", str(tmp_path))
    assert code == 2
    assert "exists and is left as it is" in said
