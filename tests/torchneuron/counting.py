"""Metrics and utils."""

from __future__ import annotations

import tempfile
import time

import pytest
import torch

from .contract import entry, variables
from .tools import fresh

# --- metrics ------------------------------------------------------------------------------------------------------------


def metrics():
    from torch_neuronx import metrics

    return metrics


@entry("metrics", "is_enabled", "set_enabled")
def enabled():
    """Off at first; nothing is counted while it is off"""
    module = metrics()
    assert module.is_enabled() is False
    module.clear_all()
    fresh().add(1)
    assert set(map(module.get_counter_value, module.get_counter_names())) == {0}
    module.set_enabled(True)
    assert module.is_enabled() is True
    module.set_enabled(False)


def _measured(calls: int = 3, **settings: str) -> dict[str, int]:
    """The counters after one operator was compiled in an empty cache, and called so often."""
    module = metrics()
    x = fresh()
    with tempfile.TemporaryDirectory() as folder, variables(SHAKEDOWN_CACHE_DIR=folder, **settings):
        module.clear_all()
        module.set_enabled(True)
        try:
            for _ in range(calls):
                x.sin_()
            torch.neuron.synchronize()
        finally:
            module.set_enabled(False)
    return {
        name.removeprefix("CompilationCache."): module.get_counter_value(name) for name in module.get_counter_names()
    }


@entry("metrics", "get_counter_names", "get_counter_value")
def counters():
    """Names, and an int for each; None for a name that does not exist"""
    module = metrics()
    assert module.get_counter_value("no such counter") is None
    assert all(type(module.get_counter_value(name)) is int for name in module.get_counter_names())


@entry(
    "metrics",
    "CompilationCache.InMemoryHits",
    "CompilationCache.InMemoryMisses",
    "CompilationCache.PersistentHits",
    "CompilationCache.PersistentMisses",
    "CompilationCache.Evictions",
    "CompilationCache.TotalCompilations",
)
def counted():
    """Of a program that is called three times; of one that memory does not keep; of a cache that has room for one entry"""
    once = {"TotalCompilations": 1, "InMemoryMisses": 1, "PersistentMisses": 1, "PersistentHits": 0, "Evictions": 0}
    assert _measured() == {**once, "InMemoryHits": 2}
    assert _measured(TORCH_NEURONX_DISABLE_NEFF_CACHE="1") == {
        **once,
        "InMemoryHits": 0,
        "InMemoryMisses": 3,
        "PersistentHits": 2,
    }
    assert _measured(1, NEURON_COMPILATION_CACHE_MAX_ENTRIES="1")["Evictions"] >= 1


@entry("metrics", "get_metric_names", "get_metric_data")
@entry(
    "metrics",
    "CompilationCache.CompilationTime",
    "CompilationCache.MemoryUsage",
    differs="TorchNeuron's units are not known; here milliseconds of each compilation, bytes of all executables",
)
def data():
    """accumulator, total_samples, repr, samples of timestamp_ns and value; None for a name that does not exist"""
    found = _measured()
    module = metrics()
    for name in ("CompilationCache.CompilationTime", "CompilationCache.MemoryUsage"):
        assert name in module.get_metric_names()
        data = module.get_metric_data(name)
        assert set(data) == {"accumulator", "total_samples", "repr", "samples"}
        assert all(s["value"] > 0 and abs(s["timestamp_ns"] / 1e9 - time.time()) < 600 for s in data["samples"])
        assert data["accumulator"] == pytest.approx(sum(s["value"] for s in data["samples"]))
        assert data["total_samples"] >= found["TotalCompilations"] > 0
    assert module.get_metric_data("no such metric") is None


@entry("metrics", "report", "report_filtered")
def reports():
    """Text with all names, or with those that are asked for"""
    module = metrics()
    full = module.report()
    assert all(name in full for name in (*module.get_counter_names(), *module.get_metric_names()))
    part = module.report_filtered(["CompilationCache.Evictions"], [])
    assert "CompilationCache.Evictions" in part
    assert "CompilationTime" not in part


