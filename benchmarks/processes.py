"""What Linux tells about processes: their processor time and memory. Elsewhere ``/proc`` is missing, and so are the figures."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")


def _stat(pid: int) -> list[str] | None:
    """The fields of ``/proc/PID/stat`` from the state on; None when the process has ended."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def tree(root: int) -> list[int]:
    """`root` and all processes below it, parents first."""
    below: dict[int, list[int]] = {}
    for entry in PROC.iterdir() if PROC.exists() else ():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))) is not None:
            below.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += below.get(pid, [])
    return found


def busy_seconds() -> float | None:
    """Processor seconds used by the whole machine since boot; None where the system does not tell."""
    stat = PROC / "stat"
    if not stat.exists():
        return None
    fields = [int(f) for f in stat.read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """Processor seconds used so far by this process and all below it, those that have ended (and were awaited) included."""
    ticks = 0
    for pid in tree(os.getpid()):
        fields = _stat(pid)
        if fields is not None:
            ticks += sum(int(f) for f in fields[11:15])  # user and system: its own, and of children that have ended
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """MiB of memory that the process holds now."""
    pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
