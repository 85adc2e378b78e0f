"""What the scan says: documents, without anything of how it was found."""

from __future__ import annotations

from typing import Literal

from ..evidence.files import Frozen

SCHEMA = "shakedown.scan/1"

# blocks: cannot run on the device as written, and no other spelling of the line helps. changes needed: raises, is ignored
# or silently computes elsewhere, and has a known replacement. costs time: runs, and makes the host or compiler wait.
# note: nothing to change before the trial; for the reviewer.
Severity = Literal["blocks", "changes needed", "costs time", "note"]
SEVERITIES: tuple[Severity, ...] = ("blocks", "changes needed", "costs time", "note")
Grade = Literal["none", "trivial", "small", "medium", "large"]
Kind = Literal[
    "device",
    "cuda",
    "package",
    "kernel",
    "pinned memory",
    "random",
    "mixed precision",
    "precision",
    "host read",
    "data-dependent shape",
    "control flow",
    "unsupported api",
    "operator",
    "compile",
    "legacy",
    "process",
    "scan",
]
# The first that applies, in this order. "import" is module level; "elsewhere" was reached from nothing that is known.
Phase = Literal[
    "forward",
    "backward",
    "optimizer",
    "training loop",
    "make_batch",
    "build_model",
    "build_optimizer",
    "import",
    "elsewhere",
]
Ran = Literal["ran", "did not run", "unknown", "not run"]


class RuleText(Frozen):
    """One rule in words. ``source`` names the publication or behaviour that `why` rests on."""

    kind: Kind
    looks_for: str
    why: str
    source: str
    instead: str
    effort: Grade


class Hit(Frozen):
    """One place in the source.

    ``line`` counts from 1 and ``column`` from 1. ``code_lines`` are the lines whose execution shows that the place ran.
    ``kernel`` names a hand-written kernel or the package that brings one. ``ran`` is "not run" until a record is joined.
    """

    rule: str
    kind: Kind
    severity: Severity
    effort: Grade
    path: str
    line: int
    column: int
    text: str
    detail: str = ""
    function: str = ""
    phase: Phase
    in_step: bool
    kernel: str = ""
    code_lines: tuple[int, ...] = ()
    ran: Ran = "not run"

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


class Ignored(Frozen):
    """A place that a comment of the workload takes out, with the comment's reason."""

    hit: Hit
    reason: str


class File(Frozen):
    """A file that was read."""

    path: str
    sha256: str
    lines: int


class Skipped(Frozen):
    """A file that could not be read, or an import that could not be followed, and why."""

    path: str
    reason: str


class Hours(Frozen):
    """Hours of one engineer, low and high: an estimate, made from counts, not from this project."""

    low: float
    high: float

    def __add__(self, other: Hours) -> Hours:
        return Hours(low=round(self.low + other.low, 2), high=round(self.high + other.high, 2))


class KindEffort(Frozen):
    """The changes of one kind: how many places, and what they cost together."""

    kind: Kind
    places: int
    hours: Hours


class Effort(Frozen):
    """``required``: places that block or need a change. ``optional``: places that cost time. Notes cost nothing."""

    grade: Grade
    required: Hours
    optional: Hours
    kinds: list[KindEffort]


class Scan(Frozen):
    """Everything that the scan of one workload or folder found. No code of the workload was imported or run."""

    schema_version: str = SCHEMA
    subject: str
    files: list[File]
    skipped: list[Skipped]
    third_party: list[str]
    hits: list[Hit]
    ignored: list[Ignored]
    rules: dict[str, RuleText]
    effort: Effort

    def count(self, severity: Severity) -> int:
        """Places of that severity."""
        return sum(hit.severity == severity for hit in self.hits)
