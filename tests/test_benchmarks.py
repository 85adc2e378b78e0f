"""The benchmarks' sides in processes of their own, and what is made of their figures. No time is asserted."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import adaptive, evidence, measure
from benchmarks.processes import PROC, tree
from benchmarks.rows import Row
from benchmarks.side import Child

from .processes import ends

needs_proc = pytest.mark.skipif(not PROC.exists(), reason="/proc tells which processes there are")


@needs_proc
def test_a_side_settles_until_all_of_it_is_fused_and_ends_with_its_compiler():
    with Child("adds", adaptive=True) as child:
        assert child.settle()
        before = child.report()["state"]
        steps = child.steps(2, wait=True)
        report = child.report()
        side, compiler = tree(child._process.pid)
    assert [step["fused"] - before["fused"] for step in steps] == [100, 200]
    assert adaptive._fused_share(before, report["state"]) == 1
    assert report["status"]["programs"]["failed"] == 0
    assert all(mib > 0 for mib in report["resident"].values())
    assert ends(side)
    assert ends(compiler)


def test_a_side_without_adaptive_eager_is_plain_eager():
    with Child("adds") as child:
        found = measure.compare(child, lambda: None, repeats=2, blocks=2, warmup=1)
        report = child.report()
    assert found.ours.median > 0
    assert report["status"] == {"enabled": False}
    assert report["fallbacks"] == []


def test_a_side_that_ended_is_an_error_and_not_a_figure():
    with Child("no such work") as child:
        with pytest.raises(RuntimeError, match="ended with 1"):
            child.seconds(1)


@needs_proc
@pytest.mark.skipif(sys.platform != "linux", reason="the signal is Linux's")
def test_a_busy_side_dies_with_the_process_that_started_it():
    busy = """
from benchmarks.side import Child
child = Child("adds")
child.seconds(1)
print(child._process.pid, flush=True)
child.seconds(10**9)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", busy], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent
    )
    with parent:
        assert parent.stdout is not None
        side = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    assert ends(side)


def test_a_row_in_which_nothing_ran_fused_is_invalid():
    row = Row("work", "peer", "<= 1.00x", "0.50x", True, {"fused_share": 0.0}, 0.5)
    found = adaptive._valid(row)
    assert found.met is False
    assert "nothing ran fused" in found.figure
    assert adaptive._valid(Row("work", "peer", "<= 1.00x", "0.50x", True, {"fused_share": 0.1}, 0.5)).met is True


@pytest.mark.parametrize(
    ("used", "best", "foreign"),
    [((50, 5, 30, 0), "b", 0.05), ((50, 20, 30, 100), "b", 0.2)],
    ids=["quiet", "never quiet"],
)
def test_the_first_quiet_attempt_counts_or_else_the_least_noisy(monkeypatch, used, best, foreign):
    """`used`: processor seconds that others use during each attempt, which lasts 100 seconds."""
    clock, busy, results = 0.0, 0.0, iter(zip("abcd", used))

    def attempt() -> str:
        nonlocal clock, busy
        name, others = next(results)
        clock, busy = clock + 100, busy + others + 7  # 7 seconds are our own
        return name

    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: clock))
    monkeypatch.setattr(measure, "busy_seconds", lambda: busy)
    monkeypatch.setattr(measure, "own_seconds", lambda: clock / 100 * 7)
    assert measure.quietest(attempt) == (best, pytest.approx(foreign))


def test_the_observed_step_keeps_what_it_says_and_goes_on_from_there(tmp_path):
    observed, plain = evidence.sides(*evidence.trained(tmp_path / "snapshot", compiled=False))
    plain()
    capture = observed()
    roles = {name.split("/")[1] for name in capture.tensors}
    assert roles == {"output", "loss", "gradient", "weight", "state"}
    kept = {name: value.clone() for name, value in capture.tensors.items()}
    plain()
    again = observed()
    for name, value in capture.tensors.items():
        assert torch.equal(value, kept[name]), "a copy that the next steps do not change"
    moved = [name for name, value in again.tensors.items() if "/weight/" in name and not torch.equal(value, kept[name])]
    assert len(moved) == len([name for name in kept if "/weight/" in name])
