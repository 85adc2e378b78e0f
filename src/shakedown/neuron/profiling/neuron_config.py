"""``NeuronConfig``: what of the device a profile holds. TorchNeuron's names; what has no meaning here says so in the log."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch._C._profiler import _ExperimentalConfig


class ProfileMode(enum.Enum):
    """A part of what can be profiled."""

    DEVICE = "device"  # programs that ran
    RUNTIME = "runtime"  # what went with it: compiling, loading, moving, waiting, flushing, running on the CPU instead
    CPU_UTIL = "cpu_util"  # processor time of this process, sampled
    HOST_MEMORY = "host_memory"  # resident memory of this process, sampled


KINDS = {
    ProfileMode.DEVICE: frozenset({"execute"}),
    ProfileMode.RUNTIME: frozenset(
        {"compile", "load", "trace", "transfer", "synchronize", "flush", "fallback", "memory", "other"}
    ),
}
ALL_KINDS = frozenset().union(*KINDS.values())


class NeuronConfig(_ExperimentalConfig):
    """What of the device a profile holds: ``torch.profiler.profile(..., experimental_config=NeuronConfig(...))``.

    Args:
        modes: parts to collect (None: DEVICE and RUNTIME), as :class:`ProfileMode` or by name.
        max_events_per_nc: events to keep of each core at most (None: all); later ones are counted and dropped.
        capture_enabled_for_nc: cores to collect from, ``"0,1,2-5"`` (None: all).
        profile_output_dir: where :meth:`NeuronProfiler.export_trace` writes.
        neff_cache_dir, precache_node_info: accepted without effect: the rehearsal has no NEFF files, and events have names.

    Raises:
        ValueError: there is no such mode, the list of cores cannot be read, or the number of events is not above zero.
    """

    def __init__(
        self,
        modes: Iterable[ProfileMode | str] | None = None,
        max_events_per_nc: int | None = None,
        capture_enabled_for_nc: str | None = None,
        profile_output_dir: str | Path | None = None,
        neff_cache_dir: str | Path | None = None,
        precache_node_info: bool = True,
    ) -> None:
        super().__init__()
        chosen = (ProfileMode.DEVICE, ProfileMode.RUNTIME) if modes is None else modes
        self.modes = [_mode(m) for m in ([chosen] if isinstance(chosen, (str, ProfileMode)) else chosen)]
        if max_events_per_nc is not None and (type(max_events_per_nc) is not int or max_events_per_nc <= 0):
            raise ValueError(f"max_events_per_nc={max_events_per_nc!r}: it must be a whole number above zero, or None")
        self.max_events_per_nc = max_events_per_nc
        self.capture_enabled_for_nc = capture_enabled_for_nc
        self.cores = None if capture_enabled_for_nc is None else cores_of(capture_enabled_for_nc)
        self.profile_output_dir = Path("./output" if profile_output_dir is None else profile_output_dir)
        self.neff_cache_dir, self.precache_node_info = neff_cache_dir, precache_node_info
        self.kinds: frozenset[str] = frozenset().union(*(KINDS.get(m, frozenset()) for m in self.modes))
        self._say("neff_cache_dir", neff_cache_dir is not None)
        self._say("precache_node_info", not precache_node_info)

    def __reduce__(self) -> Any:  # the base class keeps its own state in C++, where none of this is
        given = (self.modes, self.max_events_per_nc, self.capture_enabled_for_nc, self.profile_output_dir)
        return type(self), (*given, self.neff_cache_dir, self.precache_node_info)

    @staticmethod
    def _say(name: str, given: bool) -> None:
        if given:
            from .. import log

            if log.first(f"NeuronConfig {name}"):
                log.logger("profiler").debug(f"NeuronConfig({name}=...) has no effect in a rehearsal")

    def __repr__(self) -> str:
        modes = ", ".join(m.name for m in self.modes)
        return (
            f"NeuronConfig(modes=[{modes}], max_events_per_nc={self.max_events_per_nc}, "
            f"capture_enabled_for_nc={self.capture_enabled_for_nc!r}, profile_output_dir={str(self.profile_output_dir)!r})"
        )


def _mode(given: ProfileMode | str) -> ProfileMode:
    if isinstance(given, ProfileMode):
        return given
    try:
        return ProfileMode(str(given).lower())
    except ValueError:
        known = ", ".join(f"ProfileMode.{m.name}" for m in ProfileMode)
        raise ValueError(f"there is no profile mode {given!r}: choose among {known}") from None


def cores_of(text: str) -> frozenset[int]:
    """The cores that ``"0,1,2-5"`` names; ranges include both ends.

    Raises:
        ValueError: the text is no such list.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"cores {text!r}: expected numbers and ranges such as '0,1,2-5'")
        found.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(found)
