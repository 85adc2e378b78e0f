"""Long runs beside each other: inside a trial, and for a training script of the user's own."""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from shakedown.cli import app
from shakedown.readiness import evidence, report, targets, trial
from shakedown.readiness.errors import BadInput, Interrupted, OutputExists, RecordError
from shakedown.readiness.evidence import Losses
from shakedown.readiness.evidence.losses import LossRuns
from shakedown.readiness.judge import parity_cells
from shakedown.readiness.judge.results import Outcome
from shakedown.readiness.parity import contract, document, launch
from shakedown.readiness.parity import run as command
from shakedown.readiness.parity.job import ScriptJob
from shakedown.readiness.record import Record
from shakedown.readiness.report import parity as words
from shakedown.readiness.runner import Launch

from . import support

# --- the contract ------------------------------------------------------------------------------------------------------


def parsed(folder: Path, text: str) -> contract.Written:
    file = folder / "losses"
    file.write_text(text)
    return contract.parse(file, "reference")


def test_both_forms_of_lines_are_read(tmp_path: Path) -> None:
    found = parsed(
        tmp_path, '1 6.5\n{"step": 2, "loss": 6.25, "device": "cpu:0"}\n\n  3   nan\n4 -inf\n{"step": 5, "loss": 6}\n'
    )
    assert list(found.losses)[:2] == [1, 2]
    assert [str(found.losses[step]) for step in (3, 4, 5)] == ["nan", "-inf", "6.0"]
    assert found.devices == {"cpu"}


