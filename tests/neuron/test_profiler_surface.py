"""``torch.neuron.profiling``: TorchNeuron's names, each with the effect that is documented for it."""

from __future__ import annotations

import copy
import json
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from shakedown.neuron.profiling import NeuronConfig, NeuronProfiler, ProfileMode

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


@pytest.fixture(scope="module")
def step() -> Any:
    layer, x = torch.nn.Linear(16, 16).to("neuron"), torch.ones(8, 16, device="neuron")

    def step() -> float:
        return layer(x).relu().sum().item()

    step()
    return step


def of_device(prof: Any) -> list[Any]:
    return [e for e in prof.events() if e.device_type == DeviceType.PrivateUse1]


def trace_of(prof: Any, path: Path) -> dict[str, Any]:
    prof.export_chrome_trace(str(path))
    return json.loads(path.read_text())


def test_the_names():
    assert torch.neuron.profiling.__all__ == [
        "Line",
        "NeuronConfig",
        "NeuronProfiler",
        "ProfileMode",
        "by_line",
        "line_table",
    ]
    assert set(torch.neuron.profiling.__all__) <= {
        n for n in dir(torch.neuron.profiling) if getattr(torch.neuron.profiling, n)
    }


def kinds(prof: Any) -> set[str]:
    return {e.neuron.kind for e in of_device(prof)}


def test_modes(step, tmp_path):
    for modes, expected in (
        ([ProfileMode.DEVICE], {"execute"}),
        (["runtime"], {"transfer", "synchronize"}),
        (None, {"execute", "transfer", "synchronize"}),
        ([], set()),
    ):
        with profile(activities=BOTH, experimental_config=NeuronConfig(modes=modes)) as prof:
            step()
        assert kinds(prof) == expected
        prof.key_averages().table(sort_by="self_device_time_total")
    config = NeuronConfig(modes=[ProfileMode.CPU_UTIL, ProfileMode.HOST_MEMORY])
    with profile(activities=BOTH, experimental_config=config) as prof:
        step()
        time.sleep(0.03)
    counters: dict[str, list[float]] = {}
    for row in trace_of(prof, tmp_path / "t.json")["traceEvents"]:
        if row["ph"] == "C":
            counters.setdefault(row["name"], []).extend(row["args"].values())
    assert set(counters) == {"CPU of this process", "resident memory of this process"}
    assert min(counters["resident memory of this process"]) > 1 << 20
    assert max(counters["CPU of this process"]) > 0
    assert not kinds(prof)


def test_cores_and_limits(step):
    with profile(activities=BOTH, experimental_config=NeuronConfig(capture_enabled_for_nc="1,3-5")) as prof:
        step()
    assert not of_device(prof)
    with pytest.warns(UserWarning, match="first 3 events"):
        with profile(activities=BOTH, experimental_config=NeuronConfig(max_events_per_nc=3)) as prof:
            step()
    assert len(of_device(prof)) == 3
    assert prof.profiler._session.dropped > 0


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"modes": ["devise"]}, "there is no profile mode 'devise'"),
        ({"max_events_per_nc": 0}, "above zero"),
        ({"capture_enabled_for_nc": "0,a-2"}, "expected numbers and ranges"),
    ],
)
def test_what_a_config_refuses(wrong, text):
    with pytest.raises(ValueError, match=text):
        NeuronConfig(**wrong)


def test_what_has_no_effect_is_said(caplog):
    with caplog.at_level("DEBUG", logger="shakedown.neuron"):
        NeuronConfig(neff_cache_dir="/somewhere", precache_node_info=True)
        NeuronConfig(neff_cache_dir="/somewhere")
    assert [r.message for r in caplog.records if "neff_cache_dir" in r.message] == [
        "NeuronConfig(neff_cache_dir=...) has no effect in a rehearsal"
    ]


def test_export_trace_as_a_handler(step, tmp_path):
    config = NeuronConfig(modes=[ProfileMode.DEVICE, ProfileMode.RUNTIME], profile_output_dir=tmp_path / "out")
    with profile(activities=BOTH, experimental_config=config, on_trace_ready=NeuronProfiler(config).export_trace):
        step()
    (file,) = (tmp_path / "out").iterdir()
    assert any(r.get("cat") == "neuron_execute" for r in json.loads(file.read_text())["traceEvents"])


def test_the_context_manager(step, tmp_path):
    profiler = NeuronProfiler(neuron_output_dir=tmp_path, record_shapes=True)
    with pytest.raises(RuntimeError, match="not active"):
        profiler.stop()
    with profiler:
        with pytest.raises(RuntimeError, match="already active"):
            profiler.start()
        step()
    with pytest.raises(RuntimeError, match="not active"):
        profiler.stop()
    names = sorted(p.name for p in tmp_path.iterdir())
    assert len(names) == 2
    assert names[0].startswith("framework_mapping_")
    assert names[1] == "pytorch_trace.json"
    rows = json.loads((tmp_path / names[0]).read_text())["events"]
    linear = next(r for r in rows if r["name"] == "aten::linear")
    assert linear["operator"] == "aten::linear"
    assert linear["duration_us"] > 0
    assert linear["input_shapes"][0] == [8, 16]


def test_event_filters(step, tmp_path):
    with NeuronProfiler(neuron_output_dir=tmp_path / "a", event_filters={"types": ["transfer"]}) as profiler:
        step()
    assert kinds(profiler.profiler) == {"transfer"}
    given = NeuronProfiler(
        [ProfilerActivity.PrivateUse1], neuron_output_dir=tmp_path / "b", event_filters={"nc": [(1, 3)]}
    )
    with given:
        step()
    assert not of_device(given.profiler)
    assert [p.name for p in (tmp_path / "b").iterdir()] == ["pytorch_trace.json"]
    for wrong in ({"cores": [0]}, {"types": ["kernel"]}, {"nc": ["a"]}):
        with pytest.raises(ValueError, match="event_filters"):
            NeuronProfiler(event_filters=wrong)


def test_a_configuration_is_copied_and_sent_to_other_processes():
    config = NeuronConfig(modes=["device", "cpu_util"], max_events_per_nc=7, capture_enabled_for_nc="0,2-3")
    for again in (pickle.loads(pickle.dumps(config)), copy.copy(config), copy.deepcopy(config)):
        assert repr(again) == repr(config)
        assert (again.cores, again.kinds) == (config.cores, config.kinds)
        with profile(activities=BOTH, experimental_config=again) as prof:
            torch.ones(3, device="neuron") * 2
        assert any(e.name == "aten::mul.Tensor" for e in prof.events())
