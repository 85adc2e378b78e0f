"""``torch_neuronx.metrics``: what compiling and the caches cost, counted and sampled while it is enabled."""

from shakedown.neuron.metrics import (
    begin,
    clear_all,
    clear_counters,
    clear_metrics,
    get_compilation_metrics,
    get_counter_names,
    get_counter_value,
    get_metric_data,
    get_metric_names,
    is_enabled,
    report,
    report_filtered,
    set_enabled,
)

__all__ = [
    "clear_all",
    "clear_counters",
    "clear_metrics",
    "get_compilation_metrics",
    "get_counter_names",
    "get_counter_value",
    "get_metric_data",
    "get_metric_names",
    "is_enabled",
    "report",
    "report_filtered",
    "set_enabled",
]
begin()
