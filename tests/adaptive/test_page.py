"""docs/adaptive.md: its settings, its flush reasons and its example of an error are the device's."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from shakedown.neuron import config

from .running import ROOT, environment

_PAGE = (ROOT / "docs" / "adaptive.md").read_text()
_FLUSHERS = {"flush", "submit", "settle", "settled", "value_of", "to_host"}


def _table(heading: str) -> list[list[str]]:
    """The rows of the first table under `heading`, without its head; backticks are dropped."""
    lines = _PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0].splitlines()
    rows = [line for line in lines if line.startswith("|")][2:]
    return [[cell.strip().replace("`", "") for cell in row.strip("|").split("|")] for row in rows]


def test_the_settings_are_those_that_the_configuration_reads() -> None:
    settings = [
        s for s in vars(config).values() if isinstance(s, config.Setting) and s.name.startswith("SHAKEDOWN_ADAPTIVE")
    ]
    expected = [[s.name, str(int(s.default)), s.alias or "", s.help] for s in settings]
    assert _table("Settings") == expected


def test_the_reasons_are_those_that_the_source_gives() -> None:
    given: set[str] = set()
    literals: set[object] = set()
    for path in (ROOT / "src" / "shakedown" / "neuron").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant):
                literals.add(node.value)
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in _FLUSHERS:
                    constants = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant))
                    given.update(value for value in constants if isinstance(value, str))
    listed = {row[0] for row in _table("When the recording runs")}
    assert given - listed == set()
    assert listed - literals == set()


def test_the_example_of_an_error_prints_what_the_page_shows(tmp_path: Path) -> None:
    section = _PAGE.split("\n## Errors\n")[1].split("\n## ")[0]
    script, shown = re.findall(r"```(?:python)?\n(.*?)```", section, re.DOTALL)
    file = tmp_path / "rows.py"
    file.write_text(script)
    done = subprocess.run(
        [sys.executable, str(file)],
        env=environment(SHAKEDOWN_STACK_TRACE="1"),
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown.replace("/tmp/rows.py", str(file))
