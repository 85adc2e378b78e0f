"""A record as JUnit XML, for the servers that draw test results.

A suite is a process, a test one of its cases; processes that compare no case are one test. Elements and attributes are
those that Jenkins's and Surefire's schemas both allow, in the order that the stricter one asks for.

A test fails where its verdict is a mismatch or a check found something that fails; it is an error where its process crashed,
hung or was killed; it is skipped, with the reason, where it is untested. One more suite holds the four results of the
decision, so that what fails the trial as a whole is red here too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.etree import ElementTree

from .. import evidence as ev
from ..compare.sides import flat
from ..judge.results import CaseResult, Cell, CellResult, Finding
from ..record import Record
from .words import pairs

_ENDED = ("crashed", "timeout", "killed")
_NOT_CHARACTERS = re.compile("[\ufffe\uffff]")  # XML 1.0 forbids these two besides what `printable` writes out
_LONGEST = 300  # characters of a message; the whole text is in the element
PROCESS = "process"  # the test that stands for a process where no case of it can


@dataclass
class _Test:
    """One test: at most one of failures, an error and a reason to skip is drawn, in this order."""

    name: str
    failures: list[tuple[str, str]] = field(default_factory=list)
    error: tuple[str, str, str] | None = None
    skipped: str | None = None
    seconds: float | None = None


def junit(record: Record) -> bytes:
    """The record as one UTF-8 document."""
    name = f"{record.trial['workload']} on {record.trial['target']} ({record.label})"
    root = ElementTree.Element("testsuites", {"name": _text(name)})
    by_cell: dict[str, list[Finding]] = {}
    for finding in record.judgement.findings:
        by_cell.setdefault(finding.cell, []).append(finding)
    totals = {"tests": 0, "failures": 0, "errors": 0}
    seconds = 0.0
    suites = [
        _suite(record, cell.id, _tests(cell, result, by_cell.get(cell.id, [])), cell) for cell, result in pairs(record)
    ]
    elsewhere = [one for cell in by_cell.keys() - {cell.id for cell in record.cells} for one in by_cell[cell]]
    suites.append(_suite(record, "decision", _decision(record, elsewhere), None))
    for suite in suites:
        root.append(suite)
        seconds += float(suite.get("time", "0"))
        for count in totals:
            totals[count] += int(suite.get(count, "0"))
    root.attrib.update({count: str(value) for count, value in totals.items()})
    root.set("time", f"{seconds:.3f}")
    ElementTree.indent(root, " ")
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _tests(cell: Cell, result: CellResult, findings: list[Finding]) -> list[_Test]:
    """The tests of one process. Where it failed, at least one of them is red."""
    tests = {case.case: _test(cell, case) for case in result.cases}
    if not tests:
        tests[PROCESS] = _Test(PROCESS, seconds=cell.outcome.seconds)
        tests[PROCESS].skipped = (result.reason or "untested") if result.verdict == "untested" else None
    if result.verdict in _ENDED and not any(one.error for one in tests.values()):
        test = tests.setdefault(PROCESS, _Test(PROCESS))
        test.error = (result.verdict, result.reason, cell.outcome.stderr_tail)
    for finding in findings:
        if finding.fails:
            where = finding.case if finding.case in tests else PROCESS
            tests.setdefault(where, _Test(where)).failures.append((finding.word, finding.text))
    if result.verdict == "mismatch" and not any(one.failures for one in tests.values()) and cell.mode != "reference":
        tests.setdefault(PROCESS, _Test(PROCESS)).failures.append(("mismatch", result.reason or "see the report"))
    return list(tests.values())


def _test(cell: Cell, case: CaseResult) -> _Test:
    made = _Test(case.case, seconds=_seconds(case))
    if case.verdict == "untested":
        made.skipped = case.reason or "untested"
    elif case.verdict in _ENDED:
        made.error = (case.verdict, case.reason, cell.outcome.stderr_tail)
    elif case.verdict == "mismatch" and cell.mode == "reference" and "~" in case.case:
        # A varied case that the CPU itself cannot do at this precision decides nothing about the target.
        made.skipped = f"the CPU does not pass its own gates here, so they decide nothing: {_first(case)}"
    elif case.verdict == "mismatch":
        made.failures = [("mismatch", text) for text in case.findings] or [("mismatch", case.reason)]
    return made


def _first(case: CaseResult) -> str:
    return case.findings[0] if case.findings else case.reason


def _seconds(case: CaseResult) -> float | None:
    """The first step, and the steady ones by their median: what of a case's time is known. None: nothing is."""
    timing = case.timing
    return sum(timing.first_step.values()) + timing.later.n * timing.later.median if timing else None


