"""``torch.neuron.memory``: how much the device holds and held, and a limit on it. docs/memory.md says what the figures mean.

Imported by ``import torch``, and as light as that; the counting itself is in :mod:`.ledger`.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import events
from .ledger import freed, ledger, living, now, reset_peak, tell_of_frees
from .memory_limit import (
    check_device,
    machine_memory,
)
from .memory_limit import (
    get_per_process_memory_fraction as get_per_process_memory_fraction,
)
from .memory_limit import (
    memory_limit as memory_limit,
)
from .memory_limit import (
    set_memory_limit as set_memory_limit,
)
from .memory_limit import (
    set_per_process_memory_fraction as set_per_process_memory_fraction,
)
from .sizes import readable

__all__ = [  # what torch.neuron has from here
    "empty_cache",
    "get_per_process_memory_fraction",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_limit",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_memory_limit",
    "set_per_process_memory_fraction",
]

_before = {"allocated": 0, "freed": 0, "requests": 0, "frees": 0, "retries": 0, "ooms": 0}  # when last set to zero


def _requests() -> int:
    """Storages that there ever were, empty ones left out."""
    buffer = sys.modules.get(f"{__package__}.buffer")  # not loaded: there was none
    return 0 if buffer is None else buffer.addresses() - ledger.empty


def memory_stats(device: Any = None) -> dict[str, Any]:
    """What was allocated, in bytes, under TorchNeuron's keys.

    ``allocated_bytes``, ``active_bytes`` and ``reserved_bytes`` are dictionaries of ``current``, ``peak`` and, since
    :func:`reset_accumulated_memory_stats`, ``allocated`` and ``freed``. Nothing is reserved: memory is given back when its
    storage ends. ``num_alloc_retries`` counts requests over the limit for which Python's collector was run, ``num_ooms`` those
    that were refused; ``num_tensor_frees`` and ``allocation_requests`` count storages.

    Raises:
        ValueError: `device` is no device of this process.
    """
    check_device(device)
    made, gone, requests = ledger.allocated, freed(), _requests()
    held = {
        "current": made - gone,
        "peak": ledger.peak,
        "allocated": made - _before["allocated"],
        "freed": gone - _before["freed"],
    }
    return {
        "allocated_bytes": held,
        "reserved_bytes": dict.fromkeys(held, 0),
        "active_bytes": dict(held),
        "num_alloc_retries": ledger.retries - _before["retries"],
        "num_ooms": ledger.ooms - _before["ooms"],
        "num_tensor_frees": requests - living() - _before["frees"],
        "allocation_requests": requests - _before["requests"],
    }


def memory_allocated(device: Any = None) -> int:
    """Bytes of all storages of the device that live, each once, however many tensors share it."""
    check_device(device)
    return now()


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes at any moment since :func:`reset_peak_memory_stats`.

    While a compiled program runs, what XLA says that it needs besides its results is in it.
    """
    check_device(device)
    return ledger.peak


def memory_reserved(device: Any = None) -> int:
    """0: nothing is kept for later."""
    check_device(device)
    return 0


def max_memory_reserved(device: Any = None) -> int:
    """0, as :func:`memory_reserved`."""
    check_device(device)
    return 0


def reset_peak_memory_stats(device: Any = None) -> None:
    """The peak is what is held now."""
    check_device(device)
    reset_peak()


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Count what is allocated and freed, requests, frees, retries and refusals from zero."""
    check_device(device)
    requests = _requests()
    _before.update(
        allocated=ledger.allocated,
        freed=freed(),
        requests=requests,
        frees=requests - living(),
        retries=ledger.retries,
        ooms=ledger.ooms,
    )


def empty_cache() -> None:
    """Nothing to do: memory goes back when its storage ends."""


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes. The total is the limit where one is set, and the machine's memory otherwise."""
    check_device(device)
    limit = memory_limit()
    total = machine_memory() if limit is None else limit
    free = total - now()
    return max(0, min(free, _available()) if limit is None else free), total


def total_memory() -> int:
    """Bytes that this process may allocate: the limit where one is set, and the machine's memory otherwise."""
    limit = memory_limit()
    return machine_memory() if limit is None else limit


