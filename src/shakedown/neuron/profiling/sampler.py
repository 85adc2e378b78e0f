"""What this process takes of the machine, sampled while a profile runs: processor time and resident memory."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

_EVERY = 0.01  # seconds
_STATM = Path("/proc/self/statm")


class Sampler:
    """A context manager; afterwards ``processor`` and ``memory`` hold (ns of ``perf_counter_ns``, per cent | bytes)."""

    def __init__(self, *, processor: bool, memory: bool) -> None:
        self._wants = processor, memory
        self.processor: list[tuple[int, float]] = []
        self.memory: list[tuple[int, int]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="shakedown profile sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._last = time.perf_counter_ns(), time.process_time_ns()
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        self._sample()

    def _work(self) -> None:
        while not self._end.wait(_EVERY):
            self._sample()

    def _sample(self) -> None:
        wants_processor, wants_memory = self._wants
        now, used = time.perf_counter_ns(), time.process_time_ns()
        then, before = self._last
        if wants_processor and now > then:
            self.processor.append((now, 100.0 * (used - before) / (now - then)))
            self._last = now, used
        if wants_memory:
            self.memory.append((now, resident_bytes()))


def resident_bytes() -> int:
    """Bytes of this process in memory; where the system does not tell, the most there ever were."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