def _decision(record: Record, elsewhere: list[Finding]) -> list[_Test]:
    """The disposition and the four results; findings that belong to no process are failures of the disposition."""
    made = record.judgement.decision
    whole = _Test("disposition")
    if record.upgraded_from is not None:  # such a version had no decision; its processes speak for themselves
        whole.skipped = made.sentence
    elif not made.suitable:
        whole.failures.append((made.disposition, made.sentence))
    whole.failures += [(finding.word, finding.text) for finding in elsewhere if finding.fails]
    tests = [whole]
    for result in made.results:
        test = _Test(result.name)
        if result.standing == "not met":
            test.failures.append((result.standing, result.sentence))
        elif result.standing == "open":
            test.skipped = result.sentence
        tests.append(test)
    return tests


def _suite(record: Record, name: str, tests: list[_Test], cell: Cell | None) -> ElementTree.Element:
    suite = ElementTree.Element(
        "testsuite",
        {
            "name": _text(name),
            "tests": str(len(tests)),
            "failures": str(sum(bool(one.failures) and one.error is None for one in tests)),
            "errors": str(sum(one.error is not None for one in tests)),
            "skipped": str(sum(one.skipped is not None and not one.failures and one.error is None for one in tests)),
        },
    )
    if cell is not None:
        suite.set("time", f"{cell.outcome.seconds:.3f}")
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in _properties(record, cell).items():
        ElementTree.SubElement(properties, "property", {"name": _text(key), "value": _text(value)})
    group = ".".join(("shakedown", record.label, record.trial["workload"], record.trial["target"], name))
    for test in tests:
        suite.append(_element(test, group))
    return suite


def _element(test: _Test, group: str) -> ElementTree.Element:
    made = ElementTree.Element("testcase", {"name": _text(test.name), "classname": _text(group)})
    if test.seconds is not None:
        made.set("time", f"{test.seconds:.3f}")
    if test.error is not None:
        kind, message, text = test.error
        lines = [message, *(f"{word}: {said}" for word, said in test.failures), text]
        _said(made, "error", kind, message, "\n".join(line for line in lines if line))
    elif test.failures:
        text = "\n".join(f"{word}: {said}" for word, said in test.failures)
        _said(made, "failure", test.failures[0][0], test.failures[0][1], text)
    elif test.skipped is not None:
        _said(made, "skipped", "", test.skipped, "")
    return made


def _said(test: ElementTree.Element, tag: str, kind: str, message: str, text: str) -> None:
    short = message if len(message) <= _LONGEST else message[: _LONGEST - 3] + "..."
    made = ElementTree.SubElement(test, tag, {"message": _text(short)})
    if kind:
        made.set("type", _text(kind))
    made.text = _text(text) or None


def _properties(record: Record, cell: Cell | None) -> dict[str, str]:
    """Who measured, what, under which requirements; the label first."""
    found = {
        "label": record.label,
        "label_text": record.label_text,
        "record": record.seal,
        "created": record.created,
        "shakedown": record.shakedown_version,
        "workload_sha256": record.trial["workload_sha256"],
        "snapshot_sha256": record.snapshot_sha256,
        "requirements_sha256": record.requirements_sha256,
    }
    if cell is not None:
        found |= {"mode": cell.mode, "dtype": cell.dtype, "cache": cell.cache, "kind": cell.kind, "target": cell.target}
    else:
        found |= {"disposition": record.judgement.decision.disposition}
    found |= {f"identity.{name}": value for name, value in flat(record.identity["fixed"]).items()}
    own = record.identity["cells"].get(cell.id, {}) if cell is not None else {}
    for key in ("device", "family", "backend", "profile"):
        found |= {f"identity.{name}": value for name, value in flat(own.get(key, ""), key).items() if value}
    return found


def _text(value: object) -> str:
    """Text that XML can hold: what it forbids is written out, so that nothing is lost and nobody's parser stops."""
    return _NOT_CHARACTERS.sub(lambda found: f"\\u{ord(found.group()):04x}", ev.printable(str(value)))