def test_a_step_number_that_goes_back_is_a_restart_and_what_comes_again_counts(tmp_path: Path) -> None:
    found = parsed(tmp_path, "1 9.1\n2 8.1\n3 7.1\n2 8.5\n3 7.5\n4 6.5\n")
    assert found.losses == {1: 9.1, 2: 8.5, 3: 7.5, 4: 6.5}
    assert [(e.step, e.kind, e.text) for e in found.events] == [(2, "restart", "the step number went back from 3")]
    told = parsed(
        tmp_path, "1 9.1\n2 8.1\nevent restart 2 from disk\n2 8.5\nevent shape 3 4x512\nevent coffee 3 a break\n3 7\n"
    )
    assert [(e.step, e.kind, e.text) for e in told.events] == [
        (2, "restart", "from disk"),
        (3, "shape", "4x512"),
        (3, "other", "coffee: a break"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no loss in it"),
        ("step 1 loss 6.1\n", "line 1 of the losses is 'step 1 loss 6.1'"),
        ("1 6.1\n2 low\n", "line 2 of the losses is '2 low'"),
        ("1.5 6.1\n", "line 1"),
        ('{"step": 1}\n', "line 1"),
        ('{"step": true, "loss": 1.0}\n', "is no number of a step"),
        ('{"step": 1, "loss": "low"}\n', "is no loss"),
        ("event restart\n", "line 1"),
        ("".join(f"{step} {part}.0\n" for step in range(8) for part in (1, 2)), "8 step numbers do not go forward"),
    ],
)
def test_what_is_not_in_the_contract_is_refused_by_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadInput, match="reference") as error:
        parsed(tmp_path, text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_how_finely_losses_were_written_is_known(tmp_path: Path) -> None:
    assert parsed(tmp_path, "1 6.25\n2 6.1234\n").resolution == pytest.approx(1e-4)
    assert parsed(tmp_path, "1 6.25e-2\n2 6.1e-2\n").resolution == pytest.approx(1e-4)
    assert parsed(tmp_path, "1 6.251234567\n2 6.5\n").resolution == 0
    assert parsed(tmp_path, f"1 6.25e-{10**30}\n2 6.5\n").resolution == 0


# --- inside a trial ----------------------------------------------------------------------------------------------------


def long_runs(folder: Path, workload: Path, target: str, parity: str) -> Record:
    """A trial of which only the long runs are made, and the CPU's run that every trial begins with."""
    demand = support.quick(folder)
    demand.write_text(demand.read_text().replace("[parity]\nsteps = 0\n", f"[parity]\n{parity}\n"))
    request = trial.Request(
        str(workload), folder / "run", target, ("eager",), ("float32",), cases=("2x8",), requirements=demand
    )
    running = trial.Trial(trial.check(request), lambda what, share: None, support.InProcess())
    running.prepare()
    running.cells = [c for c in running.cells if c.kind == "parity" or (c.mode, c.kind) == ("reference", "sequence")]
    running.references()
    running.candidates()
    running.truth()
    return running.finish()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("long")


@pytest.fixture(scope="module")
def long(folder: Path) -> Record:
    return long_runs(folder, support.TINY, "neuron", "steps = 32\ntolerance = 0.5\nat = [32]")


def test_a_trial_trains_the_workload_for_long_and_judges_its_losses(long: Record, folder: Path) -> None:
    (found,) = long.judgement.parity
    assert (found.cell, found.case, found.mode, found.dtype) == ("eager-float32-parity", "2x8", "eager", "float32")
    assert (found.parity, found.passed, found.steps, found.twins) == ("within-envelope", True, 32, 5)
    assert found.plain[0].passed is True
    assert any("passes no training" in note for note in found.notes)
    (told,) = [f for f in long.judgement.findings if f.word.startswith("loss-parity")]
    assert (told.word, told.fails) == ("loss-parity(within-envelope)", False)
    said = " ".join(statement.text for statement in long.judgement.decision.statements)
    assert "losses over a longer run: 1 loss-parity(within-envelope)" in said
    kept = evidence.read(LossRuns, folder / "run/evidence/reference-float32-parity/2x8.losses.json")
    assert [run.role for run in kept.runs] == ["reference", "repeat", *["twin"] * 5]
    assert kept.runs[0].losses == kept.runs[1].losses
    assert all(run.nudge and run.nudge.changed > 0.8 * run.nudge.elements for run in kept.runs[2:])
    assert len({tuple(run.losses) for run in kept.runs}) > 1
    assert "| eager float32 | 2x8 | within-envelope |" in report.markdown(long)


def test_a_wrong_run_fails_its_cell_and_a_missing_one_stays_open(long: Record, folder: Path, tmp_path: Path) -> None:
    """The evidence is changed on disk: judgement is a function of it and of nothing else."""
    root = tmp_path / "run"
    shutil.copytree(folder / "run", root)
    path = root / "evidence/eager-float32-parity/2x8.losses.json"
    kept = json.loads(path.read_text())
    kept["runs"][0]["losses"][20:] = [value * 1.01 for value in kept["runs"][0]["losses"][20:]]
    path.write_text(json.dumps(kept))
    (told,) = parity_cells.findings(root, long.cells, long.requirements)
    assert (told.word, told.fails, told.cell) == ("loss-parity(event)", True, "eager-float32-parity")
    asked = long.requirements.parity.model_copy(update={"tolerance": 1e-12})
    kept["runs"][0]["losses"] = json.loads((folder / "run/evidence/eager-float32-parity/2x8.losses.json").read_text())[
        "runs"
    ][0]["losses"]
    path.write_text(json.dumps(kept))
    (told,) = parity_cells.findings(root, long.cells, long.requirements.model_copy(update={"parity": asked}))
    assert (told.word, told.fails) == ("loss-parity(plain-rule)", True)
    kept["runs"][0]["samples_sha256"] = "0" * 64
    path.write_text(json.dumps(kept))
    (told,) = parity_cells.findings(root, long.cells, long.requirements)
    assert (told.word, told.fails) == ("loss-parity(untested)", False)
    assert "does not repeat itself under one seed" in told.text
    kept["snapshot_sha256"] = "0" * 64
    path.write_text(json.dumps(kept))
    assert "the snapshots differ" in parity_cells.findings(root, long.cells, long.requirements)[0].text
    path.unlink()
    assert parity_cells.results(root, long.cells, long.requirements)[0].passed is None


def test_a_workload_that_does_not_train_has_no_losses_to_compare(tmp_path: Path) -> None:
    workload = tmp_path / "inference.py"
    workload.write_text(
        "import torch\nCASES = ('2x8',)\ndef build_model():\n    return torch.nn.Linear(8, 8)\n"
        "def make_batch(size, length):\n    return {'x': torch.randn(size, length)}\n"
        "def forward(model, batch):\n    return model(batch['x']), None\ndef build_optimizer(parameters):\n    return None\n"
    )
    (found,) = long_runs(tmp_path, workload, "cpu", "steps = 30").judgement.parity
    assert (found.parity, found.passed) == ("untested", None)
    assert "does not train" in found.text


def test_a_quick_trial_makes_no_long_run() -> None:
    demand = trial.adjusted(trial.requirements.load(None), quick=True, timeout=None)
    assert demand.parity.steps == 0


# --- a script of the user's own ----------------------------------------------------------------------------------------

SCRIPT = """
import os, random, sys
import torch

device, file = os.environ["SHAKEDOWN_PARITY_DEVICE"], os.environ["SHAKEDOWN_PARITY_LOSSES"]
dtype = getattr(torch, os.environ["SHAKEDOWN_PARITY_DTYPE"])
print("training", sys.argv[1:], __name__)
model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
HERE
model = model.to(device, dtype)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(1, int(sys.argv[1]) + 1):
    x = torch.randn(8, 6)
    loss = (model(x.to(device, dtype)) - x.sum(1, keepdim=True).to(device, dtype)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    value = loss.item()
    EACH
    with open(file, "a") as out:
        out.write(f"{step} {value!r}\\n")
"""


class ScriptsHere:
    """Runs scripts in the test's own process, as :mod:`launch` would in a fresh one. `between` is called before each run."""

    def __init__(self, between: Callable[[ScriptJob], None] = lambda job: None) -> None:
        self.between, self.ran = between, []  # type: ignore[var-annotated]

    def run(self, launched: Launch) -> Outcome:
        job = launched.job
        assert isinstance(job, ScriptJob)
        self.between(job)
        self.ran.append(job.cell)
        try:
            with environment(launched.environment):
                code = launch.run(job)
        except Exception as error:
            return Outcome(status="crashed", exit_code=1, reason=str(error), stderr_tail=traceback.format_exc())
        return Outcome(
            status="crashed" if code else "finished", exit_code=code, reason=f"exit code {code}" if code else ""
        )


@contextmanager
def environment(changed: dict[str, str]) -> Any:
    before, arguments, first = dict(os.environ), sys.argv, sys.path[0]
    os.environ.update(changed)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        sys.argv, sys.path[0] = arguments, first


def script(folder: Path, here: str = "", each: str = "pass") -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT.replace("HERE", here).replace("EACH", each))
    return path


