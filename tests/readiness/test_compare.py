"""What changed between two records: every verdict that got lost is seen, and unlike records are refused."""

from __future__ import annotations

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
from shakedown.readiness import compare
from shakedown.readiness.compare import Comparison, verdicts
from shakedown.readiness.errors import BadInput
from shakedown.readiness.evidence import sha256
from shakedown.readiness.report import comparison as page

from . import comparing
from .comparing import CASE, EAGER, compared, edited, judged_again, resealed

run = CliRunner()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rehearsal of one case in which all is well."""
    return comparing.made(tmp_path_factory.mktemp("base") / "run")


@pytest.fixture(scope="module")
def broken(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a gradient that is half a per cent too large."""
    return comparing.broken(base, tmp_path_factory.mktemp("broken") / "run")


# --- verdicts -----------------------------------------------------------------------------------------------------------


def test_a_record_beside_itself_changes_nothing(base: Path) -> None:
    found = compared(base, base)
    assert (found.exit_code, found.regressions, found.verdicts, found.results) == (0, [], [], [])
    assert (found.identity, found.requirements, found.tensors, found.findings) == ([], [], [], [])
    assert found.unchanged == 2
    assert found.same_workload


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
