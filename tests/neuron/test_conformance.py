"""The sweep itself: it finds what is wrong, charges a crash to one sample, goes on where it stopped, and counts right."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from shakedown import cli
from shakedown.conformance import compare, databases, operators, results, summary, sweep
from shakedown.conformance.results import Row
from shakedown.conformance.worker import Unit


def silent(*_: object) -> None:
    pass


def test_a_sweep_measures_every_kind_of_check_and_the_cli_reports_it(tmp_path: Path) -> None:
    arguments = [
        "ops",
        "conformance",
        "--op",
        "index_select",
        "--dtype",
        "float32",
        "--suite",
        "op_db",
        "--samples",
        "2",
    ]
    found = CliRunner().invoke(cli.app, [*arguments, "--jobs", "1", "--out", str(tmp_path / "sweep"), "--json"])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert set(told["by_check"]) == {"forward", "gradient", "out", "noncontiguous", "view", "error"}
    assert told["correct"]["share"] == told["on_device"]["share"] == told["errors"]["share"] == 1.0
    rows = results.read_parquet(tmp_path / "sweep" / "results.parquet")
    assert len(rows) == told["rows"] == sum(told["status"].values())
    assert "aten::index_select" in next(r for r in rows if r.check == "forward").executed


def test_a_second_run_goes_on_and_another_request_is_refused(tmp_path: Path) -> None:
    request = sweep.Request(suites=("op_db",), ops=("sgn",), dtypes=("bool", "int64"), samples=1, errors=False, jobs=1)
    first = sweep.Sweep(request, tmp_path, silent).run()
    part = next(p for p in (tmp_path / "parts").iterdir() if "bool" in p.name)
    (kept,) = [p for p in (tmp_path / "parts").iterdir() if p != part]
    stamp = kept.stat().st_mtime_ns
    part.unlink()
    assert sweep.Sweep(request, tmp_path, silent).run() == first
    assert part.exists()
    assert kept.stat().st_mtime_ns == stamp, "a finished unit is not run again"
    with pytest.raises(sweep.RequestError, match="another request"):
        sweep.Sweep(sweep.Request(ops=("sgn",), jobs=1), tmp_path, silent).run()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--op", "nope"], "'nope'"),
        (["--dtype", "int3"], "'int3'"),
        (["--mode", "x"], "'x'"),
        (["--suite", "y"], "'y'"),
    ],
)
def test_bad_requests_name_what_is_wrong(options: list[str], what: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(cli.app, ["ops", "conformance", *options, "--out", str(tmp_path), "--json"])
    assert found.exit_code == 2
    assert what in json.loads(found.stdout)["error"]


def test_a_crash_and_a_hang_cost_one_sample_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A worker whose second sample kills it and whose third never ends, by the same protocol.
    script = tmp_path / "worker.py"
    script.write_text(
        "import os, sys, time\n"
        "import shakedown.conformance.worker as w\n"
        "from shakedown.conformance.checks import Bench\n"
        "real = Bench.sample\n"
        "def sample(self, number, *a, **k):\n"
        "    if number == 2: os.abort()\n"
        "    if number == 4: time.sleep(1000)\n"
        "    return real(self, number, *a, **k)\n"
        "Bench.sample = sample\n"
        "w.start()\n"
    )
    monkeypatch.setattr(sweep, "WORKER_COMMAND", [sys.executable, str(script)])
    expected = ["native", "crashed", "timeout", "native"]
    for limit in (20, 200):  # on a crowded machine a worker may not have started when the first has passed
        request = sweep.Request(
            suites=("op_db",), ops=("mul",), dtypes=("float32",), samples=4, errors=False, jobs=1, timeout_seconds=limit
        )
        rows = sweep.Sweep(request, tmp_path / f"out{limit}", silent).run()
        by_sample = {r.sample: r.status for r in rows if r.check == "forward"}
        if [by_sample[n] for n in sorted(by_sample)] == expected:
            break
    assert [by_sample[n] for n in sorted(by_sample)] == expected
    told = summary.summarise(rows)
    assert told["crashes"] == told["timeouts"] == 1
    assert told["correct"]["good"] == told["correct"]["measured"] - 2


def test_a_worker_that_cannot_start_ends_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "WORKER_COMMAND", [sys.executable, "-c", "raise SystemExit('no device here')"])
    request = sweep.Request(suites=("op_db",), ops=("sgn",), jobs=1)
    with pytest.raises(sweep.SweepError, match=r"worker-0\.log"):
        sweep.Sweep(request, tmp_path, silent).run()
    assert "no device here" in (tmp_path / "worker-0.log").read_text()
    assert not list((tmp_path / "parts").iterdir())


def test_units_cover_every_entry_and_dtype_once() -> None:
    everything = sweep.units(sweep.Request())
    assert len({u.name for u in everything}) == len(everything)
    tenths = [u for tenth in range(10) for u in sweep.units(sweep.Request(tenth=tenth))]
    assert sorted(u.name for u in tenths) == sorted(u.name for u in everything)
    assert {u.suite for u in everything} == {"op_db", "module_db"}
    assert isinstance(everything[0], Unit)


# --- comparing ----------------------------------------------------------------------------------------------------------


def test_differences_are_found() -> None:
    x = torch.linspace(0, 1, 8)
    assert not compare.compare(x.to("neuron"), x).problem
    for other in (x.double(), x[:4], x + 1e-3, torch.where(x > 0.5, torch.nan, x), [x, x]):
        assert compare.compare(databases.moved(other), x).problem
    assert compare.compare(x, x + 1e-3).absolute == pytest.approx(1e-3, rel=1e-3)


def test_float64_settles_who_is_right() -> None:
    truth = torch.tensor([1.0, 2.0], dtype=torch.float64)
    cpu = torch.tensor([1.001, 2.0])
    right, worse = torch.tensor([1.0, 2.0]), torch.tensor([1.01, 2.0])
    assert compare.compare(right, cpu).problem
    assert compare.compare(right, cpu, truth=truth).judged_by_float64
    assert compare.compare(worse, cpu, truth=truth).problem


def test_ties_may_be_resolved_either_way_but_not_wrongly() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    cpu = (torch.tensor([[3.0]]), torch.tensor([[1]]))
    other, wrong = (cpu[0], torch.tensor([[2]])), (cpu[0], torch.tensor([[3]]))
    assert not compare.compare(other, cpu, tie_source=x, dim=1).problem
    assert compare.compare(wrong, cpu, tie_source=x, dim=1).problem


@pytest.mark.parametrize("size", [(), (3,), (2, 3), (2, 3, 4), (0, 2)])
def test_layouts_keep_the_values(size: tuple[int, ...]) -> None:
    x = torch.randn(size, requires_grad=True)
    aside = databases.set_aside(x)
    torch.testing.assert_close(aside, x)
    assert aside.requires_grad
    assert not x.numel() or aside.storage_offset() > 0
    there = databases.moved(aside)
    assert there.stride() == aside.stride()
    assert there.is_leaf
    assert there.requires_grad
    torch.testing.assert_close(there.cpu(), aside)


def test_tensors_that_share_memory_do_so_on_the_device() -> None:
    x = torch.arange(6.0)
    there, again, part = databases.moved((x, [x], {"part": x[2:4]}))
    assert again[0] is there
    part["part"].add_(10)
    assert there.tolist() == [0, 1, 12, 13, 4, 5]
    (alone, elsewhere) = databases.moved((x, torch.ones(2, device="meta")))
    assert alone.untyped_storage().data_ptr() != there.untyped_storage().data_ptr()
    assert elsewhere.device.type == "meta"


# --- counting -----------------------------------------------------------------------------------------------------------


def test_counts_by_operator_survive_the_file(tmp_path: Path) -> None:
    rows = [
        Row("op_db", "exp", "float32", "eager", "forward", 0, "native", executed=["aten::exp"]),
        Row("op_db", "exp", "float32", "eager", "forward", 1, "wrong", executed=["aten::exp"]),
        Row(
            "op_db", "foo", "int64", "eager", "forward", 0, "fallback", fallbacks=["aten::foo"], executed=["aten::exp"]
        ),
        Row("op_db", "exp", "float32", "eager", "forward", 2, "skipped", executed=["aten::exp"]),
    ]
    found = operators.measured(rows)
    operators.write(tmp_path / "operators.csv", found)
    assert operators.read(tmp_path / "operators.csv") == found
    assert found == {
        ("aten::exp", "eager"): {"float32": operators.Counts(native=1, bad=1), "int64": operators.Counts(native=1)},
        ("aten::foo", "eager"): {"int64": operators.Counts(fallback=1)},
    }
    gradient = Row("op_db", "mode", "float16", "eager", "gradient", 0, "wrong-gradient", executed=["aten::zeros"])
    composed = Row(
        "op_db", "nn.functional.normalize", "float16", "eager", "forward", 0, "wrong", executed=["aten::div"]
    )
    assert [n for n, _ in operators.measured([gradient])] == ["aten::mode"], "the operator that the entry is about"
    assert [n for n, _ in operators.measured([composed])] == ["aten::div"]
    right = Row("op_db", "div", "float16", "eager", "forward", 0, "native", executed=["aten::div"])
    assert operators.measured([composed, right])["aten::div", "eager"]["float16"] == operators.Counts(native=1)
    (worst, *_) = summary.gaps(rows)
    assert worst["name"] in ("exp", "aten::foo")
    results.write_parquet(tmp_path / "rows.parquet", rows)
    assert results.read_parquet(tmp_path / "rows.parquet") == rows
