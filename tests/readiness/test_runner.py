"""Processes: each ends in an outcome, whatever becomes of it, and nothing it started outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shakedown.readiness import record, runner, trial
from shakedown.readiness.judge.disposition import CHANGE, INCONCLUSIVE
from shakedown.readiness.judge.results import Outcome
from shakedown.readiness.worker import Job

from ..processes import ends, hear_interrupts
from .support import TINY, InProcess, quick


def ended(tmp_path: Path, code: str, timeout: float = 600.0) -> Outcome:
    job = Job("candidate", str(tmp_path), {}, "eager-float32", "")
    launch = runner.Launch(job, runner.frozen_environment(1, tmp_path / "cache"), tmp_path / "logs", timeout)
    return runner.LocalProcesses((sys.executable, "-c", code)).run(launch)


def test_finished(tmp_path: Path) -> None:
    code = "import json, os, sys; json.load(open(sys.argv[1])); print(os.environ['SHAKEDOWN_CACHE_DIR'])"
    result = ended(tmp_path, code)
    assert (result.status, result.exit_code) == ("finished", 0)
    assert (tmp_path / "logs" / "eager-float32.stdout").read_text().strip() == str(tmp_path / "cache")


def test_a_switch_of_the_callers_does_not_change_a_cells_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAKEDOWN_ADAPTIVE", "1")
    result = ended(tmp_path, "import torch; assert not torch.neuron.adaptive.enabled()")
    assert result.status == "finished", result.reason


def test_crashed_keeps_standard_error(tmp_path: Path) -> None:
    result = ended(tmp_path, "raise RuntimeError('out of tape')")
    assert (result.status, result.exit_code) == ("crashed", 1)
    assert "out of tape" in result.reason
    assert "Traceback" in (tmp_path / str(result.stderr_file)).read_text()


def test_killed_names_the_signal(tmp_path: Path) -> None:
    result = ended(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert (result.status, result.exit_code) == ("killed", -signal.SIGKILL)
    assert "SIGKILL" in result.reason


def test_a_hang_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    said = ""
    for limit in (2.0, 20.0, 200.0):  # on a crowded machine Python may not have started when the first has passed
        result = ended(tmp_path, code, timeout=limit)
        assert result.status == "timeout"
        assert f"still running after {limit:g} s" in result.reason
        said = (tmp_path / "logs" / "eager-float32.stdout").read_text()
        if said:
            break
    assert ends(int(said))


class OneDies:
    """Real processes, but the eager one is killed by a signal when its second case begins."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "dies.py"
        self.script.write_text(
            "import os, signal, sys\n"
            "from shakedown.readiness import candidate, worker\n"
            "whole = candidate.Candidate.case\n"
            "def case(self, shape, name):\n"
            "    if name != '2x8':\n"
            "        os.kill(os.getpid(), signal.SIGKILL)\n"
            "    whole(self, shape, name)\n"
            "candidate.Candidate.case = case\n"
            "sys.exit(worker.main())\n"
        )

    def run(self, launch: runner.Launch) -> Outcome:
        command = (sys.executable, str(self.script)) if launch.job.cell.startswith("eager") else runner.WORKER
        return runner.LocalProcesses(command).run(launch)


@pytest.fixture(scope="module")
def died(tmp_path_factory: pytest.TempPathFactory) -> record.Record:
    folder = tmp_path_factory.mktemp("dies")
    request = trial.Request(
        str(TINY),
        folder / "run",
        target="cpu",
        modes=("eager", "adaptive"),
        dtypes=("float32",),
        cases=("2x8", "1x12", "1x4"),
        requirements=quick(folder),
    )
    return trial.run(request, executor=OneDies(folder))


def test_a_killed_process_is_a_result_and_what_it_finished_is_kept(died: record.Record) -> None:
    eager = next(cell for cell in died.judgement.cells if cell.cell == "eager-float32")
    assert [case.verdict for case in eager.cases] == ["match", "killed", "untested"]
    assert eager.verdict == "killed"
    assert "SIGKILL" in eager.cases[1].reason
    assert died.judgement.decision.disposition == CHANGE
    assert [(one.kind, one.name) for one in died.judgement.decision.changes] == [("shape", "1x12")]
    assert died.exit_code == 1


def test_what_a_process_timed_before_it_died_is_kept(died: record.Record) -> None:
    eager = next(cell for cell in died.judgement.cells if cell.cell == "eager-float32")
    assert eager.cases[0].timing is not None
    assert eager.cases[0].timing.later.n == 5
    assert "self-test" not in eager.cases[0].timing.later.withheld


def test_a_trial_with_nothing_tested_does_not_pass(tmp_path: Path) -> None:
    request = trial.Request(
        str(TINY),
        tmp_path / "run",
        target="cpu",
        modes=("adaptive",),
        dtypes=("float32",),
        cases=("1x4",),
        requirements=quick(tmp_path),
    )
    done = trial.run(request, executor=InProcess())
    assert done.judgement.decision.disposition == INCONCLUSIVE
    assert done.exit_code == 1


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_keeps_evidence_and_says_where_it_is(tmp_path: Path, sign: signal.Signals) -> None:
    """Ctrl-C, or a polite end, while the second process runs: the first one's evidence stays, and no child is left behind."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "shakedown.cli", "run", str(TINY)]
    command += ["--target", "cpu", "--out", str(out), "--requirements", str(quick(tmp_path))]
    process = subprocess.Popen(
        [*command, "--dtype", "fp32", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
    )
    finished, started = (
        out / "evidence" / "reference-float32" / "self-test.json",
        out / "logs" / "eager-float32.job.json",
    )
    for _ in range(20_000):
        if finished.exists() and started.exists():
            break
        time.sleep(0.05)
    os.kill(process.pid, sign)
    stdout, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    assert f"evidence of the finished cells is in {out}/evidence" in json.loads(stdout)["error"]
    assert (out / "evidence" / "reference-float32" / "2x8.json").exists()
    assert not (out / "record.json").exists()
