"""Records of earlier versions load, say what they did not hold, and are verified as what they were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import record as records
from shakedown.readiness import report
from shakedown.readiness.errors import RecordError

RECORDS = Path(__file__).with_name("records")
run = CliRunner()


def copied(version: int, folder: Path) -> Path:
    return Path(shutil.copytree(RECORDS / f"version{version}", folder / f"version{version}"))


def test_there_is_a_record_of_every_earlier_version() -> None:
    last = int(records.SCHEMA.rpartition("/")[2])
    written = [
        json.loads((RECORDS / f"version{n}" / "record.json").read_text())["schema_version"] for n in range(1, last)
    ]
    assert written == [f"shakedown.record/{n}" for n in range(1, last)]


@pytest.mark.parametrize("version", [1, 2])
def test_an_old_record_loads_with_what_it_had_and_nothing_else(version: int) -> None:
    raw = json.loads((RECORDS / f"version{version}" / "record.json").read_text())
    record = records.load(RECORDS / f"version{version}")
    assert (record.schema_version, record.upgraded_from) == (records.SCHEMA, f"shakedown.record/{version}")
    assert record.seal == raw["seal"]
    assert [cell.verdict for cell in record.judgement.cells] == ["match", "match", "untested"][: len(record.cells)]
    older = record.judgement.older
    assert older is not None
    assert older.verdict == raw["judgement"]["verdict"] == "passed"
    assert [s.text for s in older.statements] == [s["text"] for s in raw["judgement"]["statements"]]
    # No decision is made up for it: it is inconclusive, says what the verdict was, and how to get a decision.
    decision = record.judgement.decision
    assert decision.disposition == "inconclusive"
    assert "'passed'" in decision.sentence
    assert decision.results == []
    assert "shakedown judge" in decision.next[0]
    assert record.exit_code == 1


def test_what_a_version_did_not_have_is_empty_and_named() -> None:
    first, second = (records.load(RECORDS / f"version{n}") for n in (1, 2))
    assert first.judgement.timings == first.judgement.parity == []
    assert first.judgement.shapes is first.judgement.projection is first.judgement.scan is None
    assert {"judgement.timings", "judgement.memory", "judgement.parity", "judgement.decision"} <= set(
        first.not_recorded
    )
    assert "judgement.timings" not in second.not_recorded
    assert second.judgement.timings != []
    assert {"judgement.parity", "judgement.decision"} <= set(second.not_recorded)
    # A requirement's default was not demanded then; it is named like everything else.
    assert {"requirements.variations", "trial.quick", "trial.varied"} <= set(first.not_recorded)
    assert "quick" not in first.trial
    assert first.says_not_recorded.startswith("not recorded by shakedown.record/1: ")
    assert {"judgement.older", "seal"}.isdisjoint(first.not_recorded)


@pytest.mark.parametrize("version", [1, 2])
def test_an_old_record_verifies_by_the_seal_that_it_was_given(version: int) -> None:
    found = records.verify(RECORDS / f"version{version}")
    assert (found.verified, found.problems) == (True, [])
    assert found.record_schema == f"shakedown.record/{version}"
    assert found.decision_in_record == "verdict passed"
    assert found.files_checked >= 10
    assert f"not recorded by shakedown.record/{version}" in found.notes[0]


def test_evidence_that_is_judged_differently_now_is_a_note_and_not_a_problem() -> None:
    found = records.verify(RECORDS / "version1")
    assert "verdicts were made by older rules, those of shakedown.record/1" in found.notes[1]
    assert "eager-float32 was 'match' and is 'untested' when judged again" in found.notes[1]
    assert "has schema 'shakedown.evidence/1'" in found.notes[1]
    done = run.invoke(cli.app, ["verify", str(RECORDS / "version1")])
    assert done.exit_code == 0, done.output
    assert "older rules" in done.output


@pytest.mark.parametrize("version", [1, 2])
def test_a_field_of_an_old_record_cannot_be_edited(version: int, tmp_path: Path) -> None:
    folder = copied(version, tmp_path)
    raw = json.loads((folder / "record.json").read_text())
    raw["judgement"]["sentence"] = "all is well"
    (folder / "record.json").write_text(json.dumps(raw))
    assert records.verify(folder).problems == ["record.json was changed after it was sealed"]


@pytest.mark.parametrize("version", [1, 2])
def test_an_old_record_has_a_report(version: int) -> None:
    text = report.markdown(records.load(RECORDS / f"version{version}"))
    assert "Self-check" in text
    assert "passed" in text


def test_a_newer_version_is_refused_and_told_who_reads_it(tmp_path: Path) -> None:
    folder = copied(2, tmp_path)
    raw = json.loads((folder / "record.json").read_text())
    raw |= {"schema_version": "shakedown.record/17", "shakedown_version": "4.2.0", "field_of_the_future": 1}
    (folder / "record.json").write_text(json.dumps(raw))
    with pytest.raises(
        RecordError, match=r"newer than this Shakedown reads \(shakedown.record/1 to shakedown.record/3\)"
    ):
        records.load(folder)
    with pytest.raises(RecordError, match="Shakedown 4.2.0 wrote it, and that version or a later one reads it"):
        records.load(folder)


@pytest.mark.parametrize(
    "version", ["shakedown.record/0", "shakedown.evidence/2", "record", None, 3, ["shakedown.record/3"]]
)
def test_what_is_no_version_of_a_record_is_refused(version: object, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(json.dumps({"schema_version": version}))
    with pytest.raises(RecordError, match="this Shakedown reads shakedown.record/1 to shakedown.record/3"):
        records.load(tmp_path)


def test_an_old_record_that_lacks_what_its_version_had_is_refused(tmp_path: Path) -> None:
    for version, key in ((1, "judgement"), (2, "cells")):
        folder = copied(version, tmp_path)
        raw = json.loads((folder / "record.json").read_text())
        del raw[key]
        (folder / "record.json").write_text(json.dumps(raw))
        with pytest.raises(RecordError, match=f"does not follow shakedown.record/{version}"):
            records.load(folder)
