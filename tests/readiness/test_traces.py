"""Profiles of real steps on both devices, split into parts that add up to the whole step."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shakedown.readiness import evidence, targets
from shakedown.readiness.errors import EvidenceError
from shakedown.readiness.evidence.traces import Trace
from shakedown.readiness.judge import traces as judge
from shakedown.readiness.judge.results import Cell, Outcome
from shakedown.readiness.observe import paths, traces
from shakedown.readiness.requirements import Requirements

PAUSE = 0.02  # seconds; a busy machine makes it longer, never shorter
WIDTHS = itertools.count(29, 8)  # of models that nobody has trained yet: the first step has something to compile


def profiled(root: Path, name: str, mode: str, odd: Callable[[Any], object] | None = None) -> judge.TraceSummary:
    """One step and two later ones of a small training, with pauses at known places, in parts."""
    target = targets.get(name)
    device = targets.open_device(target)
    torch.manual_seed(0)
    width = next(WIDTHS)
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def forward(batch: torch.Tensor) -> torch.Tensor:
        return model(batch).square().mean()

    if mode == "compiled":
        torch._dynamo.reset()
        forward = torch.compile(forward, backend=target.backend, dynamic=False)

    def step(span: traces.Span) -> None:
        with span("data"):
            time.sleep(PAUSE)
            batch = torch.ones(16, width).to(device)
        with span("forward"):
            loss = forward(batch)
            if odd is not None:
                odd(batch)
        with span("backward"):
            loss.backward()
        time.sleep(PAUSE)
        with span("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(PAUSE)
        with span("logging"):
            assert loss.item() > 0
            time.sleep(PAUSE)

    tracer = traces.Tracer(target, paths.recorder(target))
    tracer.run(step, later=2)
    trace = tracer.write(root, "c", "16x1")
    assert evidence.read(Trace, root / "evidence" / "c" / "16x1.trace.json") == trace
    return judge.summarise(root, trace, on_host=name == "cpu")


def events(root: Path) -> list[dict[str, Any]]:
    return json.loads((root / "traces" / "c" / "16x1.json").read_text())["traceEvents"]


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("name", ["cpu", "neuron"])
def test_every_moment_belongs_to_one_part(tmp_path: Path, name: str, mode: str) -> None:
    summary = profiled(tmp_path, name, mode)
    assert summary.later is not None
    assert summary.later_seconds is not None
    for shares in (summary.first, summary.later):
        assert tuple(shares) == judge.PARTS
        assert sum(shares.values()) == pytest.approx(1.0)
        assert all(share >= 0 for share in shares.values())
    spent = {part: share * summary.later_seconds for part, share in summary.later.items()}
    for part in ("data preparation", "not attributed", "host overhead", "post-processing"):
        assert spent[part] >= PAUSE, part
    assert spent["device"] > 0
    assert (spent["transfer"] > 0) == (name == "neuron")
    compiles = name == "neuron" or mode == "compiled"
    assert (summary.first["compilation"] > 0) == compiles
    assert spent["compilation"] == 0
    assert [span.name for span in summary.memory] == ["first step", "later steps"]
    assert all(span.host for span in summary.memory)
    found = events(tmp_path)
    phases = [event["name"] for event in found if event.get("cat") == judge.PHASE]
    assert phases == ["data", "forward", "backward", "optimizer", "logging"] * 3
    assert [event["name"] for event in found if event.get("cat") == judge.STEP] == ["first", "later", "later"]
    if name == "neuron":
        named = {event["args"]["name"] for event in found if event["ph"] == "M"}
        assert {"device", "steps", "phases", "execute", "transfer", "compile"} <= named
        assert all(event["args"]["phase"] for event in found if event.get("cat") == "execute")
    if mode == "compiled":
        assert any(event.get("cat") == traces.COMPILE for event in found)


def test_what_leaves_the_device_is_a_part_of_its_own(tmp_path: Path) -> None:
    def quantised(batch: torch.Tensor) -> torch.Tensor:
        return torch.fake_quantize_per_tensor_affine(batch, 0.1, 0, -128, 127)

    summary = profiled(tmp_path, "neuron", "eager", quantised)
    assert summary.later is not None
    assert summary.later["operators on the CPU"] > 0


def span(category: str, name: str, start: float, stop: float) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": stop - start}


def test_where_things_overlap_the_rarer_one_counts() -> None:
    second = 1e6  # microseconds
    rows = [
        span(judge.STEP, "first", 0, 10 * second),
        span(judge.PHASE, "forward", 1 * second, 9 * second),
        span("execute", "aten::linear", 2 * second, 6 * second),  # its call compiles, so all of it makes a program
        span("compile", "linear", 3 * second, 5 * second),
        span("fallback", "aten::histc", 6 * second, 8 * second),
        span("transfer", "device-to-host", 6.5 * second, 7 * second),  # for the fallback
        span("execute", "late", 8.5 * second, 8.75 * second),
        span("execute", "before", -5 * second, 0),
    ]
    (found,) = judge.parts([{"ph": "M", "name": "process_name"}, *rows], on_host=False)
    assert found.seconds == 10
    assert {part: seconds for part, seconds in found.parts.items() if seconds} == {
        "compilation": 4.0,
        "operators on the CPU": 2.0,
        "device": 0.25,
        "host overhead": 1.75,
        "not attributed": 2.0,
    }
    with pytest.raises(EvidenceError, match="no step"):
        judge.parts([], on_host=False)


def test_results_that_are_read_are_post_processing_and_kernels_are_the_device() -> None:
    rows = [
        span(judge.STEP, "later", 0, 100),
        span(judge.PHASE, "data", 0, 20),
        span("gpu_memcpy", "Memcpy HtoD", 10, 20),
        span("cpu_op", "aten::stack", 0, 10),
        span(judge.PHASE, "forward", 20, 50),
        span("cpu_op", "aten::linear", 20, 30),
        span("kernel", "gemm", 25, 60),
        span(judge.PHASE, "logging", 60, 100),
        span("gpu_memcpy", "Memcpy DtoH", 60, 70),
    ]

    def microseconds(on_host: bool) -> dict[str, int]:
        (found,) = judge.parts(rows, on_host)
        return {part: round(seconds * 1e6) for part, seconds in found.parts.items() if seconds}

    assert microseconds(False) == {
        "transfer": 10,
        "device": 35,
        "data preparation": 10,
        "post-processing": 40,
        "host overhead": 5,
    }
    assert microseconds(True)["device"] == 40  # the operator on the CPU is the device's work there


def test_a_trace_that_was_changed_is_not_believed(tmp_path: Path) -> None:
    profiled(tmp_path, "neuron", "eager")
    cell = Cell(
        id="c",
        mode="eager",
        dtype="float32",
        cache="none",
        target="neuron",
        cases=["16x1"],
        outcome=Outcome(status="finished"),
    )
    assert judge.findings(tmp_path, [cell], Requirements()) == []
    assert len(judge.of_cell(tmp_path, cell)) == 1
    path = tmp_path / "traces" / "c" / "16x1.json"
    path.write_text(path.read_text().replace("forward", "Forward"))
    (found,) = judge.findings(tmp_path, [cell], Requirements())
    assert (found.word, found.fails) == ("untested(trace)", False)
    path.unlink()
    (found,) = judge.findings(tmp_path, [cell], Requirements())
    assert "cannot be read" in found.text
