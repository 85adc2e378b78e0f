"""A profile of adaptive eager: operators run later than they are called, and in fused programs."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from shakedown.neuron import events
from shakedown.neuron.profiling import by_line

from .running import adaptive

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


def of_device(prof: Any) -> list[Any]:
    return [e for e in prof.events() if e.device_type == DeviceType.PrivateUse1]


def total_of(prof: Any, name: str) -> float:
    (row,) = [r for r in prof.key_averages() if r.key == name and r.device_type == DeviceType.CPU]
    return row.device_time_total


def work(x: torch.Tensor) -> float:
    with record_function("first"):
        y = x * 3  # mul
        y = y.exp()  # exp
    with record_function("second"):
        z = (y - 1).sum()  # two
    return z.item()


LINES = {n: f"{__file__}({work.__code__.co_firstlineno + n}): work" for n in (2, 3, 5, 6)}


@pytest.fixture
def x() -> torch.Tensor:
    return torch.ones(4, 4, device="neuron")


def test_a_fused_program_and_its_operators(x, tmp_path):
    for _ in range(4):
        work(x)
        adaptive.wait(60)
    with profile(activities=BOTH, with_stack=True) as prof:
        assert work(x) == pytest.approx(float(((torch.ones(4, 4) * 3).exp() - 1).sum()))
    (ran,) = [e for e in of_device(prof) if e.neuron.kind == "execute"]
    (name,) = [g["name"] for g in adaptive.groups() if g["runs_fused"]]
    members = ["aten::mul.Tensor", "aten::exp", "aten::sub.Tensor", "aten::sum"]
    assert ran.name == f"adaptive::{name}"
    assert [call.name for call in ran.neuron.calls] == members
    # Its time belongs to the operators that it consists of, and to the ranges in which they were called, in equal parts.
    spent = ran.time_range.elapsed_us()
    for operator in ("aten::mul", "aten::exp", "aten::sub", "aten::sum"):
        assert total_of(prof, operator) == pytest.approx(spent / 4)
    assert total_of(prof, "first") == total_of(prof, "second") == pytest.approx(spent / 2)
    lines = {row.line: row.device_us for row in by_line(prof)}
    assert lines[LINES[2]] == lines[LINES[3]] == pytest.approx(spent / 4)
    assert lines[LINES[5]] == pytest.approx(spent / 2)
    (flush,) = [e for e in of_device(prof) if e.neuron.kind == "flush"]
    assert flush.name == "flush value read"
    assert flush.time_range.start <= ran.time_range.start <= ran.time_range.end <= flush.time_range.end
    file = tmp_path / "t.json"
    prof.export_chrome_trace(str(file))
    rows = json.loads(file.read_text())["traceEvents"]
    (row,) = [r for r in rows if r["name"] == ran.name and r["ph"] == "X"]
    assert row["args"]["operators"] == members
    assert row["args"]["lines"] == [LINES[2], LINES[3], LINES[5], LINES[5]]
    arrows = [r for r in rows if r["ph"] == "f" and r["cat"] == "ac2g" and r["tid"] == row["tid"]]
    assert len(arrows) == len(members)
    assert all(row["ts"] <= a["ts"] <= row["ts"] + row["dur"] for a in arrows)


def test_operators_that_run_one_by_one_belong_to_where_they_were_called(x):
    work(x)
    adaptive.reset()
    with profile(activities=BOTH, with_stack=True) as prof:
        work(x)
    ran = {e.name: e for e in of_device(prof) if e.neuron.kind == "execute"}
    assert {n: e.stack[0] for n, e in ran.items()} == {
        "aten::mul.Tensor": LINES[2],
        "aten::exp": LINES[3],
        "aten::sub.Tensor": LINES[5],
        "aten::sum": LINES[5],
    }
    inside = sum(ran[n].time_range.elapsed_us() for n in ("aten::mul.Tensor", "aten::exp"))
    assert total_of(prof, "first") == pytest.approx(inside)


def test_what_waits_at_the_end_is_run_for_the_profile(x):
    x + x
    torch.neuron.synchronize()
    with profile(activities=BOTH) as prof:
        x + x
    assert [e.name for e in of_device(prof) if e.neuron.kind == "execute"] == ["aten::add.Tensor"]
    assert not events.listening
    assert not events._watchers


def test_a_failing_operator_does_not_keep_the_profile_open(x):
    index = torch.tensor([7], device="neuron")
    x[torch.tensor([1], device="neuron")]

    def fails() -> None:
        with profile(activities=BOTH):
            torch.index_select(x, 0, index)

    torch.index_select(x, 0, torch.tensor([1], device="neuron"))
    with pytest.raises(IndexError):
        fails()
    assert not events.listening
    with profile(activities=BOTH) as prof:
        x + x
    assert any(e.name == "aten::add.Tensor" for e in of_device(prof))
