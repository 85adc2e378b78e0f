"""The listed surface of both packages."""

from __future__ import annotations

import torch

import shakedown
import shakedown.neuron


def test_the_device_package():
    assert shakedown.neuron.__all__ == [
        "bucketed",
        "clear_op_tracking",
        "compile_step",
        "config",
        "errors",
        "events",
        "get_executed_ops",
        "get_fallback_ops",
        "plan_buckets",
        "synchronize",
    ]
    for name in shakedown.neuron.__all__:
        assert getattr(shakedown.neuron, name) is not None


def test_the_device_module():
    assert {
        "Event",
        "Stream",
        "StreamContext",
        "_sleep",
        "clear_op_tracking",
        "compile_report",
        "compile_step",
        "count_programs",
        "current_device",
        "current_stream",
        "default_stream",
        "device",
        "device_count",
        "empty_cache",
        "get_amp_supported_dtype",
        "get_device_name",
        "get_device_properties",
        "get_dynamo_metrics",
        "get_executed_ops",
        "get_fallback_ops",
        "get_per_process_memory_fraction",
        "get_rng_state",
        "get_rng_state_all",
        "init",
        "initial_seed",
        "is_available",
        "is_bf16_supported",
        "is_initialized",
        "manual_seed",
        "manual_seed_all",
        "max_memory_allocated",
        "max_memory_reserved",
        "mem_get_info",
        "memory",
        "memory_allocated",
        "memory_limit",
        "memory_reserved",
        "memory_stats",
        "memory_summary",
        "nki_op",
        "operators_between_graphs",
        "profile",
        "profile_identity",
        "profile_rules",
        "profiling",
        "query",
        "record_event",
        "reset_accumulated_memory_stats",
        "reset_compile_report",
        "reset_dynamo_metrics",
        "reset_peak_memory_stats",
        "seed",
        "seed_all",
        "set_device",
        "set_memory_limit",
        "set_per_process_memory_fraction",
        "set_rng_state",
        "set_rng_state_all",
        "set_stream",
        "stream",
        "support_of",
        "synchronize",
        "use_profile",
        "wait_event",
        "wait_stream",
        "wrap_nki",
    } <= set(dir(torch.neuron))


def test_tracking_names_are_full_operator_names():
    shakedown.neuron.clear_op_tracking()
    x = torch.ones(2, 2, device="neuron")
    x.add_(x).mm(x)
    torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)
    executed = shakedown.neuron.get_executed_ops()
    assert {"aten::add_.Tensor", "aten::mm"} <= set(executed)
    assert shakedown.neuron.get_fallback_ops() == ["aten::fake_quantize_per_tensor_affine_cachemask"]
    shakedown.neuron.clear_op_tracking()
    assert shakedown.neuron.get_executed_ops() == shakedown.neuron.get_fallback_ops() == []


def test_the_version_is_the_distributions():
    from importlib.metadata import version

    assert shakedown.__version__ == version("shakedown")
