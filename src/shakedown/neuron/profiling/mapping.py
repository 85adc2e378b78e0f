"""Which operator of PyTorch each event of the device belongs to, as plain values."""

from __future__ import annotations

from typing import Any


def rows(profiler: Any) -> list[dict[str, Any]]:
    """One row for each event of the device in a finished ``torch.profiler.profile``; times in us from its beginning.

    ``operator`` and ``operator_id`` are of the operator on the CPU that caused it (None: none that was profiled), ``operators``
    the names of what ran in it, ``stack`` the Python lines where they were kept.
    """
    found = profiler.profiler.function_events
    names = {event.id: event.name for event in found if getattr(event, "neuron", None) is None}
    made = []
    for event in found:
        device = getattr(event, "neuron", None)
        if device is not None:
            linked = event.linked_correlation_id
            made.append(
                {
                    "name": event.name,
                    "kind": device.kind,
                    "nc": device.core,
                    "start_us": event.time_range.start,
                    "duration_us": event.time_range.elapsed_us(),
                    "bytes": device.nbytes,
                    "detail": device.detail,
                    "operator": names.get(linked) if linked else None,
                    "operator_id": linked or None,
                    "operators": [call.name for call in device.calls],
                    "input_shapes": event.input_shapes,
                    "stack": event.stack,
                }
            )
    return made
