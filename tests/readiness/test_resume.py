"""An interrupted trial goes on: what has ended is not run again, and nothing that changed meanwhile is mixed in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import record, runner, trial
from shakedown.readiness.errors import BadInput, Interrupted
from shakedown.readiness.judge.results import Outcome

from .support import TINY, InProcess, quick


class Counting(InProcess):
    """Runs cells in this process and stops the trial when `stop` is about to run."""

    def __init__(self, stop: str = "") -> None:
        super().__init__()
        self.stop, self.ran = stop, list[str]()

    def run(self, launch: runner.Launch) -> Outcome:
        if launch.job.cell == self.stop:
            half = launch.logs.parent / "evidence" / launch.job.cell
            half.mkdir(parents=True, exist_ok=True)
            (half / "2x8.json").write_text("{")
            raise KeyboardInterrupt
        self.ran.append(launch.job.cell)
        return super().run(launch)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trial that was stopped while its last cell ran; the workload is a copy that tests may change."""
    folder = tmp_path_factory.mktemp("stopped")
    shutil.copyfile(TINY, folder / "mine.py")
    request = trial.Request(
        str(folder / "mine.py"),
        folder / "run",
        target="cpu",
        modes=("eager", "compiled"),
        dtypes=("float32",),
        cases=("2x8",),
        requirements=quick(folder),
    )
    executor = Counting("compiled-float32")
    with pytest.raises(Interrupted, match="`shakedown resume"):
        trial.run(request, executor=executor)
    assert executor.ran == ["snapshot", "reference-float32", "eager-float32"]
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the stopped trial; its state still names the first copy's workload."""
    return Path(shutil.copytree(stopped, tmp_path / "copy"))


def test_only_what_has_not_ended_is_run(folder: Path) -> None:
    executor = Counting()
    before = (folder / "run" / "evidence" / "eager-float32" / "2x8.json").read_bytes()
    done = trial.resume(folder / "run", executor=executor)
    assert executor.ran == ["compiled-float32", "truth"]
    assert {cell.cell: cell.verdict for cell in done.judgement.cells} == {
        "reference-float32": "match",
        "eager-float32": "match",
        "compiled-float32": "match",
    }
    assert (folder / "run" / "evidence" / "eager-float32" / "2x8.json").read_bytes() == before
    assert record.verify(folder / "run").problems == []
    with pytest.raises(BadInput, match="is finished"):
        trial.resume(folder / "run", executor=executor)


def test_the_requirements_of_the_beginning_hold(folder: Path, stopped: Path) -> None:
    changed = folder / "other.toml"
    changed.write_text((folder / "quick.toml").read_text().replace("steps = 5", "steps = 6"))
    with pytest.raises(BadInput, match=r"changed after they were locked.*timing\.steps.*start a new record"):
        trial.resume(folder / "run", changed, executor=Counting())
    same = Counting()
    trial.resume(folder / "run", folder / "quick.toml", executor=same)
    assert same.ran == ["compiled-float32", "truth"]


@pytest.mark.parametrize(
    ("name", "words"), [("requirements.json", "requirements.json changed"), ("snapshot/snapshot.json", "the snapshot")]
)
def test_what_the_evidence_rests_on_must_not_change(folder: Path, name: str, words: str) -> None:
    path = folder / "run" / name
    path.write_text(path.read_text().replace("\n", " \n", 1))
    with pytest.raises(BadInput, match=words):
        trial.resume(folder / "run", executor=Counting())


def test_a_changed_workload_is_refused(stopped: Path) -> None:
    text = (stopped / "mine.py").read_text()
    (stopped / "mine.py").write_text(text + "# edited\n")
    try:
        with pytest.raises(BadInput, match="the workload changed since it began. Start a new record"):
            trial.resume(stopped / "run", executor=Counting())
    finally:
        (stopped / "mine.py").write_text(text)


def test_there_must_be_something_to_go_on_with(folder: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.app, ["resume", str(tmp_path / "nowhere")])
    assert done.exit_code == 2
    assert "there is no trial in" in done.stderr
    arguments = ["run", str(TINY), "--target", "cpu", "--out", str(folder / "run")]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 2
    assert "shakedown resume" in done.stderr
