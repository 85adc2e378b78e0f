"""A record as JUnit XML: every verdict where a test server looks for it, and nothing that its parser refuses."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import xmlschema
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import record as records
from shakedown.readiness.judge.results import CaseResult, Finding, Outcome
from shakedown.readiness.record import Record
from shakedown.readiness.report import junit

from . import resealed

EAGER = "eager-float32"
run = CliRunner()
schema = xmlschema.XMLSchema(str(Path(__file__).with_name("junit.xsd")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trial on the CPU of one case in eager mode."""
    return resealed.made(tmp_path_factory.mktemp("junit") / "run")


@pytest.fixture(scope="module")
def record(folder: Path) -> Record:
    return records.load(folder)


def parsed(record: Record) -> ElementTree.Element:
    """The document, which must follow the schema and add up."""
    data = junit.junit(record)
    schema.validate(data.decode())
    root = ElementTree.fromstring(data)
    for suite in root:
        tests = suite.findall("testcase")
        assert int(suite.attrib["tests"]) == len(tests)
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.attrib[name]) == sum(test.find(tag) is not None for test in tests)
    for name in ("tests", "failures", "errors"):
        assert int(root.attrib[name]) == sum(int(suite.attrib[name]) for suite in root)
    return root


def suite_of(root: ElementTree.Element, name: str) -> ElementTree.Element:
    return next(suite for suite in root if suite.attrib["name"] == name)


def cases_of(suite: ElementTree.Element) -> dict[str, ElementTree.Element]:
    return {test.attrib["name"]: test for test in suite.findall("testcase")}


def cell_with(record: Record, cell: str = EAGER, outcome: Outcome | None = None, **changed: object) -> Record:
    """The record with other values in the judgement of one process, and in its outcome."""
    results = [r.model_copy(update=changed) if r.cell == cell else r for r in record.judgement.cells]
    cells = [c.model_copy(update={"outcome": outcome}) if outcome and c.id == cell else c for c in record.cells]
    judgement = record.judgement.model_copy(update={"cells": results})
    return record.model_copy(update={"judgement": judgement, "cells": cells})


def finding_in(record: Record, **fields: object) -> Record:
    found = Finding.model_validate({"cell": EAGER, "text": "as it says", "fails": True} | fields)
    judgement = record.judgement.model_copy(update={"findings": [*record.judgement.findings, found]})
    return record.model_copy(update={"judgement": judgement})


def test_a_suite_for_each_process_and_a_test_for_each_case(record: Record) -> None:
    root = parsed(record)
    assert [suite.attrib["name"] for suite in root] == [*(cell.id for cell in record.cells), "decision"]
    assert root.attrib["name"] == "smallest on cpu (self-check)"
    eager = suite_of(root, EAGER)
    assert list(cases_of(eager)) == ["2x3"]
    assert all(len(test) == 0 and float(test.attrib["time"]) > 0 for test in eager.findall("testcase"))
    assert {test.attrib["classname"] for test in eager.findall("testcase")} == {
        f"shakedown.self-check.smallest.cpu.{EAGER}"
    }


def test_properties_say_who_measured_and_that_it_was_a_rehearsal(record: Record) -> None:
    root = parsed(record.model_copy(update={"label": "rehearsal", "label_text": records.LABELS["rehearsal"]}))
    said = {p.attrib["name"]: p.attrib["value"] for p in suite_of(root, EAGER).iter("property")}
    assert said["label"] == "rehearsal"
    assert said["label_text"].startswith("REHEARSAL")
    assert said["record"] == record.seal
    assert said["mode"] == "eager"
    assert said["identity.torch"] == record.identity["fixed"]["torch"]
    assert said["identity.versions.numpy"]
    assert "(rehearsal)" in root.attrib["name"]
    assert ".rehearsal." in suite_of(root, EAGER).find("testcase").attrib["classname"]


def test_untested_is_skipped_with_its_reason(record: Record) -> None:
    case = CaseResult(case="2x3", verdict="untested", reason="the target cpu has no adaptive mode")
    suite = suite_of(parsed(cell_with(record, verdict="untested", reason=case.reason, cases=[case])), EAGER)
    assert cases_of(suite)["2x3"].find("skipped").attrib["message"] == case.reason
    assert (suite.attrib["tests"], suite.attrib["skipped"]) == ("1", "1")


def test_a_mismatch_is_a_failure_with_all_findings(record: Record) -> None:
    wrong = CaseResult(case="2x8", verdict="mismatch", findings=["first " + "x" * 400, "second"])
    right = CaseResult(case="1x4", verdict="match")
    tests = cases_of(suite_of(parsed(cell_with(record, verdict="mismatch", cases=[wrong, right])), EAGER))
    failure = tests["2x8"].find("failure")
    assert failure.attrib["type"] == "mismatch"
    assert failure.attrib["message"].startswith("first xxx")
    assert len(failure.attrib["message"]) <= 300
    assert failure.text.splitlines()[1] == "mismatch: second"
    assert "x" * 400 in failure.text
    assert len(tests["1x4"]) == 0
    assert "time" not in tests["1x4"].attrib  # not measured is not zero


