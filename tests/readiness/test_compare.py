"""What changed between two records: every verdict that got lost is seen, and no time is divided that must not be."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import compare, requirements, state, trial, workload
from shakedown.readiness import record as records
from shakedown.readiness.compare import Comparison, Opened, verdicts
from shakedown.readiness.errors import BadInput
from shakedown.readiness.evidence import sha256, write, write_atomic
from shakedown.readiness.judge.results import Cell
from shakedown.readiness.record import sealing
from shakedown.readiness.report import comparison as page

from .resealed import KEPT

CASE, EAGER, CPU = "2x3", "eager-float32", "reference-float32"
run = CliRunner()
Edit = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kept evidence of a real trial of one case, judged and sealed today; every interval from a few hundred draws.

    It was measured on the CPU. Here it passes for a rehearsal, so that operators may fall back.
    """
    out = tmp_path_factory.mktemp("base") / "run"
    shutil.copytree(KEPT, out)
    locked = out / "requirements.json"
    edited(locked, lambda raw: raw["values"]["resampling"].update(draws=300))

    def rehearsed(raw: dict[str, Any]) -> None:
        raw["requirements_sha256"] = sha256(locked)
        if raw.get("cell") == EAGER:
            raw["identity"]["also"]["family"] = "rehearsal"
        if "paths" in raw:
            raw["paths"] |= {"unobservable": {}, "first_step": raw["paths"]["later_step"]}

    for path in (*out.glob(f"evidence/*/{CASE}.json"), *out.glob("evidence/truth/*.json")):
        edited(path, rehearsed)
    known = records.load(KEPT)
    cells = [cell if cell.id == CPU else cell.model_copy(update={"target": "neuron"}) for cell in known.cells]
    records.seal(out, dict(known.trial) | {"target": "neuron"}, cells)
    return out


def edited(path: Path, edit: Edit) -> None:
    raw = json.loads(path.read_text())
    edit(raw)
    path.write_text(json.dumps(raw))


def judged_again(base: Path, out: Path, change: Callable[[Path], list[Cell] | None]) -> Path:
    """A copy of the trial whose evidence `change` has altered, judged and sealed as any trial is; with the processes that
    it returns, if any.
    """
    shutil.copytree(base, out)
    known = records.load(out)
    records.seal(out, dict(known.trial), change(out) or known.cells)
    return out


def resealed(base: Path, out: Path, edit: Edit, keep: bool = True) -> Path:
    """A copy whose record says something else under a seal that fits; without `keep`, of the record alone."""
    if keep:
        shutil.copytree(base, out)
    else:
        out.mkdir()
    raw = json.loads((base / "record.json").read_text())
    edit(raw)
    raw["seal"] = sealing.digest(raw)
    (out / "record.json").write_text(json.dumps(raw))
    return out


def compared(before: Path, after: Path, allow: bool = False) -> Comparison:
    return compare.compare(compare.opened(before), compare.opened(after), allow)


# --- verdicts -----------------------------------------------------------------------------------------------------------


def test_a_record_beside_itself_changes_nothing(base: Path) -> None:
    found = compared(base, base)
    assert (found.exit_code, found.regressions, found.verdicts, found.results) == (0, [], [], [])
    assert (found.identity, found.requirements, found.tensors, found.findings) == ([], [], [], [])
    assert found.unchanged == 2
    assert found.same_workload


