"""The GitHub Actions example: every action exists, every command is ours as it is now, and the steps run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import record as records
from shakedown.readiness import trial

from .resealed import KEPT
from .support import InProcess

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "github-actions.yml"
ACTIONS = {"actions/checkout@v4", "actions/setup-python@v5", "actions/cache@v4", "actions/upload-artifact@v4"}
run = CliRunner()


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    return yaml.safe_load(EXAMPLE.read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def job(workflow: dict[Any, Any]) -> dict[str, Any]:
    return workflow["jobs"]["rehearsal"]  # type: ignore[no-any-return]


def evaluated(script: str, new_baseline: bool) -> str:
    """The script as GitHub hands it to bash: the one expression that the example uses is put in."""

    def value(found: re.Match[str]) -> str:
        choice = re.fullmatch(r"!inputs\.new_baseline && '([^']*)' \|\| ''", found[1].strip())
        assert choice is not None, f"the test does not know the expression {found[0]}"
        return "" if new_baseline else choice[1]

    return re.sub(r"\$\{\{(.*?)\}\}", value, script)


def commands(job: dict[str, Any], new_baseline: bool = False) -> list[list[str]]:
    """Arguments of every shakedown command of the job, with its variables put in."""
    found = []
    for step in job["steps"]:
        for line in evaluated(step.get("run", ""), new_baseline).splitlines():
            words = shlex.split(line)
            if words[:1] == ["shakedown"]:
                found.append([job["env"].get(word.removeprefix("$"), word) for word in words[1:]])
    return found


def options_of(*names: str) -> set[str]:
    command: Any = typer.main.get_command(cli.app)
    for name in names:
        command = command.commands[name]
    return {option for parameter in command.params for option in parameter.opts}


def test_it_is_a_workflow_of_known_actions_that_may_only_read(workflow: dict[Any, Any], job: dict[str, Any]) -> None:
    triggers = workflow[True]  # YAML 1.1 takes `on` for a truth value; GitHub takes it for the word
    assert set(triggers) == {"pull_request", "workflow_dispatch"}
    assert triggers["workflow_dispatch"]["inputs"]["new_baseline"]["type"] == "boolean"
    assert workflow["permissions"] == {"contents": "read"}
    assert {step["uses"] for step in job["steps"] if "uses" in step} == ACTIONS
    assert all(("uses" in step) != ("run" in step) for step in job["steps"])
    assert job["timeout-minutes"] <= 60


def test_every_command_and_option_is_known(job: dict[str, Any]) -> None:
    for new_baseline in (False, True):
        found = commands(job, new_baseline)
        assert [words[0] for words in found] == ["run"]
        for words in found:
            assert {word for word in words if word.startswith("--")} <= options_of(words[0])
        assert ("--baseline" in found[0]) != new_baseline


@pytest.mark.parametrize("page", ["ci.md", "compare.md"])
def test_options_in_the_pages_are_known(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    for line in re.findall(r"^shakedown (.*)$", text, re.MULTILINE):
        words = shlex.split(line.replace("[", "").replace("]", "").replace("|", ""))
        assert {word for word in words if word.startswith("--")} <= options_of(words[0])
    assert set(re.findall(r"`(--[a-z-]+)", text)) <= options_of("run") | options_of("compare") | options_of("junit")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / "docs" / link).exists(), link


def test_the_steps_run_as_they_stand(job: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run makes the baseline, the second one is compared with it; both with a small workload and in this process."""
    monkeypatch.setattr(trial, "LocalProcesses", InProcess)
    monkeypatch.chdir(tmp_path)
    small = ["--target", "cpu", "--modes", "eager"]
    workload = shutil.copyfile(KEPT / "workload.py", tmp_path / "smallest.py")
    summary = next(step["run"] for step in job["steps"] if step.get("name") == "Summary")
    for new_baseline in (True, False):
        (words,) = commands(job, new_baseline)
        done = run.invoke(
            cli.app, [str(workload) if word == job["env"]["WORKLOAD"] else word for word in words] + small
        )
        assert done.exit_code == 0, done.output
        out = tmp_path / "summary.md"
        out.unlink(missing_ok=True)
        subprocess.run(["bash", "-e", "-c", summary], check=True, env=os.environ | {"GITHUB_STEP_SUMMARY": str(out)})
        assert "# Trial of smallest" in out.read_text()
        assert out.read_text().startswith("# Trial" if new_baseline else "# Comparison")
        kept = next(step["with"]["path"] for step in job["steps"] if "upload" in step.get("uses", "")).split()
        assert all((tmp_path / name).exists() for name in kept if not name.startswith("!"))
        assert all((tmp_path / name[1:]).is_dir() for name in kept if name.startswith("!"))
        assert (tmp_path / "shakedown-run" / "report.html").exists()
        assert ("No regression" in done.stdout) != new_baseline
        assert records.verify(tmp_path / "shakedown-run").problems == []
        if new_baseline:  # what docs/ci.md says to commit
            baseline = tmp_path / job["env"]["BASELINE"]
            baseline.mkdir(parents=True)
            shutil.copyfile(tmp_path / "shakedown-run" / "record.json", baseline / "record.json")
            shutil.rmtree(tmp_path / "shakedown-run")