def asked(folder: Path, **fields: Any) -> command.Request:
    given: dict[str, Any] = {"target": "cpu", "steps": 40, "arguments": ("40",), "out": folder / "out"} | fields
    given.setdefault("script", folder / "train.py")
    return command.Request(**given)


def test_a_script_is_run_on_the_cpu_as_twins_and_on_the_device(tmp_path: Path) -> None:
    script(tmp_path)
    here, said = ScriptsHere(), []
    request = asked(tmp_path, target="neuron", tolerance=0.02, at=(10, 40))
    found = command.run(request, said.append, here)
    assert here.ran == ["reference", "repeat", *(f"twin-{n}" for n in range(1, 6)), "candidate"]
    assert said[0] == "reference (1 of 8)"
    assert (found.result.passed, found.label, found.result.device) == (True, "rehearsal", "neuron")
    assert found.label_text.startswith("REHEARSAL")
    assert [check.passed for check in found.result.plain] == [True, True]
    assert [s.kind for s in found.statements] == ["rehearsal", "open"]
    assert "gradients and updated weights" in found.statements[1].text
    candidate = evidence.read(Losses, tmp_path / "out/runs/candidate.json")
    assert candidate.devices == ["neuron"]
    twin = evidence.read(Losses, tmp_path / "out/runs/twin-3.json")
    assert twin.nudge is not None
    assert (twin.nudge.tensors, twin.nudge.elements) == (4, 97)
    assert document.load(tmp_path / "out") == found
    assert "within-envelope" in " ".join(words.page(found).sentences)
    ended = CliRunner().invoke(
        app, ["parity", str(tmp_path / "train.py"), "--steps", "40", "--out", str(tmp_path / "out"), "40"]
    )
    assert ended.exit_code == 0, ended.output
    assert "was run before" in ended.output
    assert "# Loss parity of neuron (rehearsal)" in (tmp_path / "out/parity.md").read_text()
    # Again: nothing runs, and another tolerance needs no new run.
    again = ScriptsHere()
    stricter = command.run(asked(tmp_path, target="neuron", tolerance=1e-12, at=(40,)), executor=again)
    assert again.ran == []
    assert stricter.result.parity == found.result.parity
    with pytest.raises(OutputExists, match="another arguments, steps"):
        command.run(asked(tmp_path, target="neuron", steps=41, arguments=("41",)), executor=again)
    (tmp_path / "out/runs/twin-3.json").write_text("{}")
    with pytest.raises(RecordError, match="twin-3"):
        document.load(tmp_path / "out")
    with pytest.raises(BadInput, match="remove it to have it run again"):
        command.run(request, executor=again)


