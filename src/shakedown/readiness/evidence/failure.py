"""What went wrong beside the numbers: a case that ended in an exception, and what a workload left running."""

from __future__ import annotations

from .files import Frozen


class Failure(Frozen):
    """The exception by type and message; its traceback is in the process's standard error."""

    case: str
    error: str
    message: str


class Leftovers(Frozen):
    """Threads that were still running when the process had finished its work: in production they would keep it alive."""

    threads: list[str]
