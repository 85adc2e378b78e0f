"""Tracking, profiling, custom kernels, what torch.compile tells."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import torch_neuronx

from .contract import entry, variables
from .devices import both

_LENGTHS = iter(range(61_001, 62_000))


def fresh(*more: int) -> torch.Tensor:
    """A tensor of a size that no program has been made for in this process."""
    return torch.ones(*more, next(_LENGTHS), device="neuron")


# --- operators that ran -------------------------------------------------------------------------------------------------


@entry(
    "torch_neuronx",
    "get_executed_ops",
    source="snapshot; article",
    differs="always `aten::name.overload`, where the snapshot has three spellings, and without what only allocates, views or "
    "reads (`empty`, `set_`, `item`)",
)
def executed():
    """Distinct names as a list, after a wait"""
    x = torch.ones(2, 2, device="neuron")
    x.mm(x).add_(x).mm(x)
    torch_neuronx.synchronize()
    found = torch_neuronx.get_executed_ops()
    assert type(found) is list
    assert len(found) == len(set(found))
    assert {"aten::mm", "aten::add_.Tensor"} <= set(found)


@entry("torch_neuronx", "get_fallback_ops", source="snapshot; article")
def fallbacks():
    """Exact names of operators that ran on the CPU; views and transfers are none"""
    x = torch.randn(2, 3, device="neuron")
    x.view(3, 2).t().cpu()
    assert torch_neuronx.get_fallback_ops() == []
    torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)
    assert torch_neuronx.get_fallback_ops() == ["aten::fake_quantize_per_tensor_affine_cachemask"]


@entry("torch_neuronx", "clear_op_tracking")
def cleared():
    """Empties both lists"""
    torch.fake_quantize_per_tensor_affine(torch.ones(2, device="neuron"), 0.1, 0, 0, 255)
    torch_neuronx.clear_op_tracking()
    assert torch_neuronx.get_executed_ops() == torch_neuronx.get_fallback_ops() == []


# --- torch.compile ------------------------------------------------------------------------------------------------------


def _compiled(**options: object) -> None:
    torch._dynamo.reset()
    function = torch.compile(lambda x: x * 2 + 1, backend="neuron", **options)
    assert function(torch.ones(3, device="neuron")).tolist() == [3, 3, 3]


@both("get_dynamo_metrics")
@entry("dynamo", "get_dynamo_metrics")
def dynamo_metrics():
    """A record for each compiled graph, with the fields and the units that TorchNeuron has; Dynamo's counters too"""
    before = torch._dynamo.utils.counters["neuron"]["compiled_graphs"]
    torch_neuronx.reset_dynamo_metrics()
    _compiled()
    (record,) = torch_neuronx.get_dynamo_metrics()
    assert set(vars(record)) == {
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
    assert record.graph_node_count == 2
    assert record.torch_neuronx_compile_us > 0
    assert record.has_collectives is False
    assert abs(record.timestamp - time.time()) < 600
    assert torch._dynamo.utils.counters["neuron"]["compiled_graphs"] > before - 1


@both("reset_dynamo_metrics")
@entry("dynamo", "reset_dynamo_metrics")
def reset_dynamo():
    """Empties the list"""
    torch_neuronx.reset_dynamo_metrics()
    assert torch_neuronx.get_dynamo_metrics() == []


@entry("dynamo", "neuron_backend")
def neuron_backend():
    """A function that torch.compile takes as its backend"""
    from torch_neuronx.neuron_dynamo_backend import neuron_backend

    torch._dynamo.reset()
    assert torch.compile(lambda x: x - 1, backend=neuron_backend)(torch.ones(2, device="neuron")).tolist() == [0, 0]


@entry(
    "dynamo",
    "create_neuron_backend",
    differs="the parameters, not known of TorchNeuron's: a model's name, the backend's options",
)
def create_neuron_backend():
    """A backend with a name of its own"""
    from torch_neuronx import neuron_dynamo_backend as module

    torch._dynamo.reset()
    torch_neuronx.reset_dynamo_metrics()
    backend = module.create_neuron_backend(model_name="mine")
    torch.compile(lambda x: x - 2, backend=backend)(torch.ones(2, device="neuron"))
    assert [record.model_name for record in torch_neuronx.get_dynamo_metrics()] == ["mine"]


@entry("dynamo", "set_model_name", "get_model_name")
def model_name():
    """The name begins the names of graphs that `neuron_backend` compiles; `model_default` before"""
    from torch_neuronx import neuron_dynamo_backend as module

    assert module.get_model_name() == "model_default"
    module.set_model_name("of_the_test")
    torch._dynamo.reset()
    torch_neuronx.reset_dynamo_metrics()
    try:
        assert module.get_model_name() == "of_the_test"
        torch.compile(lambda x: x - 3, backend=module.neuron_backend)(torch.ones(2, device="neuron"))
    finally:
        module.set_model_name("model_default")
    (record,) = torch_neuronx.get_dynamo_metrics()
    assert record.graph_name.startswith("of_the_test_")


@entry("dynamo", "get_rank")
def rank():
    """The number of the device where there are no ranks"""
    from torch_neuronx.neuron_dynamo_backend import get_rank

    assert get_rank() == 0


@entry("dynamo", "NEFFExecutionError")
def neff_error():
    """A RuntimeError, of a program that breaks, and of inputs on several devices in retain-device mode"""
    from torch_neuronx.neuron_dynamo_backend import NEFFExecutionError

    assert issubclass(NEFFExecutionError, RuntimeError)
    torch._dynamo.reset()
    with variables(TORCH_NEURONX_RETAIN_DEVICE_MODE="1"), pytest.raises(RuntimeError) as caught:
        torch.compile(lambda x, y: (x + 1, y + 1), backend="neuron")(torch.ones(2, device="neuron"), torch.ones(3))
    assert isinstance(caught.value.inner_exception, NEFFExecutionError)
    assert "TORCH_NEURONX_RETAIN_DEVICE_MODE" in str(caught.value)


@entry(
    "dynamo",
    "fx_to_mlir_string",
    "save_fx_graph_txt",
    "save_fx_as_mlir",
    "save_fx_graph_all_formats",
    "load_mlir",
    "save_mlir",
    absent="helpers around Torch-MLIR, which is not used here; SHAKEDOWN_PRESERVE_ARTIFACTS writes every stage (docs/compile.md)",
)
def mlir_helpers():
    """No such names"""
    from torch_neuronx import neuron_dynamo_backend as module

    missing = "fx_to_mlir_string save_fx_graph_txt save_fx_as_mlir save_fx_graph_all_formats load_mlir save_mlir"
    assert not [name for name in missing.split() if hasattr(module, name)]


# --- kernels and profiles -----------------------------------------------------------------------------------------------


def _doubled(x, grid=(1,)):
    return x * 2 * grid[0]


@entry("torch_neuronx", "wrap_nki", source="snapshot", differs="kernels are JAX or Pallas functions (docs/kernels.md)")
def wrap_nki():
    """A callable on tensors, indexable by a grid"""
    kernel = torch_neuronx.wrap_nki(_doubled)
    assert kernel(torch.ones(3, device="neuron")).tolist() == [2, 2, 2]
    assert kernel[(3,)](torch.ones(3, device="neuron")).tolist() == [6, 6, 6]


@entry(
    "torch_neuronx",
    "nki_op",
    source="docs, snapshot",
    differs="kernels are JAX or Pallas functions (docs/kernels.md)",
)
def nki_op():
    """An operator out of a typed function, with its backward by `register_autograd`, listed under its own name"""
    kernel = torch_neuronx.wrap_nki(_doubled)
    if not hasattr(torch.ops, "contract_test") or not hasattr(torch.ops.contract_test, "doubled"):

        @torch_neuronx.nki_op("contract_test::doubled", mutates_args={})
        def doubled(x: torch.Tensor) -> torch.Tensor:
            return kernel(x)

        doubled.register_autograd(lambda ctx, grad: kernel(grad), setup_context=lambda ctx, inputs, output: None)
    x = torch.ones(3, device="neuron", requires_grad=True)
    y = torch.ops.contract_test.doubled(x)
    y.sum().backward()
    assert y.tolist() == x.grad.tolist() == [2, 2, 2]
    assert any("contract_test::doubled" in name for name in torch_neuronx.get_executed_ops())
    assert torch_neuronx.get_fallback_ops() == []


@entry("torch_neuronx", "profiling")
def profiling():
    """A submodule, imported either way"""
    from torch_neuronx.profiling import NeuronConfig

    assert torch_neuronx.profiling.NeuronConfig is NeuronConfig


@entry(
    "profiling", "NeuronConfig", source="docs", differs="`neff_cache_dir` and `precache_node_info` have no effect here"
)
def neuron_config():
    """Its documented parameters; torch.profiler takes it as experimental_config"""
    from torch_neuronx.profiling import NeuronConfig, ProfileMode

    config = NeuronConfig(
        modes=[ProfileMode.DEVICE, ProfileMode.RUNTIME],
        max_events_per_nc=1000,
        capture_enabled_for_nc="0,1,2-5",
        profile_output_dir="/tmp",
        neff_cache_dir="/tmp",
        precache_node_info=True,
    )
    x = torch.ones(8, 8, device="neuron")
    activities = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
    with profile(activities=activities, experimental_config=config) as profiler:
        x.mm(x)
        torch_neuronx.synchronize()
    row = next(r for r in profiler.key_averages() if r.key == "aten::mm")
    assert row.self_device_time_total > 0


@entry("profiling", "ProfileMode", source="docs")
def profile_mode():
    """DEVICE, RUNTIME, CPU_UTIL, HOST_MEMORY"""
    from torch_neuronx.profiling import ProfileMode

    assert {mode.name for mode in ProfileMode} == {"DEVICE", "RUNTIME", "CPU_UTIL", "HOST_MEMORY"}


@entry("profiling", "NeuronProfiler.export_trace", source="docs")
def export_trace():
    """A handler for on_trace_ready that writes a trace"""
    from torch_neuronx.profiling import NeuronConfig, NeuronProfiler

    with tempfile.TemporaryDirectory() as folder:
        handler = NeuronProfiler(NeuronConfig(profile_output_dir=folder)).export_trace
        activities = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
        with profile(activities=activities, on_trace_ready=handler):
            torch.ones(4, device="neuron").add(1)
            torch_neuronx.synchronize()
        (file,) = Path(folder).iterdir()
        assert json.loads(file.read_text())["traceEvents"]


@entry("torch_neuronx", "NeuronProfiler")
def neuron_profiler():
    """A context manager that writes pytorch_trace.json and the mapping; RuntimeError when started twice or not at all"""
    with tempfile.TemporaryDirectory() as folder:
        profiler = torch_neuronx.NeuronProfiler(neuron_output_dir=folder, event_filters={"nc": [0, (1, 3)]})
        with pytest.raises(RuntimeError):
            profiler.stop()
        with profiler:
            torch.ones(4, device="neuron").add(1)
            with pytest.raises(RuntimeError):
                profiler.start()
        names = {file.name.split("_")[0] for file in Path(folder).iterdir()}
        assert names == {"pytorch", "framework"}
