"""``pytest --costs``: what each test file takes, in processor seconds and in compiled programs.

Wall time says little on a busy machine; these figures hardly change with what else runs there. Works under pytest-xdist.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shakedown.neuron import events

from . import order

PROPERTY = "costs"


@dataclass
class Cost:
    """``compiled`` and ``loaded`` count programs of the test process, compiled anew and found in a cache on disk.

    ``seconds``: processor time of the test process and of those children that it has waited for.
    """

    tests: int = 0
    compiled: int = 0
    loaded: int = 0
    seconds: float = 0.0

    def add(self, compiled: int, loaded: int, seconds: float) -> None:
        self.compiled, self.loaded, self.seconds = (
            self.compiled + compiled,
            self.loaded + loaded,
            self.seconds + seconds,
        )

    def row(self, name: str) -> str:
        return f"{self.tests:6} {self.compiled:9} {self.loaded:7} {self.seconds:10.1f}  {name}"


class Meter:
    """Counts in the process that runs tests, and hands the difference to each phase's report."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()
        record = events.record

        def counting(kind: str, *args: Any, **kwargs: Any) -> None:
            if kind == "compile":
                self.made["compiled" if kwargs.get("detail") == "compiled" else "loaded"] += 1
            record(kind, *args, **kwargs)

        events.record = counting  # tests clear the counts of `events`, and a listener would slow the hot path
        self.last = self._now()

    def _now(self) -> tuple[int, int, float]:
        return self.made["compiled"], self.made["loaded"], sum(os.times()[:4])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report = yield
        now = self._now()
        report.user_properties.append((PROPERTY, [a - b for a, b in zip(now, self.last)]))  # type: ignore[attr-defined]
        self.last = now
        return report


class Table:
    """Adds up the reports and prints one row for a file, the dearest last."""

    def __init__(self, file: Path | None, ordering: bool) -> None:
        self.file, self.ordering = file, ordering
        self.files: dict[str, Cost] = defaultdict(Cost)
        self.tests: dict[str, Cost] = defaultdict(Cost)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, given in report.user_properties:
            if name == PROPERTY and isinstance(given, (list, tuple)):
                for cost in (self.files[report.nodeid.partition("::")[0]], self.tests[report.nodeid]):
                    cost.tests += report.when == "setup"
                    cost.add(*given)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("costs")
        terminalreporter.write_line(" tests  compiled  loaded  processor s")
        whole = Cost()
        for name, cost in sorted(self.files.items(), key=lambda item: item[1].seconds):
            terminalreporter.write_line(cost.row(name))
            whole.tests += cost.tests
            whole.add(cost.compiled, cost.loaded, cost.seconds)
        terminalreporter.write_line(whole.row("together"))
        if self.file:
            self.file.write_text(json.dumps({name: vars(cost) for name, cost in self.tests.items()}, indent=1))
        if self.ordering:
            order.FILE.write_text(order.text_of({name: cost.seconds for name, cost in self.files.items()}))


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("costs")
    group.addoption(
        "--costs", action="store_true", help="print tests, compiles and processor seconds of each test file"
    )
    group.addoption("--costs-file", type=Path, help="with --costs: also write them for each test, as JSON")
    group.addoption(
        "--costs-order", action="store_true", help=f"with --costs: keep the dear files in tests/{order.FILE.name}"
    )


def configure(config: pytest.Config) -> None:
    if not config.getoption("costs"):
        return
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(
            Table(config.getoption("costs_file"), config.getoption("costs_order")), "costs-table"
        )
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Meter(), "costs-meter")
