"""``torch.neuron.memory``: how much the device holds and held, and a limit on it. docs/memory.md says what the figures mean.

Imported by ``import torch``, and as light as that; the counting itself is in :mod:`.ledger`.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from . import events
from .ledger import freed, ledger, living, now, reset_peak, tell_of_frees

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

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_limit: int | None = None  # bytes, as set; a fraction of it may be all that this process takes
_limit_name = ""
_fraction = 1.0
_before = {"allocated": 0, "freed": 0, "requests": 0, "frees": 0, "retries": 0, "ooms": 0}  # when last set to zero


def _check(device: Any) -> None:
    from .device import _index

    _index(device)


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
    _check(device)
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
    _check(device)
    return now()


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes at any moment since :func:`reset_peak_memory_stats`.

    While a compiled program runs, what XLA says that it needs besides its results is in it.
    """
    _check(device)
    return ledger.peak


def memory_reserved(device: Any = None) -> int:
    """0: nothing is kept for later."""
    _check(device)
    return 0


def max_memory_reserved(device: Any = None) -> int:
    """0, as :func:`memory_reserved`."""
    _check(device)
    return 0


def reset_peak_memory_stats(device: Any = None) -> None:
    """The peak is what is held now."""
    _check(device)
    reset_peak()


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Count what is allocated and freed, requests, frees, retries and refusals from zero."""
    _check(device)
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
    _check(device)
    total = total_memory()
    free = total - now()
    return max(0, free if ledger.limit is not None else min(free, _available())), total


def total_memory() -> int:
    """Bytes that this process may allocate: the limit where one is set, and the machine's memory otherwise."""
    return _machine() if ledger.limit is None else ledger.limit


def _machine() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _available() -> int:
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux
        return _machine()


def readable(nbytes: float) -> str:
    """``24.00 GiB``, as PyTorch writes sizes."""
    unit = 0
    while abs(nbytes) >= 1024 and unit < len(_UNITS) - 1:
        nbytes, unit = nbytes / 1024, unit + 1
    return f"{nbytes:.2f} {_UNITS[unit]}" if unit else f"{nbytes} bytes"


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
        counts.append(("Limit", "none" if ledger.limit is None else readable(ledger.limit)))
    lines += [f"| {name:<20} {value:>{len(head) - 25}} |" for name, value in counts]
    return "\n".join([*lines, rule])


# --- the limit ----------------------------------------------------------------------------------------------------------


def set_memory_limit(nbytes: int | None) -> None:
    """Refuse whatever would make the device hold more than `nbytes`; None: no limit (ours; TorchNeuron has no such function).

    Raises:
        ValueError: `nbytes` is not a whole number above zero.
    """
    if nbytes is not None and (isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes <= 0):
        raise ValueError(f"a memory limit is a whole number of bytes above zero, or None; got {nbytes!r}")
    _set(nbytes, "torch.neuron.set_memory_limit")


def memory_limit() -> int | None:
    """The bytes that this process may hold: the limit, or the fraction of it that was asked for. None: as many as there are."""
    return ledger.limit


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Let this process hold `fraction` of the limit, or of the machine's memory where none is set.

    Raises:
        TypeError, ValueError: `fraction` is no number between 0 and 1, or `device` no device of this process.
    """
    global _fraction
    _check(device)
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _fraction = float(fraction)
    _set(_limit, _limit_name)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """What :func:`set_per_process_memory_fraction` was given; 1.0 before."""
    _check(device)
    return _fraction


def limit_by_variable() -> None:
    """Take the limit of ``SHAKEDOWN_MEMORY_LIMIT``. Called once, when the device starts.

    Raises:
        ConfigError: it is no size.
    """
    from . import config

    nbytes = config.MEMORY_LIMIT()
    if nbytes is not None and _limit is None:
        _set(nbytes, config.MEMORY_LIMIT.name)


def _set(nbytes: int | None, name: str) -> None:
    global _limit, _limit_name
    _limit, _limit_name = nbytes, "" if nbytes is None else name
    if _fraction < 1:
        ledger.limit = int((_machine() if nbytes is None else nbytes) * _fraction)
    else:
        ledger.limit = nbytes


def make_room(nbytes: int) -> None:
    """Before `nbytes` more are allocated: see that the limit allows it. What Python's collector holds on to is freed first.

    Raises:
        torch.OutOfMemoryError: it does not. Nothing has been allocated.
    """
    limit = ledger.limit
    if limit is None or nbytes <= 0 or now() + nbytes <= limit:
        return
    ledger.retries += 1
    gc.collect()
    if now() + nbytes > limit:
        ledger.ooms += 1
        _refuse(nbytes, limit)


def _refuse(nbytes: int, limit: int) -> NoReturn:
    held = now()
    why = [f"set by {_limit_name}"] if _limit_name else []
    if _fraction < 1:
        why.append(f"{_fraction:.0%} of the memory by torch.neuron.set_per_process_memory_fraction")
    raise torch.OutOfMemoryError(
        f"Neuron out of memory. Tried to allocate {readable(nbytes)}. Device 0 has a total capacity of {readable(limit)} of "
        f"which {readable(max(0, limit - held))} is free. {readable(held)} is allocated by PyTorch. The capacity is a limit, "
        f"{', '.join(why)}. torch.neuron.memory_summary() tells more."
    )


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
            buffer.Template.new = _new_and_tell(buffer.Template.new)  # type: ignore[method-assign]
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
