"""How much memory a step needs: peaks where the system keeps them, samples where it does not, and the words for each.

Host memory is what the system counts for this process. Device memory is what PyTorch's allocator for the device has handed
out; a driver's own memory and the code of programs are not in it.
"""

from __future__ import annotations

import gc
import mmap
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from .. import targets
from ..evidence.memory import OVERLAPPED, STEP, Memory, MemorySpan, Meter, Reading

_PROC = Path("/proc/self")
_RESET_PEAK = "5"  # to clear_refs: the peak becomes what is resident now (proc(5), since Linux 4.0)
_PROBE = 32 << 20  # bytes


class _Gauge(Protocol):
    """One kind of memory. ``reset`` begins a span, ``sample`` looks at a moment of it, ``most`` ends it."""

    meter: Meter

    def reset(self) -> None: ...
    def sample(self) -> None: ...
    def now(self) -> int | None: ...
    def most(self) -> int | None: ...


class _Unobservable:
    """No figure, and the reason."""

    def __init__(self, why: str) -> None:
        self.meter = Meter(kind="unobservable", source=why)

    def reset(self) -> None: ...
    def sample(self) -> None: ...

    def now(self) -> int | None:
        return None

    def most(self) -> int | None:
        return None


class _LinuxPeak:
    """The process's largest resident set since the reset, which Linux keeps."""

    meter = Meter(kind="peak", source="resident memory of the process (VmHWM, reset through /proc/self/clear_refs)")

    def reset(self) -> None:
        (_PROC / "clear_refs").write_text(_RESET_PEAK)

    def sample(self) -> None: ...

    @staticmethod
    def _field(name: str) -> int | None:
        for line in (_PROC / "status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024  # the unit is called kB and is 1024 bytes
        return None

    def now(self) -> int | None:
        return self._field("VmRSS")

    def most(self) -> int | None:
        return self._field("VmHWM")

    def works(self) -> bool:
        """Whether the reset does something here: memory that was used and given back must be out of the peak."""
        with mmap.mmap(-1, _PROBE) as block:
            for page in range(0, _PROBE, mmap.PAGESIZE):
                block[page] = 1
        high = self.most()
        self.reset()
        after = self.most()
        return high is not None and after is not None and high - after > _PROBE / 2


class _SinceStart:
    """The process's largest resident set since it started, which POSIX keeps and nobody can reset."""

    def __init__(self) -> None:
        import resource

        self._usage = resource.getrusage
        self._self = resource.RUSAGE_SELF
        self._unit = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, KiB elsewhere (getrusage(2) of each)
        self.meter = Meter(
            kind="since start",
            source="resident memory of the process (ru_maxrss), the most since it started: start-up may have needed more",
        )

    def reset(self) -> None: ...
    def sample(self) -> None: ...

    def now(self) -> int | None:
        return None

    def most(self) -> int | None:
        return self._usage(self._self).ru_maxrss * self._unit


class _AllocatorPeak:
    """A device module that keeps a peak."""

    def __init__(self, module: ModuleType | Any, name: str) -> None:
        self._module = module
        self.meter = Meter(
            kind="peak", source=f"{name}.max_memory_allocated(), reset by {name}.reset_peak_memory_stats()"
        )

    def reset(self) -> None:
        self._module.reset_peak_memory_stats()

    def sample(self) -> None: ...

    def now(self) -> int | None:
        return int(self._module.memory_allocated())

    def most(self) -> int | None:
        return int(self._module.max_memory_allocated())


class _Sampled:
    """A device module that only tells what it holds now: the most of the moments that were looked at."""

    def __init__(self, held: Callable[[], int], name: str) -> None:
        self._held = held
        self._most = 0
        self.meter = Meter(
            kind="sampled",
            source=f"{name}() where phases of the step begin and end; what a program holds in between is not seen",
        )

    def reset(self) -> None:
        self._most = 0

    def sample(self) -> None:
        self._most = max(self._most, int(self._held()))

    def now(self) -> int | None:
        return int(self._held())

    def most(self) -> int | None:
        return self._most


def host_gauge() -> _Gauge:
    """The best figure of this process's memory that the system has."""
    try:
        gauge = _LinuxPeak()
        if gauge.works():
            return gauge
    except OSError:
        pass  # no /proc, or one that cannot be reset
    try:
        return _SinceStart()
    except ImportError:
        return _Unobservable("this system keeps no peak of a process's memory that Python can read")


def device_gauge(target: targets.Target, module: ModuleType | Any = None) -> _Gauge:
    """The best figure of the device's memory that its module offers; `module` is that of PyTorch for the target."""
    if target.device == "cpu":
        return _Unobservable("the CPU's memory is the host's")
    if module is None:
        import torch

        module = torch.get_device_module(target.device)
    name = getattr(module, "__name__", f"torch.{target.device}")
    if name.startswith("shakedown."):
        name = f"torch.{target.device}"
    wanted = ("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats")
    if all(callable(getattr(module, one, None)) for one in wanted):
        return _AllocatorPeak(module, name)
    for current in ("live_bytes", "current_allocated_memory"):
        if callable(getattr(module, current, None)):
            return _Sampled(getattr(module, current), f"{name}.{current}")
    return _Unobservable(f"{name} has no function that tells how much memory is in use")


class Watch:
    """Measures spans of one case and gives the document of it.

    ::

        watch = Watch(target, wait)
        with watch.measure("step") as sample:
            ...          # call sample() between phases
        evidence.write(watch.document(), ...)
    """

    def __init__(
        self, target: targets.Target, wait: Callable[[], None] | None = None, module: ModuleType | Any = None
    ) -> None:
        self._wait = wait or (lambda: targets.wait(target))
        self._host, self._device = host_gauge(), device_gauge(target, module)
        _set_aside()
        self._spans: list[MemorySpan] = []
        self._readings: list[Reading] = []

    @contextmanager
    def measure(self, name: str) -> Iterator[Callable[[], None]]:
        """Measure what happens inside; the value is to be called at moments worth a sample, between phases. A span that
        raises leaves no figure.
        """
        taken = 0

        def sample() -> None:
            nonlocal taken
            self._wait()
            self._host.sample()
            self._device.sample()
            taken += 1

        gc.collect()  # what earlier steps left for the collector is not this one's
        self._wait()
        before = self._device.now()
        self._host.reset()
        self._device.reset()
        sample()
        yield sample
        sample()
        self._spans.append(
            MemorySpan(
                name=name,
                host=self._host.most(),
                device=self._device.most(),
                device_before=before,
                device_after=self._device.now(),
                samples=taken,
            )
        )

    def read(self) -> None:
        """Look at what is held now, between two steps."""
        gc.collect()
        self._wait()
        self._readings.append(Reading(host=self._host.now(), device=self._device.now()))

    def document(self) -> Memory:
        """What was measured so far."""
        return Memory(host=self._host.meter, device=self._device.meter, spans=self._spans, readings=self._readings)


def _set_aside() -> None:
    """Collect once, and let the collections before each reading look only at what is made from now on.

    Otherwise each goes through the million objects of torch and JAX, half a second at a time. What an earlier call set
    aside is looked at again first, so that nothing of an earlier case is kept.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


Span = Callable[[str], AbstractContextManager[Any]]


def sampled(span: Span, sample: Callable[[], None]) -> Span:
    """`span`, with a sample where each phase begins and ends."""

    @contextmanager
    def both(name: str) -> Iterator[None]:
        sample()
        with span(name):
            yield
        sample()

    return both


def of_steps(watch: Watch, step: Callable[[Span], object], overlapped: Callable[[Span], object], span: Span) -> Memory:
    """Measure one step alone, and one while the next batch is on the device already, as a loader that works ahead has it.

    `step` and `overlapped` do one step each with the span they are given; `overlapped` moves a second batch to the device
    first and holds on to it.
    """
    for name, does in ((STEP, step), (OVERLAPPED, overlapped)):
        with watch.measure(name) as sample:
            does(sampled(span, sample))
    return watch.document()
