"""From ``time.perf_counter_ns``, which the device's events carry, to the clock of PyTorch's profiler.

Kineto reads the processor's counter and converts it to the time of day. Instead of guessing that conversion, the profile holds a
few ranges of our own, entered and left between readings of our clock: each says where the difference of the two clocks must
lie, and together they say it to a fraction of a microsecond. At the beginning and at the end, because clocks drift.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch._C._profiler import _RecordFunctionFast

MARKER = "shakedown.clock"
_MARKS = 8

Bracket: TypeAlias = tuple[int, int, int]  # our clock: before a range, inside it, after it, in ns
Span: TypeAlias = tuple[int, int]  # the same range in the profiler's clock: its start and its end, in ns


def mark() -> list[Bracket]:
    """Put ranges into the profile that is running. (The first one is slow, and says little.)"""
    found, read = [], time.perf_counter_ns
    for _ in range(_MARKS):
        marker = _RecordFunctionFast(MARKER)
        before = read()
        with marker:
            inside = read()
        found.append((before, inside, read()))
    return found


@dataclass(frozen=True)
class Clock:
    """``profiler's = ours + offset``, with the offset in a straight line between two moments.

    ``unsure_ns`` is by how much a converted time may be wrong.
    """

    first: tuple[int, int]  # (our time, offset)
    last: tuple[int, int]
    unsure_ns: int = 0

    def convert(self, ours: int) -> int:
        """`ours`, of ``time.perf_counter_ns``, in ns of the profiler's clock."""
        (start, offset), (end, later) = self.first, self.last
        if end == start:
            return ours + offset
        return ours + offset + (later - offset) * (ours - start) // (end - start)


def fit(brackets: Sequence[Sequence[Bracket]], spans: Sequence[Span]) -> Clock | None:
    """The clock from the marks at the beginning and the end, and where the profile has them; None: it does not have them all."""
    if sum(map(len, brackets)) != len(spans) or not spans:
        return None
    points, unsure, rest = [], 0, sorted(spans)
    for group in brackets:
        mine, rest = rest[: len(group)], rest[len(group) :]
        low = max(max(start - inside, end - after) for (_, inside, after), (start, end) in zip(group, mine))
        high = min(min(start - before, end - inside) for (before, inside, _), (start, end) in zip(group, mine))
        points.append((group[0][0], (low + high) // 2))
        unsure = max(unsure, abs(high - low) // 2 + 1)
    return Clock(points[0], points[-1], unsure)


def time_of_day() -> Clock:
    """The clock of a profile that has no marks, since it does not record ranges: the time of day, which Kineto's follows."""
    before, day, after = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
    offset = day - (before + after) // 2
    return Clock((before, offset), (before, offset), 100_000)