@pytest.fixture(scope="module")
def broken(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same trial, whose device made a gradient that is half a per cent too large."""

    def change(root: Path) -> None:
        path = root / "evidence" / EAGER / f"{CASE}.json"
        raw = json.loads(path.read_text())
        values = load_file(root / raw["tensors_file"])
        values["step1/gradient/weight"] = values["step1/gradient/weight"] * np.float32(1.005)
        new = root / "evidence" / "tensors" / "wrong.safetensors"
        save_file(values, new)
        old = raw["tensors_sha256"]
        raw |= {"tensors_file": "evidence/tensors/wrong.safetensors", "tensors_sha256": sha256(new)}
        path.write_text(json.dumps(raw))
        truth = json.loads((root / "evidence" / "truth" / f"{old[:16]}.json").read_text())
        truth["of_tensors_sha256"] = sha256(new)
        (root / "evidence" / "truth" / f"{sha256(new)[:16]}.json").write_text(json.dumps(truth))

    return judged_again(base, tmp_path_factory.mktemp("broken") / "run", change)


def test_a_cell_that_matched_and_does_not_is_a_regression(base: Path, broken: Path) -> None:
    found = compared(base, broken)
    changed = {(one.cell, one.case): one for one in found.verdicts}
    assert changed[EAGER, ""].change == changed[EAGER, CASE].change == "broken"
    assert changed[EAGER, ""].regression
    assert "gradient/weight" in changed[EAGER, CASE].why
    assert found.exit_code == 1
    assert any(text.startswith(f"{EAGER} matched and is a mismatch now") for text in found.regressions)
    results = {one.name: one for one in found.results}
    assert results["disposition"].before == "suitable for the tested path"
    assert results["disposition"].regression
    assert (results["correctness"].before, results["correctness"].after) == ("met", "not met")
    worst = next(one for one in found.margins if one.mode == "eager")
    assert worst.before is not None
    assert worst.after is not None
    assert worst.before < 1 < worst.after
    assert found.tensors[0].tensor == "step1/gradient/weight"
    assert found.tensors[0].after > 1 > found.tensors[0].before


def test_the_other_way_round_it_is_fixed(base: Path, broken: Path) -> None:
    found = compared(broken, base)
    assert {one.change for one in found.verdicts} == {"fixed"}
    assert found.exit_code == 0


def test_what_failed_before_is_shown_and_no_regression(broken: Path) -> None:
    found = compared(broken, broken)
    assert {one.change for one in found.verdicts} == {"still fails"}
    assert found.exit_code == 0
    assert "1 process failed before and still does" in page.headline(found)


def test_what_was_tested_and_is_not_is_a_regression(base: Path, broken: Path, tmp_path: Path) -> None:
    def remove(root: Path) -> None:
        (root / "evidence" / EAGER / f"{CASE}.json").unlink()

    def stopped(raw: dict[str, Any]) -> None:
        cell = next(cell for cell in raw["cells"] if cell["id"] == EAGER)
        cell["outcome"] |= {"status": "untested", "reason": "no such machine today"}

    untested = resealed(base, tmp_path / "untested", stopped)
    untested = judged_again(untested, tmp_path / "judged", remove)
    found = compared(base, untested)
    assert {one.change for one in found.verdicts} == {"no longer tested"}
    assert f"{EAGER} matched and is not tested now: no such machine today" in found.regressions
    again = compared(untested, base)
    assert {one.change for one in again.verdicts} == {"newly tested"}
    assert again.exit_code == 0
    lost_failure = [one for one in compared(broken, untested).verdicts if one.cell == EAGER]
    assert {one.change for one in lost_failure} == {"no longer tested"}
    assert not any(one.regression for one in lost_failure)

    def gone(raw: dict[str, Any]) -> None:
        raw["cells"] = [cell for cell in raw["cells"] if cell["id"] != EAGER]
        raw["judgement"]["cells"] = [cell for cell in raw["judgement"]["cells"] if cell["cell"] != EAGER]

    smaller = compared(base, resealed(base, tmp_path / "gone", gone, keep=False))
    assert f"{EAGER} matched and is not tested now: this record has no such process" in smaller.regressions


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ("match", "match", None),
        ("match", "crashed", "broken"),
        ("match", "untested", "no longer tested"),
        ("match", None, "no longer tested"),
        ("mismatch", "timeout", "still fails"),
        ("killed", "match", "fixed"),
        ("untested", "match", "newly tested"),
        (None, "mismatch", "fails now"),
        ("untested", None, None),
    ],
)
def test_what_becomes_of_a_verdict(before: Any, after: Any, change: str | None) -> None:
    assert verdicts.kind_of(before, after) == change


def test_findings_and_fallbacks_that_are_new_or_gone(base: Path, tmp_path: Path) -> None:
    def falls_back(root: Path) -> None:
        row = {"kind": "fallback", "name": "aten::gelu", "phase": "forward", "detail": "no lowering", "count": 1}

        def edit(raw: dict[str, Any]) -> None:
            raw["paths"]["later_step"].append(row | {"seconds": 0.001, "nbytes": 64, "where": "host"})

        edited(root / "evidence" / EAGER / f"{CASE}.json", edit)

    after = judged_again(base, tmp_path / "after", falls_back)
    found = compared(base, after)
    assert [(one.change, one.name, one.phase, one.modes) for one in found.fallbacks] == [
        ("new", "aten::gelu", "forward", ["eager"])
    ]
    new = [one for one in found.findings if one.change == "new"]
    assert any("fallback" in one.word and one.where == [f"{EAGER} {CASE}"] for one in new)
    assert next(one for one in found.results if one.name == "execution path").regression
    assert found.exit_code == 1
    back = compared(after, base)
    assert [one.change for one in back.fallbacks] == ["gone"]
    assert {one.change for one in back.findings} == {"gone"}
    effect = compare.effect(after, base)
    assert (effect.fallbacks_before, effect.fallbacks_after, effect.problem) == (1, 0, "")


def test_graphs_that_differ_are_counted(base: Path, tmp_path: Path) -> None:
    problem = {"kind": "capture", "cause": "host read", "text": "item()", "place": "smallest.py:30", "count": 2}
    summary = {
        "captured": 1,
        "graph_runs": 4,
        "compiled_again": 0,
        "ran_eager": 0,
        "whole": True,
        "whole_reason": "",
        "full_graph": None,
        "share_outside": None,
        "operators_outside": {},
        "problems": [],
        "ledger": [],
    }
    sides = []
    for name, changed in (("one", {}), ("other", {"problems": [problem], "compiled_again": 3})):
        sides.append(
            resealed(
                base,
                tmp_path / name,
                lambda raw, changed=changed: raw["judgement"].update(graphs={EAGER: summary | changed}),
                keep=False,
            )
        )
    found = compared(*sides)
    assert {one.what: (one.before, one.after) for one in found.graphs} == {
        "graph breaks": (0, 2),
        "compiled again": (0, 3),
    }
    assert compare.effect(*sides).graph_breaks_after == 2


# --- what may be compared -----------------------------------------------------------------------------------------------


def test_a_changed_workload_is_refused_and_labelled_when_allowed(base: Path, tmp_path: Path) -> None:
    other = resealed(base, tmp_path / "other", lambda raw: raw["trial"].update(workload_sha256="0" * 64), keep=False)
    done = run.invoke(cli.app, ["compare", str(base), str(other)])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert "the file of the workload smallest was changed" in done.stderr
    assert "--allow-different-workload" in done.stderr
    found = compared(base, other, allow=True)
    assert not found.same_workload
    assert found.cautions[0].startswith("DIFFERENT WORKLOADS")
    assert all(one.ratio is None and "workloads differ" in one.why for one in found.steps)
    effect = compare.effect(base, other)
    assert "was changed" in effect.problem
    assert effect.steps == []


def test_weights_must_be_the_same(base: Path, tmp_path: Path) -> None:
    def weights(raw: dict[str, Any]) -> None:
        raw["snapshot_sha256"] = "1" * 64
        raw["snapshot"]["files"]["weights.safetensors"] = "1" * 64

    with pytest.raises(BadInput, match="weights.safetensors is not the same"):
        compared(base, resealed(base, tmp_path / "weights", weights, keep=False))


def test_a_record_with_one_case_more_is_of_the_same_workload(base: Path, tmp_path: Path) -> None:
    def sides(name: str, edit: Callable[[dict[str, np.ndarray]], None]) -> Path:
        copy = Path(shutil.copytree(base, tmp_path / f"copy-{name}"))
        file = copy / "snapshot" / "batches.safetensors"
        batches = load_file(file)
        edit(batches)
        save_file(batches, file)

        def said(raw: dict[str, Any]) -> None:
            raw["snapshot_sha256"] = "1" * 64
            raw["snapshot"]["files"]["batches.safetensors"] = sha256(file)
            raw["files"]["snapshot/batches.safetensors"] = {"nbytes": file.stat().st_size, "sha256": sha256(file)}

        return resealed(copy, tmp_path / name, said)

    more = sides("more", lambda batches: batches.update({"9x9/1/x": np.zeros((9, 9), np.float32)}))
    assert compared(base, more).same_workload
    other = sides("other", lambda batches: batches.update({f"{CASE}/1/x": batches[f"{CASE}/1/x"] * 2}))
    with pytest.raises(BadInput, match=f"different batches: {CASE}/1/x"):
        compared(base, other)
    alone = resealed(more, tmp_path / "alone", lambda raw: None, keep=False)
    with pytest.raises(BadInput, match="cannot be shown that common batches are the same"):
        compared(base, alone)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda root: shutil.rmtree(root), "there is no record"),
        (lambda root: (root / "record.json").write_text("{"), "is not a record"),
        (lambda root: edited(root / "record.json", lambda raw: raw.update(label="measurement")), "after it was sealed"),
    ],
)
def test_a_record_that_cannot_be_trusted_is_bad_input(
    base: Path, tmp_path: Path, make: Callable[[Path], Any], words: str
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copyfile(base / "record.json", other / "record.json")
    make(other)
    done = run.invoke(cli.app, ["compare", str(base), str(other), "--json"])
    assert done.exit_code == 2
    assert words in json.loads(done.stdout)["error"]


def test_a_sealed_record_whose_parts_do_not_fit_is_bad_input(base: Path, tmp_path: Path) -> None:
    odd = resealed(base, tmp_path / "odd", lambda raw: raw.update(cells=raw["cells"][:1]), keep=False)
    with pytest.raises(BadInput, match="processes and their verdicts do not belong together"):
        compare.opened(odd)


def test_changed_requirements_are_said(base: Path, tmp_path: Path) -> None:
    after = resealed(
        base, tmp_path / "after", lambda raw: raw["requirements"]["numerics"].update(rounding_factor=8.0), keep=False
    )
    found = compared(base, after)
    assert found.requirements == ["numerics.rounding_factor: 4.0 -> 8.0"]
    assert any("requirements were changed (1 key)" in text for text in found.cautions)


def test_records_of_older_versions_are_compared_in_what_they_hold() -> None:
    kept = Path(__file__).with_name("records")
    found = compared(kept / "version1", kept / "version2")
    assert (found.regressions, found.requirements) == ([], [])
    assert (found.before.upgraded_from, found.after.upgraded_from) == ("shakedown.record/1", "shakedown.record/2")
    assert ("machine", "not recorded") in [(one.name, one.before) for one in found.identity]
    assert all("same host cannot be shown" in one.why for one in found.steps)
    assert any("had no decision" in text for text in found.cautions)
    assert not any(one.name == "disposition" for one in found.results)


def test_identity_says_what_is_the_point_and_what_forbids_a_ratio(base: Path, tmp_path: Path) -> None:
    def elsewhere(raw: dict[str, Any]) -> None:
        raw["identity"]["fixed"] |= {"host": "another", "torch": "9.9"}
        raw["identity"]["cells"][EAGER]["deterministic"] = True

    found = compared(base, resealed(base, tmp_path / "after", elsewhere))
    assert {(one.group, one.name) for one in found.identity} == {
        ("host", "host"),
        ("software", "torch"),
        ("settings", f"deterministic ({EAGER})"),
    }
    assert all(one.ratio is None for one in found.steps)


# --- times --------------------------------------------------------------------------------------------------------------


def timed(base: Path, out: Path, cpu: float, eager: float, processes: int = 5) -> Path:
    """A trial whose steps take about so many seconds, in so many processes a side."""

    def change(root: Path) -> list[Cell]:
        known = records.load(root)
        cells = []
        for number in range(processes):
            for cell in known.cells:
                level = cpu if cell.id == CPU else eager
                name = cell.id if not number else f"{cell.mode}-float32-{CASE}-{number}"
                folder = root / "evidence" / name
                if number:
                    shutil.copytree(root / "evidence" / cell.id, folder)
                noise = np.random.default_rng(number + 10 * len(cell.mode)).standard_normal(30)
                later = {
                    "seconds": list(level * (1 + 0.02 * noise)),
                    "compiles_during": 0,
                    "foreign_cores": 0.0,
                    "attempts": 1,
                    "started": 1000.0 * number,
                    "dispatched": None,
                    "compiles": [0] * 30,
                }

                def edit(raw: dict[str, Any], name: str = name, later: dict[str, Any] = later) -> None:
                    raw["cell"] = name
                    raw["timings"]["later"] = later

                edited(folder / f"{CASE}.json", edit)
                edited(folder / "self-test.json", lambda raw: raw.update(passed=True, reason=""))
                cells.append(cell.model_copy(update={"id": name, "kind": "single" if number else "sequence"}))
        return cells

    return judged_again(base, out, change)


@pytest.fixture(scope="module")
def even(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return timed(base, tmp_path_factory.mktemp("even") / "run", cpu=0.010, eager=0.020)


def steps(before: Path, after: Path) -> dict[str, Any]:
    return {one.mode: one for one in compared(before, after).steps}


def test_a_step_that_takes_longer_on_the_same_machine_is_claimed(base: Path, even: Path, tmp_path: Path) -> None:
    slow = timed(base, tmp_path / "slow", cpu=0.010, eager=0.030)
    one = steps(even, slow)["eager"]
    assert one.claim == "slower"
    assert one.ratio == pytest.approx(1.5, rel=0.02)
    assert one.interval.low < 1.5 < one.interval.high
    assert one.saving == pytest.approx(-0.010, rel=0.1)
    assert one.saving_interval.high < 0
    assert (one.kind_before, one.kind_after) == ("rehearsal", "rehearsal")
    back = steps(slow, even)["eager"]
    assert (back.claim, back.processes) == ("faster", 5)
    assert back.ratio == pytest.approx(1 / 1.5, rel=0.02)
    assert compared(even, slow).exit_code == 0  # a time is no verdict
    assert compare.effect(even, slow).steps == compared(even, slow).steps


def test_a_machine_that_became_slower_is_not_taken_for_the_device(base: Path, even: Path, tmp_path: Path) -> None:
    found = steps(even, timed(base, tmp_path / "slow", cpu=0.015, eager=0.030))
    assert found["eager"].claim == "none"
    assert "the CPU's own step changed by +50%" in found["eager"].why
    assert "control" in found["reference"].why


def test_a_small_change_is_no_claim_between_records(base: Path, even: Path, tmp_path: Path) -> None:
    one = steps(even, timed(base, tmp_path / "near", cpu=0.010, eager=0.0216))["eager"]
    assert one.interval.low > 1  # within one trial that would do
    assert one.claim == "none"
    assert "did not take turns" in one.why


def test_few_processes_are_no_claim(base: Path, even: Path, tmp_path: Path) -> None:
    one = steps(even, timed(base, tmp_path / "few", cpu=0.010, eager=0.040, processes=2))["eager"]
    assert (one.claim, one.processes) == ("none", 2)
    assert "2 processes a side, and 5 are needed" in one.why


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda raw: raw["identity"]["fixed"].update(cpu="another"), "host differs (cpu)"),
        (lambda raw: raw.update(label="measurement"), "one record is a rehearsal and the other a measurement"),
        (lambda raw: raw["trial"].update(target="cuda"), "target differs"),
    ],
)
def test_times_that_must_not_be_divided_are_not(even: Path, tmp_path: Path, edit: Edit, words: str) -> None:
    found = compared(even, resealed(even, tmp_path / "other", edit))
    for one in found.steps:
        assert (one.ratio, one.interval, one.saving, one.claim) == (None, None, None, "none")
        assert words in one.why
        assert one.before == one.after is not None  # side by side all the same


def test_step_times_are_read_from_sealed_evidence_only(even: Path, tmp_path: Path) -> None:
    alone = resealed(even, tmp_path / "alone", lambda raw: None, keep=False)
    assert "not beside" in steps(even, alone)["eager"].why
    changed = Path(shutil.copytree(even, tmp_path / "changed"))
    edited(changed / "evidence" / EAGER / f"{CASE}.json", lambda raw: raw["timings"]["later"].update(attempts=2))
    assert "not the file that the record was sealed with" in steps(even, changed)["eager"].why


# --- words --------------------------------------------------------------------------------------------------------------


def test_markdown_holds_together_whatever_the_record_says(base: Path, tmp_path: Path) -> None:
    nasty = "a | b\nc <script> \x1b[31m"

    def edit(raw: dict[str, Any]) -> None:
        raw["judgement"]["findings"].append({"word": "odd", "cell": EAGER, "case": "", "text": nasty, "fails": False})

    after = resealed(base, tmp_path / "after", edit, keep=False)
    done = run.invoke(cli.app, ["compare", str(base), str(after), "--markdown"])
    assert done.exit_code == 0, done.output
    rows = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert any("odd" in row and r"a \| b c" in row for row in rows)
    assert "\x1b" not in done.stdout
    assert "(rehearsal)" in done.stdout.splitlines()[0]


def test_json_is_the_whole_comparison(base: Path, broken: Path) -> None:
    done = run.invoke(cli.app, ["compare", str(base), str(broken / "record.json"), "--json"])
    assert done.exit_code == 1
    assert Comparison.model_validate_json(done.stdout) == compared(base, broken)
    assert run.invoke(cli.app, ["compare", str(base), str(base), "--json", "--markdown"]).exit_code == 2


# --- baselines ----------------------------------------------------------------------------------------------------------


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
