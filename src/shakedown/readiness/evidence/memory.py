"""How much memory a step needs, on the host and on the device."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .files import Frozen

MEMORY_SCHEMA = "shakedown.memory/1"
STEP, OVERLAPPED = "step", "step, next batch on the device"  # names of the spans that every case has
# peak: the largest of all moments. sampled: the largest of the moments that were looked at, which a peak between two of
# them exceeds. since start: a peak that cannot be reset, so an earlier step may have made it.
Kind = Literal["peak", "sampled", "since start", "unobservable"]


class Meter(Frozen):
    """What a figure is, by which means, and why there is none where it is unobservable."""

    kind: Kind
    source: str


class MemorySpan(Frozen):
    """Bytes in one measured span: the most, and what was held when it began and when it had ended. None: not known."""

    name: str
    host: int | None
    device: int | None
    device_before: int | None
    device_after: int | None
    samples: int


class Reading(Frozen):
    """Bytes that were held after one more step, when nothing was left for the collector. None: not known."""

    host: int | None
    device: int | None


class Memory(Frozen):
    """Memory of single steps of one case. ``readings`` follow some later steps, one after the other."""

    schema_version: str = MEMORY_SCHEMA
    host: Meter
    device: Meter
    spans: list[MemorySpan]
    readings: list[Reading] = Field(default=[])
