"""A whole trial on the embedded device, in real processes, cold and warm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import record as records

from .support import TINY, quick

CELLS = [f"{mode}-float32-{cache}" for mode in ("eager", "adaptive", "compiled") for cache in ("cold", "warm")]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("neuron")
    options = ["--dtype", "fp32", "--case", "2x8", "--requirements", str(quick(folder))]
    done = CliRunner().invoke(cli.app, ["run", str(TINY), *options, "--out", str(folder / "run"), "--json"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert printed["seal"] == json.loads((folder / "run" / "record.json").read_text())["seal"]
    return folder / "run"


@pytest.fixture(scope="module")
def record(out: Path) -> records.Record:
    return records.load(out)


def test_every_mode_matches_truth(record: records.Record) -> None:
    verdicts = {cell.cell: cell.verdict for cell in record.judgement.cells}
    assert {verdicts[cell] for cell in CELLS} == {"match"}


def test_rehearsal_is_said_wherever_a_result_is(out: Path, record: records.Record) -> None:
    assert record.label == "rehearsal"
    assert "REHEARSAL" in record.label_text
    assert "rehearsal" in record.judgement.decision.sentence
    kinds = {
        s.kind for s in record.judgement.decision.statements if s.text.startswith(("eager", "adaptive", "compiled"))
    }
    assert kinds == {"rehearsal"}
    report = (out / "report.md").read_text()
    assert report.splitlines()[0].endswith("(rehearsal)")
    assert "not AWS Trainium" in report
    assert {record.identity["cells"][cell]["family"] for cell in CELLS} == {"rehearsal"}
    assert [record.identity["cells"][cell]["profile"] for cell in CELLS] == [{"name": "native"}] * len(CELLS)


def test_cold_and_warm_are_proved(record: records.Record) -> None:
    cells = {cell.cell: cell for cell in record.judgement.cells}
    for name in CELLS:
        assert cells[name].cache_proved, cells[name].cache_proof
        paths = cells[name].cases[0].paths
        assert paths is not None
        assert (paths.compiled == 0) == name.endswith("warm")
        assert (paths.loaded == 0) == name.endswith("cold")


def test_where_it_ran_is_seen_by_phase(record: records.Record) -> None:
    for cell in record.judgement.cells:
        if cell.cell not in CELLS:
            continue
        paths = cell.cases[0].paths
        assert paths is not None
        assert paths.fallbacks is not None
        phases = {p.phase: p for p in paths.phases}
        assert all(phases[name].executed > 0 for name in ("forward", "backward", "optimizer"))
        assert phases["data"].moved_bytes == 2 * 2 * 8 * 8  # ids and labels, 2 x 8 of int64


def test_compiled_runs_fewer_programs_than_eager(record: records.Record) -> None:
    cells = {cell.cell: cell for cell in record.judgement.cells}

    def calls(name: str) -> int:
        paths = cells[name].cases[0].paths
        assert paths is not None
        return sum(p.executed for p in paths.phases if p.phase in ("forward", "backward"))

    assert calls("compiled-float32-warm") < calls("eager-float32-warm")
    graphs = cells["compiled-float32-cold"].cases[0].graphs
    assert graphs is not None
    assert graphs["captured"] >= 1


def test_modes_are_compared_with_each_other(record: records.Record) -> None:
    adaptive, compiled = record.judgement.between_modes
    assert (adaptive.one, adaptive.other) == ("eager-float32-cold", "adaptive-float32-cold")
    assert adaptive.bit_equal
    assert (compiled.one, compiled.other) == ("eager-float32-cold", "compiled-float32-cold")
    assert compiled.relative_l2 < 1e-5


def test_adaptive_eager_ran_in_its_own_processes_and_fused(record: records.Record) -> None:
    enabled = {
        cell: identity["environment"].get("SHAKEDOWN_ADAPTIVE") == "1"
        for cell, identity in record.identity["cells"].items()
    }
    assert enabled == {cell: cell.startswith("adaptive") for cell in enabled}
    for cell, cases in record.judgement.fusion.items():
        assert cell.startswith("adaptive")
        assert cases["2x8"].settled
        assert cases["2x8"].share is not None
        assert cases["2x8"].share > 0.9


def test_record_verifies(out: Path) -> None:
    assert records.verify(out).problems == []