def test_bfloat16_has_a_run_of_its_own_on_the_cpu(tmp_path: Path) -> None:
    script(tmp_path)
    here = ScriptsHere()
    found = command.run(asked(tmp_path, dtype="bfloat16"), executor=here)
    assert here.ran[-2:] == ["low", "candidate"]
    assert found.result.low_ratio == 1.0 or found.result.parity == "within-envelope"
    assert found.result.passed is True
    assert found.label == "self-check"


def test_a_script_that_ignores_the_precision_is_told_so(tmp_path: Path) -> None:
    script(tmp_path, "dtype = torch.float32")
    found = command.run(asked(tmp_path, dtype="bfloat16"), executor=ScriptsHere())
    assert any("does not follow SHAKEDOWN_PARITY_DTYPE" in note for note in found.result.notes)
    assert found.result.parity == "identical"


def test_an_interrupted_command_goes_on_where_it_was(tmp_path: Path) -> None:
    script(tmp_path)

    def stop(job: ScriptJob) -> None:
        if job.cell == "twin-2":
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="stopped during twin-2"):
        command.run(asked(tmp_path), executor=ScriptsHere(stop))
    going = ScriptsHere()
    assert command.run(asked(tmp_path), executor=going).result.parity == "identical"
    assert going.ran == ["twin-2", "twin-3", "twin-4", "twin-5", "candidate"]


@pytest.mark.parametrize(
    ("here", "each", "said"),
    [
        ("raise SystemExit(0)", "pass", "the script wrote no losses"),
        ("sys.argv[1] = '7'", "pass", "the script wrote 7 losses and --steps asks for 40"),
        ("", "value = float('nan') if step == 12 else value", "the loss is nan at step 12 on the CPU"),
        ("raise OSError('no data')", "pass", "does not run on the CPU (reference: no data)"),
        (
            "device = 'meta' if device == 'neuron' else 'neuron'",
            "pass",
            "trained on neuron, and SHAKEDOWN_PARITY_DEVICE said cpu",
        ),
    ],
)
def test_scripts_that_cannot_be_compared_are_refused(tmp_path: Path, here: str, each: str, said: str) -> None:
    script(tmp_path, here, each)
    with pytest.raises(BadInput) as error:
        command.run(asked(tmp_path), executor=ScriptsHere())
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_script_that_stays_on_the_cpu_is_no_proof_of_the_device(tmp_path: Path) -> None:
    script(tmp_path, "device = 'cpu'")
    with pytest.raises(BadInput, match="candidate: the script trained on cpu, and SHAKEDOWN_PARITY_DEVICE said neuron"):
        command.run(asked(tmp_path, target="neuron"), executor=ScriptsHere())


