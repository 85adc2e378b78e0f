"""Where the time of a profiled step went, and the trace file that shows it."""

from __future__ import annotations

from .files import Frozen
from .memory import Memory
from .untrusted import FileName, RelativePath


class Trace(Frozen):
    """A profile of one case, made in a process of its own: nothing in it is a timing of the trial.

    ``file`` is relative to the run's directory, in Chrome's trace format (ui.perfetto.dev opens it); what its steps spent on
    what is computed from it when it is judged. ``memory`` has a span for the first step and one for the later ones.
    """

    schema_version: str = "shakedown.trace/1"
    cell: FileName
    case: FileName
    source: str
    steps: int
    events: int
    file: RelativePath
    sha256: str
    nbytes: int
    memory: Memory
