"""Device time against the Python line that caused it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch.autograd import DeviceType

from .functions import EVALUATES

NO_LINE = "(no Python line)"


@dataclass
class Line:
    """What one line of the user's program had the device do.

    ``device_us`` is time of programs and transfers; ``runtime_us`` of compiling, loading, waiting, flushing and running on
    the CPU instead, where one may hold another; ``events`` counts by name. A fused program of adaptive eager counts for the
    lines of its operators in equal parts.
    """

    line: str
    device_us: float = 0.0
    runtime_us: float = 0.0
    nbytes: int = 0
    events: dict[str, float] = field(default_factory=dict)


def by_line(profiler: Any) -> list[Line]:
    """The lines of a finished profile, those with most device time first.

    `profiler` is a ``torch.profiler.profile`` (or ``torch.autograd.profiler.profile``) of the device with ``with_stack=True``. A
    line is ``file(line): function``, the innermost frame that is not PyTorch's; work of the backward pass counts for the line
    of its forward operator, or stands as ``(backward: <node>)`` where that has none.

    Raises:
        RuntimeError: the profile has no lines, or is not of the device.
    """
    profile = getattr(profiler, "profiler", profiler)
    if not getattr(profile, "with_stack", False):
        raise RuntimeError("by_line() needs the lines: profile with with_stack=True")
    if getattr(profile, "_session", None) is None:
        raise RuntimeError("by_line() needs a profile of the device: activities=[..., ProfilerActivity.PrivateUse1]")
    found: dict[str, Line] = {}
    for event in profile.function_events:
        device = getattr(event, "neuron", None)
        if device is None or event.device_type != DeviceType.PrivateUse1:
            continue
        stacks = [
            call.stack or getattr(by, "stack", None) or _node(by)
            for call, by in zip(device.calls, event.neuron_operators)
        ]
        for stack in stacks:
            line = stack[0]
            row = found.setdefault(line, Line(line))
            if device.timed:
                row.device_us += event.time_range.elapsed_us() / len(stacks)
            else:
                row.runtime_us += event.time_range.elapsed_us() / len(stacks)
            row.nbytes += device.nbytes // len(stacks)
            row.events[event.name] = row.events.get(event.name, 0) + 1 / len(stacks)
    return sorted(found.values(), key=lambda row: (-row.device_us, -row.runtime_us))


def _node(operator: Any) -> list[str]:
    """In place of a line: the node of the backward pass, where that is known and its forward's line is not.

    Adding to ``.grad`` has no forward, and a view's, which does nothing on the device, leaves no line.
    """
    while operator is not None:
        if operator.name.startswith(EVALUATES):
            return [f"(backward: {operator.name.removeprefix(EVALUATES)})"]
        operator = operator.cpu_parent
    return [NO_LINE]


def line_table(profiler: Any, row_limit: int = 20) -> str:
    """:func:`by_line` as text: a row for each line."""
    rows = by_line(profiler)[:row_limit]
    width = max([len(row.line) for row in rows] + [4])
    out = [f"{'line':<{width}}  {'device':>12}  {'runtime':>12}  what"]
    for row in rows:
        most = sorted(row.events.items(), key=lambda item: -item[1])[:3]
        what = ", ".join(f"{name} x{count:g}" for name, count in most)
        out.append(f"{row.line:<{width}}  {row.device_us:>9.1f} us  {row.runtime_us:>9.1f} us  {what}")
    return "\n".join(out)
