"""What torch.compile tells of the programs that it made: metrics, counters, and files of every stage."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

_STAMP = r"\d{8}_\d{6}_\d{6}"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.neuron.reset_dynamo_metrics()
    yield
    torch._dynamo.reset()


def train(name: str) -> torch.Tensor:
    weight = torch.ones(3, 3, device="neuron", requires_grad=True)
    run = torch.compile(lambda w, x: (x @ w).tanh().sum(), backend="neuron", options={"model_name": name})
    run(weight, torch.ones(2, 3, device="neuron")).backward()
    assert weight.grad is not None
    return weight.grad


def test_metrics_have_a_record_for_each_program():
    counters = torch._dynamo.utils.counters["neuron"]
    before = counters["compiled_graphs"]
    train("Told")
    forward, backward = torch.neuron.get_dynamo_metrics()
    assert {f.name for f in dataclasses.fields(forward)} == {
        "graph_id",
        "graph_name",
        "model_name",
        "has_collectives",
        "graph_node_count",
        "timestamp",
        "torch_neuronx_fx_passes_us",
        "torch_neuronx_lower_us",
        "torch_neuronx_compile_us",
    }
    assert re.fullmatch(r"told_\d+_forward_0", forward.graph_name)
    assert re.fullmatch(r"told_\d+_backward_0", backward.graph_name)
    assert forward.model_name == "told"
    assert not forward.has_collectives
    assert forward.graph_node_count >= 3
    assert forward.graph_id != backward.graph_id
    for record in (forward, backward):
        assert 0 < record.torch_neuronx_fx_passes_us < 60e6
        assert 0 < record.torch_neuronx_lower_us < 60e6
        assert 0 < record.torch_neuronx_compile_us < 600e6
    assert counters["compiled_graphs"] == before + 2
    assert len(torch._dynamo.utils.compilation_time_metrics["torch_neuronx_lower"]) >= 2
    torch.neuron.reset_dynamo_metrics()
    assert torch.neuron.get_dynamo_metrics() == []


def test_other_strides_are_another_program_of_the_graph():
    run = torch.compile(lambda x: x + 1, backend="neuron")
    run(torch.ones(3, 3, device="neuron"))
    run(torch.ones(3, 3, device="neuron").t())
    names = [record.graph_name.rpartition("_")[2] for record in torch.neuron.get_dynamo_metrics()]
    assert len(names) == 2
    assert len({record.graph_id for record in torch.neuron.get_dynamo_metrics()}) == 2


def test_files_of_every_stage(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_NEURONX_DEBUG_DIR", str(tmp_path / "debug"))
    train("quiet")
    assert not (tmp_path / "debug").exists()
    monkeypatch.setenv("TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS", "1")
    monkeypatch.setenv("SHAKEDOWN_CACHE", "0")
    torch._dynamo.reset()
    train("kept")
    found = {p.relative_to(tmp_path / "debug").parts[0]: [] for p in (tmp_path / "debug").glob("*/proc_0/*")}
    for path in sorted((tmp_path / "debug").glob("*/proc_0/*")):
        found[path.relative_to(tmp_path / "debug").parts[0]].append(path)
    both = r"kept_\d+_(backward|forward)_0_" + _STAMP
    patterns = {
        "fx_graphs": r"kept_\d+_" + _STAMP + r"\.fx\.txt",
        "transformed_fx": both + r"\.transformed\.fx\.txt",
        "programs": both + r"\.program\.txt",
        "stablehlo": both + r"\.stablehlo\.mlir",
        "optimised_hlo": both + r"\.hlo\.txt",
        "timings": both + r"\.timings\.json",
    }
    for kind, pattern in patterns.items():
        assert len(found[kind]) == (1 if kind == "fx_graphs" else 2), kind
        assert all(re.fullmatch(pattern, path.name) for path in found[kind]), (kind, found[kind])
    text = {kind: found[kind][-1].read_text() for kind in patterns}  # forward comes after backward
    assert "tanh" in text["fx_graphs"]
    assert "torch.ops.aten.tanh.default" in text["transformed_fx"]
    assert "= aten.tanh.default(" in text["programs"]
    assert "stablehlo.tanh" in text["stablehlo"]
    assert "HloModule" in text["optimised_hlo"]
    timings = json.loads(text["timings"])
    assert timings["model_name"] == "kept"
    assert timings["torch_neuronx_compile_us"] > 0
    assert not list((tmp_path / "debug").glob("*/proc_0/.*"))  # nothing half written
    for path in found.get("executables", []):
        assert path.stat().st_size > 0


def test_files_of_a_graph_that_draws_and_writes(tmp_path, monkeypatch):
    monkeypatch.setenv("SHAKEDOWN_DEBUG_DIR", str(tmp_path))
    monkeypatch.setenv("SHAKEDOWN_PRESERVE_ARTIFACTS", "1")

    def function(x):
        x.add_(1)
        return torch.nn.functional.dropout(x, 0.5)

    x = torch.zeros(8, device="neuron")
    torch.manual_seed(4)
    result = torch.compile(function, backend="neuron")(x)
    torch.manual_seed(4)
    assert torch.equal(result, torch.nn.functional.dropout(torch.ones(8, device="neuron"), 0.5))
    assert x.tolist() == [1] * 8
    (path,) = tmp_path.glob("stablehlo/proc_0/*.mlir")
    assert "func.func public @main" in path.read_text()
    assert list(tmp_path.glob("optimised_hlo/proc_0/*.hlo.txt"))


def test_a_directory_that_cannot_be_written_is_one_warning(tmp_path, monkeypatch):
    taken = tmp_path / "taken"
    taken.write_text("a file")
    monkeypatch.setenv("SHAKEDOWN_DEBUG_DIR", str(taken))
    monkeypatch.setenv("SHAKEDOWN_PRESERVE_ARTIFACTS", "1")
    with pytest.warns(UserWarning, match="artefacts cannot be written to .*SHAKEDOWN_DEBUG_DIR") as said:
        gradient = train("unwritten")
    assert gradient.shape == (3, 3)
    assert len([w for w in said if "artefacts" in str(w.message)]) == 1
    assert Path(taken).read_text() == "a file"