def _available() -> int:
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux
        return machine_memory()


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The figures of :func:`memory_stats` as a table for people; `abbreviated` leaves out what is the same or 0 by nature."""
    stats = memory_stats(device)
    columns = ("current", "peak", "allocated", "freed")
    rows = [("Allocated", stats["allocated_bytes"])]
    if not abbreviated:
        rows += [("Active", stats["active_bytes"]), ("Reserved", stats["reserved_bytes"])]
    head = f"| {'Memory':<12} |" + "".join(f" {name.capitalize():>12} |" for name in columns)
    rule = "|" + "-" * (len(head) - 2) + "|"
    lines = [
        rule,
        f"|{'Neuron Memory Summary':^{len(head) - 2}}|",
        f"|{'Device 0':^{len(head) - 2}}|",
        rule,
        head,
        rule,
    ]
    for name, row in rows:
        lines.append(f"| {name:<12} |" + "".join(f" {readable(row[column]):>12} |" for column in columns))
    lines.append(rule)
    counts = [
        ("Allocation requests", stats["allocation_requests"]),
        ("Tensor frees", stats["num_tensor_frees"]),
        ("Retries", stats["num_alloc_retries"]),
        ("Out of memory", stats["num_ooms"]),
    ]
    if not abbreviated:
        limit = memory_limit()
        counts.append(("Limit", "none" if limit is None else readable(limit)))
    lines += [f"| {name:<20} {value:>{len(head) - 25}} |" for name, value in counts]
    return "\n".join([*lines, rule])


_BLOCKS = "memory is not kept in segments and blocks: memory_stats() and memory_summary() have what is held"
_HISTORY = "no history of allocations is kept: torch.profiler with profile_memory=True has each, and memory.telling() tells of it"
_ALLOCATOR = "the device has no allocator that could be chosen, called or given pools"
_HOST = "pinned memory is ordinary memory of the host, and nobody counts it"
_PEAKS = "reset_peak_memory_stats() begins anew"
_ABSENT = {  # of torch.cuda's names: why there is no such thing
    **dict.fromkeys(("memory_snapshot", "memory_stats_as_nested_dict", "memory_cached", "max_memory_cached"), _BLOCKS),
    **dict.fromkeys(("_snapshot", "_dump_snapshot", "_record_memory_history"), _HISTORY),
    **dict.fromkeys(("reset_max_memory_allocated", "reset_max_memory_cached"), _PEAKS),
    **dict.fromkeys((f"caching_allocator_{name}" for name in ("alloc", "delete", "disabled", "enable")), _ALLOCATOR),
    **dict.fromkeys(("change_current_allocator", "get_allocator_backend", "MemPool", "use_mem_pool"), _ALLOCATOR),
    **dict.fromkeys(("host_memory_stats", "host_memory_stats_as_nested_dict", "reset_peak_host_memory_stats"), _HOST),
    "reset_accumulated_host_memory_stats": _HOST,
    "CUDAPluggableAllocator": _ALLOCATOR,
    "list_gpu_processes": "the device is this process's own, and no other holds memory of it",
}


def absent(name: str) -> AttributeError:
    """What to raise for a name that ``torch.neuron`` has not."""
    why = f": {_ABSENT[name]}" if name in _ABSENT else ""
    return AttributeError(f"module 'torch.neuron' has no attribute {name!r}{why}")


def __getattr__(name: str) -> Any:
    raise absent(name)


# --- telling ------------------------------------------------------------------------------------------------------------


@contextmanager
def telling() -> Iterator[None]:
    """While open, every storage that begins or ends is an event of kind "memory" for whoever listens to :mod:`.events`.

    Its name is ``allocate`` or ``free``, ``nbytes`` the storage's size, ``detail`` what the device holds afterwards. It comes in
    the thread that makes the storage or lets go of it. While closed, it costs nothing.
    """
    _tell_from_now_on(1)
    try:
        yield
    finally:
        _tell_from_now_on(-1)


_tellers = 0
_lock = threading.Lock()


def _tell_from_now_on(more: int) -> None:
    """Have storages tell while anybody wants it: :class:`.buffer.Template` and the ends of storages get other functions."""
    global _tellers
    from . import buffer

    with _lock:
        before, _tellers = _tellers, _tellers + more
        if not before:
            buffer.Template.new = _new_and_tell(buffer.Template.new)  # type: ignore[method-assign,assignment]
            tell_of_frees(lambda nbytes: _tell("free", nbytes))
        elif not _tellers:
            tell_of_frees(None)
            buffer.Template.new = buffer.Template.new.__wrapped__  # type: ignore[attr-defined,method-assign]


def _tell(name: str, nbytes: int) -> None:
    events.emit(events.Event("memory", name, events.current_phase(), time.perf_counter_ns(), 0, nbytes, str(now())))


def _new_and_tell(new: Callable[[Any, Any], torch.Tensor]) -> Callable[[Any, Any], torch.Tensor]:
    @functools.wraps(new)
    def told(template: Any, value: Any) -> torch.Tensor:
        made = new(template, value)
        if template.nbytes:
            _tell("allocate", template.nbytes)
        return made

    return told