@pytest.mark.parametrize("status", ["crashed", "timeout", "killed"])
def test_a_process_that_ended_badly_is_an_error(record: Record, status: str) -> None:
    ended = Outcome(status=status, seconds=3.0, reason="signal 11", stderr_tail="Traceback\n  here")  # type: ignore[arg-type]
    finished = CaseResult(case="2x8", verdict="match")
    broken = CaseResult.model_validate({"case": "1x4", "verdict": status, "reason": "signal 11"})
    changed = cell_with(record, outcome=ended, verdict=status, reason="signal 11", cases=[finished, broken])
    tests = cases_of(suite_of(parsed(changed), EAGER))
    assert len(tests["2x8"]) == 0
    assert tests["1x4"].find("error").attrib == {"message": "signal 11", "type": status}
    assert "Traceback\n  here" in tests["1x4"].find("error").text
    after = cell_with(record, outcome=ended, verdict=status, reason="after its last case", cases=[finished])
    tests = cases_of(suite_of(parsed(after), EAGER))
    assert tests["process"].find("error").attrib["message"] == "after its last case"


def test_what_a_check_found_fails_the_test_that_it_is_about(record: Record) -> None:
    failed = cell_with(record, verdict="mismatch")
    tests = cases_of(suite_of(parsed(finding_in(failed, word="over-budget(memory)", case="2x3")), EAGER))
    assert tests["2x3"].find("failure").attrib == {"type": "over-budget(memory)", "message": "as it says"}
    tests = cases_of(suite_of(parsed(finding_in(failed, word="leftover")), EAGER))
    assert tests["process"].find("failure").attrib["type"] == "leftover"
    harmless = cases_of(suite_of(parsed(finding_in(record, word="drift", fails=False)), EAGER))
    assert all(len(test) == 0 for test in harmless.values())


def test_a_failed_process_is_never_green(record: Record) -> None:
    suite = suite_of(parsed(cell_with(record, verdict="mismatch")), EAGER)
    assert int(suite.attrib["failures"]) == 1


def test_processes_without_cases_are_one_test(record: Record) -> None:
    passed = cases_of(suite_of(parsed(cell_with(record, cases=[])), EAGER))
    assert list(passed) == ["process"]
    assert len(passed["process"]) == 0
    skipped = cell_with(record, cases=[], verdict="untested", reason="not asked for")
    assert cases_of(suite_of(parsed(skipped), EAGER))["process"].find("skipped").attrib["message"] == "not asked for"


def test_a_variation_that_the_cpu_cannot_do_is_not_red(record: Record) -> None:
    cases = [
        CaseResult(case="2x8~large", verdict="mismatch", findings=["not finite"]),
        CaseResult(case="2x8", verdict="mismatch", findings=["not finite"]),
    ]
    suite = suite_of(
        parsed(cell_with(record, "reference-float32", verdict="mismatch", cases=cases)), "reference-float32"
    )
    assert "decide nothing" in cases_of(suite)["2x8~large"].find("skipped").attrib["message"]
    assert cases_of(suite)["2x8"].find("failure") is not None


def test_the_decision_is_a_suite_of_its_own(record: Record) -> None:
    tests = cases_of(suite_of(parsed(record), "decision"))
    assert set(tests) == {"disposition", "environment", "correctness", "execution path", "operation"}
    assert len(tests["disposition"]) == len(tests["correctness"]) == 0
    assert tests["operation"].find("skipped") is not None
    decision = record.judgement.decision
    results = [r.model_copy(update={"standing": "not met", "sentence": "it is not"}) for r in decision.results]
    blocked = decision.model_copy(update={"disposition": "blocked", "sentence": "no", "results": results})
    judgement = record.judgement.model_copy(update={"decision": blocked})
    tests = cases_of(suite_of(parsed(record.model_copy(update={"judgement": judgement})), "decision"))
    assert tests["disposition"].find("failure").attrib == {"type": "blocked", "message": "no"}
    assert tests["correctness"].find("failure").attrib == {"type": "not met", "message": "it is not"}


def test_an_older_record_has_no_decision_to_fail() -> None:
    older = records.load(Path(__file__).with_name("records") / "version1")
    tests = cases_of(suite_of(parsed(older), "decision"))
    assert list(tests) == ["disposition"]
    assert "no decision" in tests["disposition"].find("skipped").attrib["message"]


def test_what_xml_forbids_is_written_out(record: Record) -> None:
    nasty = "a\x00b\x1b[31mc\ufffed\uffff<&\"']]>\r\n\x85é"
    wrong = CaseResult(case="2x8", verdict="mismatch", findings=[nasty])
    lost = CaseResult(case="\x01", verdict="mismatch", findings=["half \ud800 pair"])
    tests = cases_of(suite_of(parsed(cell_with(record, verdict="mismatch", cases=[wrong, lost])), EAGER))
    text = tests["2x8"].find("failure").text
    assert text == "mismatch: a\\x00b\\x1b[31mc\\ufffed\\uffff<&\"']]>\n\\x85é"
    assert tests["\\x01"].find("failure").text == "mismatch: half \\ud800 pair"


def test_the_command_writes_the_file(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.xml"
    done = run.invoke(cli.app, ["junit", str(folder), str(file), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"file": str(file), "bytes": file.stat().st_size}
    schema.validate(str(file))
    for arguments, words in (
        ([str(tmp_path / "nowhere"), str(file)], "there is no record"),
        ([str(folder), str(tmp_path)], "it is a folder"),
        ([str(folder), str(tmp_path / "no" / "x.xml")], "no such folder"),
    ):
        done = run.invoke(cli.app, ["junit", *arguments])
        assert (done.exit_code, words in done.stderr) == (2, True), done.output


def test_a_run_that_could_not_write_it_is_refused(tmp_path: Path) -> None:
    """That one writes it is shown by the test of the example for pipelines."""
    asked = ["run", str(resealed.KEPT / "workload.py"), "--out", str(tmp_path / "run"), "--junit", str(tmp_path)]
    done = run.invoke(cli.app, asked)
    assert done.exit_code == 2
    assert "it is a folder" in done.stderr
    assert not (tmp_path / "run").exists()
