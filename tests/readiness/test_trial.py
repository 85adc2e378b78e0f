"""A whole trial through the command line, in real processes; then what may be done with its record."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import shakedown
from shakedown import cli
from shakedown.readiness import record as records
from shakedown.readiness.errors import RecordError
from shakedown.readiness.judge.disposition import SUITABLE

from .support import TINY, quick

run = CliRunner()


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny workload on the CPU in both modes, one precision, its first case repeated at the end."""
    folder = tmp_path_factory.mktemp("trial")
    options = ["--target", "cpu", "--dtype", "fp32", "--case", "2x8,1x12", "--case", "2x8"]
    done = run.invoke(
        cli.app,
        ["run", str(TINY), *options, "--requirements", str(quick(folder)), "--out", str(folder / "run")],
    )
    assert done.exit_code == 0, done.output
    assert "Decision (self-check)" in done.output
    assert "record.json" in done.output
    return folder / "run"


@pytest.fixture
def copy(out: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(out, tmp_path / "copy"))


def verify(folder: Path) -> tuple[int, dict[str, object]]:
    done = run.invoke(cli.app, ["verify", str(folder), "--json"])
    return done.exit_code, json.loads(done.stdout)


def test_every_tested_cell_matches(out: Path) -> None:
    record = records.load(out)
    verdicts = {cell.cell: cell.verdict for cell in record.judgement.cells}
    assert verdicts == {
        "reference-float32": "match",
        "eager-float32": "match",
        "compiled-float32": "match",
        "adaptive-float32": "untested",
    }
    assert record.label == "self-check"
    assert [case.case for case in record.judgement.cells[0].cases] == ["2x8", "1x12", "2x8#2"]


def test_a_case_that_is_repeated_starts_from_the_snapshot_again(out: Path) -> None:
    cases = {case.case: case for case in records.load(out).judgement.cells[1].cases}
    assert cases["2x8"].losses["device_step1"] == cases["2x8#2"].losses["device_step1"]
    assert cases["2x8"].losses["device_step3"] == cases["2x8#2"].losses["device_step3"]
    assert cases["2x8"].losses["device_last"] < cases["2x8"].losses["device_step1"]


def test_evidence_holds_all_that_was_promised(out: Path) -> None:
    record = records.load(out)
    for cell in ("eager-float32", "compiled-float32"):
        raw = json.loads((out / "evidence" / cell / "2x8.json").read_text())
        kept = {(t["step"], t["role"]) for t in raw["tensors"]}
        assert {(s, r) for s in (1, 3) for r in ("output", "loss", "gradient", "weight")} <= kept
        assert {row["phase"] for row in raw["paths"]["later_step"]} == {"forward", "backward", "optimizer"}
        assert set(raw["timings"]["first_step"]) == {"data", "forward", "backward", "optimizer"}
        assert len(raw["timings"]["later"]["seconds"]) == 5
        assert raw["moved_exactly"]
        assert raw["startup"]["import_torch"] > 0
        assert (out / "evidence" / cell / "self-test.json").exists()
    assert raw["graphs"]["captured"] >= 1
    assert record.snapshot["dropout_switched_off"] == ["drop"]
    assert record.identity["fixed"]["environment"]["PYTHONHASHSEED"] == "0"
    assert record.identity["fixed"]["versions"]["torch"]


def test_the_record_names_every_file_by_hash(out: Path) -> None:
    record = records.load(out)
    on_disk = {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}
    assert on_disk - record.files.keys() == {"record.json", "report.md", "report.html"}
    assert record.files["workload.py"].nbytes == TINY.stat().st_size


def test_report_says_what_it_is_and_what_was_not_tested(out: Path) -> None:
    report = (out / "report.md").read_text()
    assert report.startswith("# Trial of tiny on cpu (self-check)\n\n> **Self-check")
    assert "adaptive-float32: the target cpu has no adaptive mode" in report
    assert "distribution over several devices" in report
    assert "not seen" in report  # fallbacks cannot be seen on this target, and nothing is filled in
    assert all(line.count("|") >= 3 for line in report.splitlines() if line.startswith("|"))


def test_record_verifies_where_it_was_made_and_elsewhere(out: Path, copy: Path) -> None:
    for folder in (out, copy):
        code, result = verify(folder)
        assert (code, result["verified"], result["problems"]) == (0, True, [])
        assert result["decision_judged_again"] == SUITABLE


