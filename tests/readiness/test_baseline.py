"""``shakedown run --baseline``: what is refused before anything runs, and what the exit code says after it."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import compare, requirements, state, trial, workload
from shakedown.readiness import record as records
from shakedown.readiness.compare import Comparison, Opened
from shakedown.readiness.evidence import sha256, write, write_atomic

from . import comparing
from .comparing import CASE, resealed
from .resealed import KEPT

run = CliRunner()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rehearsal of one case in which all is well."""
    return comparing.made(tmp_path_factory.mktemp("base") / "run")


@pytest.fixture(scope="module")
def broken(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a gradient that is half a per cent too large."""
    return comparing.broken(base, tmp_path_factory.mktemp("broken") / "run")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The workload of the kept trial, under its name."""
    return Path(shutil.copyfile(KEPT / "workload.py", tmp_path / "smallest.py"))


def options(file: Path, *more: str) -> list[str]:
    asked = ["--target", "neuron", "--modes", "eager,adaptive", "--dtype", "float32", "--case", CASE]
    return ["run", str(file), *asked, *more]


def test_the_exit_code_of_a_run_is_that_of_its_comparison(
    base: Path, broken: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs is a trial that has been run: the example for pipelines is run for real, by its own test."""

    def known(request: trial.Request, show: Any) -> Any:
        shutil.copytree(broken, request.out)
        return records.load(request.out)

    monkeypatch.setattr(trial, "run", known)
    for baseline, code, words in ((base, 1, "matched and is a mismatch now"), (broken, 0, "still does")):
        out = tmp_path / f"run{code}"
        done = run.invoke(cli.app, options(file, "--out", str(out), "--baseline", str(baseline)))
        assert done.exit_code == code, done.output
        assert words in " ".join(done.stdout.split()).replace("│ ", "")
        kept = Comparison.model_validate_json((out / "comparison.json").read_text())
        assert kept.before.seal == records.load(baseline).seal
        assert (out / "comparison.md").read_text().startswith("# Comparison")
        assert "comparison.md" in done.stdout
        assert "Who measured" not in done.stdout  # after a run, what decides; the file has the rest
    done = run.invoke(cli.app, options(file, "--out", str(tmp_path / "j"), "--baseline", str(base), "--json"))
    assert done.exit_code == 1
    assert json.loads(done.stdout)["seal"] == records.load(broken).seal
    assert "comparison.md" in done.stderr


def test_a_comparison_that_is_refused_after_the_run_costs_no_record(
    base: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other weights are known only once they are made: the record is shown, and the exit code says bad input."""

    def weights(raw: dict[str, Any]) -> None:
        raw["snapshot_sha256"] = "1" * 64
        raw["snapshot"]["files"]["weights.safetensors"] = "1" * 64

    def known(request: trial.Request, show: Any) -> Any:
        return records.load(resealed(base, request.out, weights))

    monkeypatch.setattr(trial, "run", known)
    done = run.invoke(cli.app, options(file, "--out", str(tmp_path / "run"), "--baseline", str(base), "--json"))
    assert done.exit_code == 2
    assert json.loads(done.stdout)["label"] == "rehearsal"
    assert "weights.safetensors is not the same" in done.stderr
    assert not (tmp_path / "run" / "comparison.json").exists()
    allowed = ["--out", str(tmp_path / "again"), "--baseline", str(base), "--allow-different-workload"]
    done = run.invoke(cli.app, options(file, *allowed))
    assert done.exit_code == 0, done.output
    assert "DIFFERENT WORKLOADS" in done.stdout


def test_a_baseline_is_checked_before_anything_runs(base: Path, file: Path, tmp_path: Path) -> None:
    def nothing(raw: dict[str, Any]) -> None:
        for result in raw["judgement"]["cells"]:
            result["verdict"] = "untested"

    changed = {
        "workload": lambda raw: raw["trial"].update(workload_sha256="0" * 64),
        "nothing": nothing,
        "whole": lambda raw: None,
        "target": lambda raw: raw["trial"].update(target="cuda"),
        "mode": lambda raw: raw["trial"].update(modes=["eager", "compiled"]),
        "case": lambda raw: raw["trial"].update(cases=[CASE, "4x8", "4x8#2"]),
    }
    words = {
        "workload": "the file of the workload smallest was changed",
        "nothing": "tested nothing",
        "whole": "without --quick",
        "target": "of the target cuda",
        "mode": "the mode compiled",
        "case": "the case 4x8, which",
        "missing": "there is no record",
    }
    for name, said in words.items():
        baseline = tmp_path / name
        if name in changed:
            resealed(base, baseline, changed[name], keep=False)
        more = ["--quick"] if name == "whole" else []
        done = run.invoke(cli.app, options(file, "--out", str(tmp_path / "run"), "--baseline", str(baseline), *more))
        assert (done.exit_code, said in done.stderr) == (2, True), (name, done.output)
        assert not (tmp_path / "run").exists()
    done = run.invoke(cli.app, options(file, "--out", str(tmp_path / "run"), "--allow-different-workload"))
    assert done.exit_code == 2
    assert "--baseline" in done.stderr


def test_resume_takes_a_baseline_too(base: Path, file: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "run"
    shutil.copytree(base / "snapshot", stopped / "snapshot")
    source = workload.resolve(str(file))
    begun = state.new(
        workload={"name": source.name, "path": str(source.path), "sha256": source.sha256},
        target="neuron",
        modes=["eager", "adaptive"],
        dtypes=["float32"],
        plain=[CASE],
        varied={},
        quick=True,
        trace=False,
        timeout_seconds=None,
        requirements_sha256=requirements.lock(requirements.Requirements(), stopped / "requirements.json"),
        snapshot_sha256=sha256(stopped / "snapshot" / "snapshot.json"),
    )
    write(begun, stopped / "trial.json")
    for edit, words in (
        (
            lambda raw: raw["trial"].update(workload="cnn", workload_sha256="0" * 64),
            "about cnn and the other about smallest",
        ),
        (lambda raw: None, "a whole trial, and a quick one has fewer processes"),
    ):
        other = resealed(base, tmp_path / hashlib.sha256(words.encode()).hexdigest(), edit, keep=False)
        done = run.invoke(cli.app, ["resume", str(stopped), "--baseline", str(other)])
        assert done.exit_code == 2
        assert words in done.stderr
    assert not (stopped / "record.json").exists()


def test_a_comparison_beside_a_record_is_not_part_of_it(base: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(base, tmp_path / "copy"))
    write_atomic(copy / "comparison.md", b"# made from it")
    again = records.seal(copy, dict(records.load(copy).trial), records.load(copy).cells)
    assert "comparison.md" not in again.files


def test_an_opened_record_gives_no_file_that_it_does_not_name(base: Path) -> None:
    side: Opened = compare.opened(base)
    assert side.path("snapshot/weights.safetensors") is not None
    assert side.path("../base/record.json") is None
    assert side.path("report.md") is None
