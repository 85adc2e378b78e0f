"""In the script's process: begin when the device is loaded, and leave a report when Python ends.

Called by ``import torch``, so only PyTorch is there; what is counted is read from the device's own stream of events at the end.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
import traceback
from multiprocessing import util
from pathlib import Path
from typing import Any

import torch

from . import job, places

_DEVICE = "neuron"
_MOST_ROWS = (
    500  # operators, breaks and the like of one kind in a report; a script that has more of them has other troubles
)
_forked = False
_started = time.time()


def begin(root: Path) -> None:
    """Do in this process what the command in the directory `root` was asked for. Nothing, where the directory is gone."""
    try:
        told = job.read(root)
    except OSError:  # a process that outlives the command
        return
    job.started_by(root, os.getpid()).touch()
    atexit.register(_leave, root)  # not run in children of multiprocessing that were forked, such as a DataLoader's
    os.register_at_fork(after_in_child=_in_child)
    util.register_after_fork(_leave, lambda leave: util.Finalize(None, leave, (root,), exitpriority=0))
    from ..neuron import torch_gaps_memory

    torch_gaps_memory.close_factories()  # pinned memory may be asked for before anybody uses the device
    if told.redirect_cuda:
        from . import redirect

        redirect.begin()
    if told.default_device:
        torch.set_default_device(_DEVICE)


def _in_child() -> None:
    global _forked, _started
    _forked, _started = True, time.time()
    places.forget()


def _leave(root: Path) -> None:
    """Write the report. The script's end is not to be disturbed by it, whatever happens."""
    try:
        found = collect()
    except Exception:
        found = {"pid": os.getpid(), "argv": _argv(), "failure": traceback.format_exc(limit=-3)}
    file = job.report_of(root, os.getpid())
    part = file.with_suffix(".part")
    try:
        part.write_text(json.dumps(found, default=str))
        os.replace(part, file)
    except OSError as error:
        print(f"shakedown exec: the report of process {os.getpid()} was not written: {error}", file=sys.stderr)


def _argv() -> list[str]:
    return [str(word) for word in getattr(sys, "argv", [])][:50]


def collect() -> dict[str, Any]:
    """What happened in this process so far, as plain values."""
    device = getattr(torch, _DEVICE)
    found: dict[str, Any] = {
        "pid": os.getpid(),
        "argv": _argv(),
        "forked": _forked,
        "seconds": round(time.time() - _started, 3),
        "torch": torch.__version__,
        "places": places.rows(),
        "used": not _forked and device.is_initialized(),
    }
    if not found["used"]:
        return found
    from shakedown.neuron import events

    rows = events.snapshot()
    report = device.compile_report() if "shakedown.neuron.modes.compile" in sys.modules else {}
    return found | {
        "adaptive": device.adaptive.enabled(),
        "profile": device.profile(),
        "operators": _operators(rows),
        "fallbacks": _fallbacks(rows),
        "transfers": _summed(rows, "transfer"),
        "programs": _programs(rows),
        "graphs": {name: report[name][:_MOST_ROWS] for name in sorted(report)},
        "memory": _memory(device),
    }


def _operators(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Operators and graphs that ran on the device, the most frequent first."""
    counts: dict[str, int] = {}
    for row in rows:
        if row["kind"] == "execute":
            counts[row["name"]] = counts.get(row["name"], 0) + row["count"]
    return [{"name": n, "count": c} for n, c in sorted(counts.items(), key=lambda one: (-one[1], one[0]))]


def _fallbacks(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        if row["kind"] == "fallback":
            one = found.setdefault(
                (row["name"], row["detail"]),
                {"name": row["name"], "reason": row["detail"], "count": 0, "nbytes": 0, "seconds": 0.0},
            )
            for key in ("count", "nbytes", "seconds"):
                one[key] += row[key]
    return sorted(found.values(), key=lambda one: (-one["count"], one["name"]))[:_MOST_ROWS]


def _summed(rows: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["kind"] == kind:
            one = found.setdefault(row["name"], {"name": row["name"], "count": 0, "nbytes": 0})
            one["count"] += row["count"]
            one["nbytes"] += row["nbytes"]
    return [found[name] for name in sorted(found)]


def _programs(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many programs were compiled here, and how many came from the cache on disk."""
    found = {"compiled": 0, "compile_seconds": 0.0, "cached": 0}
    for row in rows:
        if row["kind"] == "compile":
            found["compiled" if row["detail"] == "compiled" else "cached"] += row["count"]
            if row["detail"] == "compiled":
                found["compile_seconds"] += row["seconds"]
    return found


def _memory(device: Any) -> dict[str, int | None]:
    """Bytes on the device: the highest that there were at a time, where the device keeps that, and those at the end."""
    peak = getattr(device, "max_memory_allocated", None)
    return {"peak_bytes": None if peak is None else int(peak()), "bytes_at_end": int(device.live_bytes())}