def test_judging_again_gives_the_same_decision_and_needs_no_torch(copy: Path) -> None:
    code = (
        "import sys; from shakedown import cli; sys.argv = ['shakedown', 'judge', sys.argv[1], '--json']\n"
        "try: cli.main()\n"
        "finally: print([m for m in ('torch', 'jax') if m in sys.modules], file=sys.stderr)"
    )
    before = sorted(copy.rglob("*"))
    done = subprocess.run([sys.executable, "-c", code, str(copy)], capture_output=True, text=True, check=False)
    made = json.loads(done.stdout)
    assert (done.returncode, made["recorded"], made["same"]) == (0, SUITABLE, True)
    assert made["decision"] == records.load(copy).judgement.decision.model_dump(mode="json")
    assert done.stderr.splitlines()[-1] == "[]"
    assert sorted(copy.rglob("*")) == before


def test_a_trial_that_was_interrupted_is_judged_from_what_has_ended(copy: Path) -> None:
    (copy / "record.json").unlink()
    shutil.rmtree(copy / "evidence" / "compiled-float32")
    done = run.invoke(cli.app, ["judge", str(copy), "--json"])
    made = json.loads(done.output)
    assert (done.exit_code, made["recorded"], made["same"]) == (0, None, None)
    said = [s["text"] for r in made["decision"]["results"] for s in r["statements"] if s["kind"] == "open"]
    assert any("compiled-float32" in text and "the trial stopped before it" in text for text in said)
    assert not (copy / "record.json").exists()


def test_a_directory_without_a_trial_is_bad_input(tmp_path: Path) -> None:
    done = run.invoke(cli.app, ["judge", str(tmp_path)])
    assert done.exit_code == 2
    assert "there is no trial in" in done.output


def test_a_changed_tensor_is_found_and_not_judged(copy: Path) -> None:
    raw = json.loads((copy / "evidence" / "eager-float32" / "2x8.json").read_text())
    file = copy / raw["tensors_file"]
    data = bytearray(file.read_bytes())
    data[-3] ^= 0x40
    file.unlink()
    file.write_bytes(data)
    code, result = verify(copy)
    assert code == 1
    assert f"{raw['tensors_file']} was changed" in str(result["problems"])


@pytest.mark.parametrize("name", ["evidence/compiled-float32/1x12.json", "snapshot/weights.safetensors"])
def test_a_missing_file_is_found(copy: Path, name: str) -> None:
    (copy / name).unlink()
    code, result = verify(copy)
    assert code == 1
    assert f"{name} is missing" in str(result["problems"])


def test_a_verdict_cannot_be_edited_even_under_a_new_seal(copy: Path) -> None:
    path = copy / "record.json"
    raw = json.loads(path.read_text())
    raw["judgement"]["decision"]["disposition"] = "blocked"
    raw["judgement"]["cells"][1]["verdict"] = "mismatch"
    path.write_text(json.dumps(raw))
    assert "changed after it was sealed" in str(verify(copy)[1]["problems"])
    raw["seal"] = records.seal_of(records.Record.model_validate(raw))
    path.write_text(json.dumps(raw))
    code, result = verify(copy)
    assert code == 1
    assert "'mismatch' and is 'match' when judged again" in str(result["problems"])


def test_tolerances_cannot_be_loosened_afterwards(copy: Path) -> None:
    path = copy / "requirements.json"
    raw = json.loads(path.read_text())
    raw["values"]["numerics"]["rounding_factor"] = 400.0
    path.write_text(json.dumps(raw))
    code, result = verify(copy)
    assert code == 1
    assert "requirements.json was changed" in str(result["problems"])


def test_evidence_of_two_hosts_is_not_blended(copy: Path) -> None:
    """A file from another machine, with every hash put right, still does not become part of this trial."""
    path = copy / "evidence" / "eager-float32" / "2x8.json"
    raw = json.loads(path.read_text())
    raw["identity"]["fixed"]["host"] = "elsewhere"
    path.write_text(json.dumps(raw))
    _, result = verify(copy)
    assert "eager-float32 was 'match' and is 'untested' when judged again" in str(result["problems"])


def test_records_of_other_versions_are_refused(copy: Path) -> None:
    path = copy / "record.json"
    path.write_text(path.read_text().replace(records.SCHEMA, "shakedown.record/99"))
    with pytest.raises(RecordError, match="record/99"):
        records.load(copy)
    done = run.invoke(cli.app, ["verify", str(copy)])
    assert done.exit_code == 2
    assert run.invoke(cli.app, ["verify", str(copy / "nowhere")]).exit_code == 2


def test_version() -> None:
    done = run.invoke(cli.app, ["--version"])
    assert (done.exit_code, done.stdout.strip()) == (0, f"shakedown {shakedown.__version__}")
