"""The published table: it fits the device as it is, and the commands that print and make it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from shakedown import cli
from shakedown.conformance import operators, table
from shakedown.conformance.operators import Counts

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"


def invoke(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(cli.app, ["ops", *arguments], env={"COLUMNS": "250"})
    return found.exit_code, found.stdout


def published_torch() -> str:
    return json.loads(table.SUMMARY.read_text())["sweeps"][0]["torch"]


@pytest.mark.skipif(published_torch() != torch.__version__, reason="the table was made with another release of PyTorch")
def test_the_page_is_what_the_device_does_today() -> None:
    message = "stale: run `shakedown ops table --write docs/compatibility.md`"
    assert table.page() == PAGE.read_text(), message


def test_the_table_can_be_filtered() -> None:
    code, text = invoke("--name", "add", "--json")
    rows = {r["name"]: r for r in json.loads(text)}
    assert code == 0
    assert rows["aten::add.Tensor"]["way"] == "native"
    assert rows["aten::add.Tensor"]["letters"]["eager"]["float32"] == "N"
    code, text = invoke("--missing", "--json")
    missing = json.loads(text)
    assert {r["name"] for r in missing} & {"aten::add.Tensor"} == set()
    assert all(
        r["way"] == "fallback" or {"C", "!"} & {x for m in r["letters"].values() for x in m.values()} for r in missing
    )
    code, text = invoke("--way", "decomposed", "--json")
    assert {r["way"] for r in json.loads(text)} <= {"decomposed"}


def test_operators_of_a_workload() -> None:
    code, text = invoke("--used-by", "cnn", "--json")
    phases = {r["name"]: r["phases"] for r in json.loads(text)}
    assert code == 0
    assert "forward" in phases["aten::convolution"]
    assert "backward" in phases["aten::convolution_backward"]
    code, text = invoke("--used-by", "cnn", "--missing")
    assert code == 0
    assert "0 of" in text, "the built-in workloads fall back nowhere"


@pytest.mark.parametrize("options", [("--name", "nope"), ("--way", "sideways"), ("--used-by", "nope")])
def test_unknown_names_are_refused(options: tuple[str, ...]) -> None:
    code, text = invoke(*options, "--json")
    assert code == 2
    assert options[1] in json.loads(text)["error"]


def test_publishing_needs_a_finished_sweep(tmp_path: Path) -> None:
    found = CliRunner().invoke(cli.app, ["ops", "table", "--results", str(tmp_path)])
    assert found.exit_code == 2


def test_letters() -> None:
    assert [table.letter(c) for c in (None, Counts(1), Counts(1, 1), Counts(1, 1, 1), Counts(1, 1, 1, 1))] == list(
        "·NDC!"
    )


def test_every_lowered_operator_is_native_in_the_table() -> None:
    from shakedown.neuron.lowering import registry
    from shakedown.neuron.operators import qualified_name

    ways = {s.name: s.way for s in operators.support()}
    lowered = {qualified_name(op) for op in registry.lowered() if not registry.lowering_of(op).graph_only}
    assert {n for n in lowered if ways.get(n, "native") != "native"} == set()
