"""Whether a process still runs, as /proc tells it; a child that Ctrl-C reaches."""

from __future__ import annotations

import signal
import time
from pathlib import Path


def alive(pid: int) -> bool:
    """Whether process `pid` exists and has not ended (one that nobody has waited for yet has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def hear_interrupts() -> None:
    """In a child, before it becomes another program: a shell that runs tests in the background makes them ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ends(pid: int, seconds: float = 300.0) -> bool:
    """Whether process `pid` ends within `seconds`. A killed process takes a while to go, longer on a crowded machine."""
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)