def test_weights_that_nobody_meets_cannot_be_nudged(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import os, torch\nw = torch.ones(3, requires_grad=True)\nfor step in range(1, 41):\n"
        "    loss = (w * torch.randn(3)).sum()\n    g, = torch.autograd.grad(loss, w)\n    w.data -= 0.01 * g\n"
        "    open(os.environ['SHAKEDOWN_PARITY_LOSSES'], 'a').write(f'{step} {loss.item()!r}\\n')\n"
    )
    with pytest.raises(BadInput, match="twin-1: no weight was met that could be nudged"):
        command.run(asked(tmp_path), executor=ScriptsHere())


def test_a_script_that_fails_on_the_device_is_a_result(tmp_path: Path) -> None:
    script(tmp_path, "assert device == 'cpu', 'only here'")
    found = command.run(asked(tmp_path, target="neuron"), executor=ScriptsHere())
    assert (found.result.parity, found.result.passed) == ("untested", False)
    assert "the script crashed on neuron: only here" in found.result.text


def test_a_script_that_does_not_repeat_itself_has_its_spread_in_the_floor(tmp_path: Path) -> None:
    script(tmp_path, "random.seed()", "value += 0.01 * random.random()")
    found = command.run(asked(tmp_path), executor=ScriptsHere())
    assert found.result.passed is True
    assert any("does not repeat itself" in note for note in found.result.notes)


def test_a_restart_that_loses_state_is_found_and_named(tmp_path: Path) -> None:
    lose = (
        "if step == 35 and device == 'neuron': optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)\n"
        "    if step == 35: open(file, 'a').write('event restart 35 from a checkpoint\\n')"
    )
    script(tmp_path, each=lose)
    found = command.run(asked(tmp_path, target="neuron", steps=60, arguments=("60",)), executor=ScriptsHere())
    assert (found.result.parity, found.result.passed) == ("event", False)
    assert "at the restart that step 35 begins with" in found.result.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.py"], "there is no script missing.py"),
        (["train.py", "--steps", "10"], "--steps 10 is less than one window"),
        (["train.py", "--twins", "4"], "--twins 4 is no envelope"),
        (["train.py", "--dtype", "int4"], "unknown precision 'int4'"),
        (["train.py", "--target", "tpu"], "unknown target 'tpu'"),
        (["train.py", "--tolerance", "0.1"], "give both --tolerance and --at"),
        (["train.py", "--tolerance", "-1", "--at", "10"], "--tolerance -1 allows nothing"),
        (["train.py", "--at", "ten"], "are not steps"),
        (["train.py", "--out", "."], "exists and is left as it is"),
    ],
)
def test_the_command_refuses_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    script(tmp_path)
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app, ["parity", *arguments, "--json"])
    assert ended.exit_code == 2, ended.output
    assert said in json.loads(ended.stdout)["error"]
    assert not (tmp_path / "shakedown-runs").exists()


def test_names_of_the_contract_are_no_settings_of_the_device() -> None:
    import shakedown.neuron

    settings = {value.name for value in vars(shakedown.neuron.config).values() if hasattr(value, "name")}
    assert not {contract.DEVICE, contract.LOSSES, contract.DTYPE} & settings
    assert targets.get("neuron").device == "neuron"
    assert torch.get_num_threads() == 1
