"""``torch_neuronx.metrics`` beside the contract's checks, the table of graphs, and files that cannot be written."""

from __future__ import annotations

import itertools

import pytest
import torch

from shakedown.neuron import events, metric_tables, metrics

_LENGTHS = itertools.count(52_001)


def fresh() -> torch.Tensor:
    return torch.ones(next(_LENGTHS), device="neuron")


@pytest.fixture(autouse=True)
def off():
    yield
    metrics.set_enabled(False)
    metrics.clear_all()


def test_off_nothing_listens_and_on_operators_build_no_events():
    assert not metrics.is_enabled()
    x = fresh().add(1)
    tally = events.tally("aten::add.Tensor")
    assert type(tally) is events.Tally
    assert metrics not in [getattr(f, "__module__", None) for f in events._watchers + events._of_records]
    metrics.set_enabled(True)
    metrics.set_enabled(True)  # once more changes nothing
    listening = events.listening
    x.add(1)
    assert listening is False, "operators that run are counted by their tallies, not by events"
    assert metrics.get_counter_value("CompilationCache.InMemoryHits") == 1
    metrics.set_enabled(False)
    assert type(tally) is events.Tally
    x.add(1)
    assert metrics.get_counter_value("CompilationCache.InMemoryHits") == 1


def test_whoever_clears_the_stream_changes_no_counter():
    metrics.set_enabled(True)
    x = fresh()
    x.mul(2)
    torch.neuron.clear_op_tracking()
    events.clear()
    x.mul(2)
    torch.neuron.synchronize()
    found = metrics.get_compilation_metrics()
    assert found["CompilationCache.InMemoryHits"] == 1
    assert found["CompilationCache.InMemoryMisses"] == 2  # ones and mul


def test_a_compiled_graph_is_one_look_up(fresh_dynamo):
    function = torch.compile(lambda x: (x * 2).sin() + 1, backend="neuron")
    x = fresh()
    metrics.set_enabled(True)
    for _ in range(3):
        function(x)
    assert metrics.get_counter_value("CompilationCache.InMemoryHits") == 2
    assert metrics.get_counter_value("CompilationCache.InMemoryMisses") == 1


def test_the_latest_samples_are_kept_and_all_are_counted():
    metric = metrics._Metric()
    for value in range(3000):
        metric.add(value)
    assert (metric.total, len(metric.samples)) == (3000, metrics._SAMPLES)
    assert metric.accumulator == sum(range(3000))
    assert metric.samples[-1][1] == 2999


def test_the_variable_is_read_once(monkeypatch):
    monkeypatch.setenv("TORCH_NEURONX_METRICS_ENABLED", "1")
    monkeypatch.setattr(metrics, "_begun", False)
    metrics.begin()
    assert metrics.is_enabled()
    metrics.set_enabled(False)
    metrics.begin()  # the device starts later than the module is imported
    assert not metrics.is_enabled()


def test_a_file_that_cannot_be_written_is_a_warning(monkeypatch, tmp_path, fresh_dynamo):
    (tmp_path / "file").write_text("")
    x = fresh()
    monkeypatch.setenv("TORCH_NEURONX_DUMP_HLO_PB", "1")
    monkeypatch.setenv("TORCH_NEURONX_DUMP", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="StableHLO cannot be written"):
        assert x.sin().shape == x.shape
    x.cos()  # said once
    monkeypatch.setenv("TORCH_NEURONX_METRICS_DIR", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="graph_stats cannot be written"):
        metric_tables.graph_stats()


def test_the_table_has_a_row_for_each_graph(monkeypatch, tmp_path, fresh_dynamo):
    torch.neuron.reset_dynamo_metrics()
    torch.compile(lambda x: x * 4, backend="neuron")(torch.ones(3, device="neuron"))
    monkeypatch.setenv("TORCH_NEURONX_METRICS_DIR", str(tmp_path / "made"))
    metric_tables.graph_stats()
    (file,) = (tmp_path / "made").iterdir()
    assert file.name == "metric_table_graph_stats_rank0.csv"
    head, row = file.read_text().splitlines()
    record = torch.neuron.get_dynamo_metrics()[0]
    assert dict(zip(head.split(","), row.split(",")))["graph_name"] == record.graph_name