@entry(
    "metrics",
    "get_compilation_metrics",
    differs="what TorchNeuron's holds is not known; here every counter and metric by name",
)
def compilation_metrics():
    """A dict"""
    module = metrics()
    assert set(module.get_compilation_metrics()) == {*module.get_counter_names(), *module.get_metric_names()}


@entry("metrics", "clear_counters", "clear_metrics", "clear_all")
def clearing():
    """Set counters, metrics or both to nothing"""
    module = metrics()
    _measured()
    module.clear_counters()
    assert set(map(module.get_counter_value, module.get_counter_names())) == {0}
    assert module.get_metric_data("CompilationCache.CompilationTime")["total_samples"] > 0
    module.clear_metrics()
    assert module.get_metric_data("CompilationCache.CompilationTime")["samples"] == []
    _measured()
    module.clear_all()
    assert module.get_counter_value("CompilationCache.TotalCompilations") == 0
    assert module.get_metric_data("CompilationCache.MemoryUsage")["total_samples"] == 0


# --- utils --------------------------------------------------------------------------------------------------------------


@entry("utils", "get_neuron_registered_ops")
def registered():
    """A set, a list in order when it is to be sorted, overloads when variants are to be kept"""
    from torch_neuronx.utils import get_neuron_registered_ops

    bare, full = get_neuron_registered_ops(), get_neuron_registered_ops(as_sorted=True, keep_variant=True)
    assert full == sorted(full)
    assert {"aten::mul", "aten::mm"} <= set(bare)
    assert "aten::mul.Tensor" in full
    assert {name.split(".")[0] for name in full} == set(bare)
    assert "aten::fake_quantize_per_tensor_affine_cachemask" not in bare


@entry("utils", "use_mlir_aten_ops")
def mlir():
    """What TORCH_NEURONX_MLIR_ATEN_OPS says, True by default"""
    from torch_neuronx.utils import use_mlir_aten_ops

    with variables():
        assert use_mlir_aten_ops() is True
    with variables(TORCH_NEURONX_MLIR_ATEN_OPS="0"):
        assert use_mlir_aten_ops() is False


@entry("utils", "is_sync_mode_enabled")
def sync_mode():
    """NEURON_LAUNCH_BLOCKING"""
    from torch_neuronx.utils import is_sync_mode_enabled

    with variables():
        assert is_sync_mode_enabled() is False
    with variables(NEURON_LAUNCH_BLOCKING="1"):
        assert is_sync_mode_enabled() is True


@entry("utils", "get_logical_neuron_cores")
def logical_cores():
    """A string: NEURON_LOGICAL_NC_CONFIG, or 2"""
    from torch_neuronx.utils import get_logical_neuron_cores

    with variables():
        assert get_logical_neuron_cores() == "2"
    with variables(NEURON_LOGICAL_NC_CONFIG="1"):
        assert get_logical_neuron_cores() == "1"


@entry(
    "utils",
    "get_platform_target",
    differs="the platform that is rehearsed, trn2 unless SHAKEDOWN_PLATFORM_TARGET says trn3",
)
def platform():
    """trn2 or trn3"""
    from torch_neuronx.utils import get_platform_target

    with variables():
        assert get_platform_target() == "trn2"
    with variables(SHAKEDOWN_PLATFORM_TARGET="trn3"):
        assert get_platform_target() == "trn3"


@entry("utils", "is_neff_cache_disabled")
def neff_cache():
    """TORCH_NEURONX_DISABLE_NEFF_CACHE"""
    from torch_neuronx.utils import is_neff_cache_disabled

    with variables():
        assert is_neff_cache_disabled() is False
    with variables(TORCH_NEURONX_DISABLE_NEFF_CACHE="1"):
        assert is_neff_cache_disabled() is True
