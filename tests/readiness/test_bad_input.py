"""Bad input: one clear message, exit code 2, nothing lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shakedown import cli

from .support import TINY

run = CliRunner()


def refused(tmp_path: Path, *arguments: str) -> str:
    out = tmp_path / "out"
    done = run.invoke(cli.app, ["run", *arguments, "--target", "cpu", "--out", str(out), "--json"])
    assert done.exit_code == 2, done.output
    answer = json.loads(done.stdout)
    assert answer["exit_code"] == 2
    assert not out.exists()
    return str(answer["error"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nonesuch",), "unknown workload 'nonesuch'; give one of cnn, decoder"),
        (("missing.py",), "cannot read the workload missing.py: No such file"),
        ((str(TINY), "--case", "8"), "case '8' is not BATCHxLENGTH"),
        ((str(TINY), "--dtype", "int4"), "dtype 'int4' is unknown"),
        ((str(TINY), "--modes", "turbo"), "unknown mode turbo; choose among eager, compiled, adaptive"),
        ((str(TINY), "--timeout", "0"), "no time to run"),
        ((str(TINY), "--requirements", "none.toml"), "cannot read the requirements none.toml"),
    ],
)
def test_the_request_is_checked_first(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    assert words in refused(tmp_path, *arguments)


def test_unknown_target(tmp_path: Path) -> None:
    done = run.invoke(cli.app, ["run", str(TINY), "--target", "abacus", "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "unknown target 'abacus'" in done.stderr


def test_an_existing_directory_is_left_as_it_is(tmp_path: Path) -> None:
    kept = tmp_path / "out" / "precious.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    done = run.invoke(cli.app, ["run", str(TINY), "--target", "cpu", "--out", str(kept.parent)])
    assert done.exit_code == 2
    assert "exists and is left as it is" in done.stderr
    assert [p.name for p in kept.parent.iterdir()] == ["precious.txt"]
    assert kept.read_text() == "mine"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda text: text.replace("def forward(model, batch)", "def go(model, batch)"), "defines no function forward"),
        (lambda text: text.replace('CASES = ("2x8", "1x12")', ""), "defines no CASES"),
        (lambda text: text.replace("return Tiny()", "return 5"), "build_model() returned int"),
        (lambda text: text.replace("return Tiny()", "raise KeyError('lost weights')"), "lost weights"),
        (lambda text: text + "\n)", "SyntaxError"),
        (
            lambda text: text.replace("logits = model(", "raise OSError('tape jammed')\n    logits = model("),
            "tape jammed",
        ),
    ],
    ids=["no forward", "no cases", "not a module", "build raises", "syntax", "forward raises"],
)
def test_a_workload_at_fault_is_bad_input_with_its_traceback(tmp_path: Path, edit, words: str) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "mine.py"
    file.write_text(edit(TINY.read_text()))
    message = refused(tmp_path, str(file), "--dtype", "fp32")
    assert words in message
