"""Every error the trial raises on purpose.

::

    TrialError
    ├── BadInput          the request cannot be run as asked; nothing was measured          (exit code 2)
    │   ├── WorkloadError     unknown workload, unreadable file, or a workload that raises
    │   └── OutputExists      the output directory is already there and is left as it is
    ├── EvidenceError     evidence is damaged, of another version, or must not be blended
    ├── TimerError        the end of work on a target cannot be awaited, so no time of it means anything
    ├── RecordError       a record cannot be read, or does not verify
    └── Interrupted       stopped by the user; what was measured so far is kept             (exit code 130)
"""

from __future__ import annotations


class TrialError(Exception):
    """Base of all errors of the trial."""


class BadInput(TrialError):
    """The request cannot be run as asked. The message says what was asked, what was found and what to try."""


class WorkloadError(BadInput):
    """The workload is unknown, unreadable, does not follow the protocol, or raises on the CPU."""


class OutputExists(BadInput):
    """The output directory exists; a trial never writes into a directory that it did not make."""


class EvidenceError(TrialError):
    """A file of evidence is damaged, has another schema version, or comes from another host or snapshot."""


class TimerError(TrialError):
    """The target has no usable way to wait for its work. A time taken anyway could be wrong by any factor."""


class RecordError(TrialError):
    """A record is missing, unreadable, or is not what it was when it was sealed."""


class Interrupted(TrialError):
    """The user stopped the trial; evidence of the finished cells stays on disk."""
