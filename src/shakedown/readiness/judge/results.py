"""The values that judgement produces. They are part of the record, so each is a pydantic model with a JSON schema."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ..evidence import FileName, Frozen, RelativePath
from .path_results import PathSummary as PathSummary

# match: within every gate. mismatch: outside one. crashed, timeout, killed: what became of the process.
# untested: not run or not judgeable, with the reason; never counted as a pass.
Verdict = Literal["match", "mismatch", "crashed", "timeout", "killed", "untested"]
FAILED: tuple[Verdict, ...] = ("mismatch", "crashed", "timeout", "killed")


class Outcome(Frozen):
    """What became of one process. ``exit_code`` is negative for a signal, None where nothing was started."""

    status: Literal["finished", "crashed", "timeout", "killed", "untested"]
    exit_code: int | None = None
    seconds: float = 0.0
    stderr_file: RelativePath | None = None
    stderr_tail: str = ""
    reason: str = ""


# What a process is for. sequence: all cases in order, each from the snapshot, so that reuse is seen. single: one case alone,
# for a cold start of its own and as one more process of its timing. variation: one case that was changed. probe: single
# operators near those of the workload. restart: training that was saved, ended and loaded. parity: trained for many steps, for
# its losses. trace: profiled, never timed.
Kind = Literal["sequence", "single", "variation", "probe", "restart", "parity", "trace"]


class Cell(Frozen):
    """One process of the trial: mode, precision and cache state. ``cases`` run in it in this order."""

    id: FileName
    kind: Kind = "sequence"
    mode: Literal["reference", "eager", "compiled", "adaptive"]
    dtype: str
    cache: Literal["cold", "warm", "none"]
    target: str
    cases: list[FileName]
    outcome: Outcome


class TensorSummary(Frozen):
    """The tensor that used most of its allowance, and how many there were."""

    judged: int
    failed: int
    worst_name: str
    worst_margin: float
    worst_relative_l2: float
    worst_allowed: float
    worst_ratio_to_cpu: float | None
    largest_outside_criterion: float | None


class Decisions(Frozen):
    """Decisions of one output. ``margin_*`` are quartiles of truth's distance to a tie, in allowed distances: below 1 is a
    near tie. ``cpu_flips`` are flips of the CPU at the same precision, for scale.
    """

    name: str
    kind: str
    rows: int
    flips: int
    near_ties: int
    wrong: int
    cpu_flips: int | None
    explained: float
    margin_q1: float | None
    margin_median: float | None
    margin_q3: float | None
    share_of_near_ties: float
    first_wrong: str = ""


class Series(Frozen):
    """Seconds of a step: median and quartiles over `n` steps of one process. ``withheld`` says why not to use it."""

    n: int
    median: float
    q1: float
    q3: float
    p90: float | None
    spread: float
    warnings: list[str]
    withheld: str = ""


class TimingSummary(Frozen):
    """Seconds: start-up of the process, its first step by phase, later steps whole and by phase."""

    startup: dict[str, float]
    first_step: dict[str, float]
    first_step_foreign_cores: float | None
    later: Series
    later_phases: dict[str, float]


class CaseResult(Frozen):
    """The judgement of one case in one process."""

    case: str
    verdict: Verdict
    reason: str = ""
    findings: list[str] = Field(default=[])
    tensors: TensorSummary | None = None
    losses: dict[str, float | None] = Field(default={})
    training_steps: int | None = None
    graphs: dict[str, Any] | None = None
    paths: PathSummary | None = None
    timing: TimingSummary | None = None
    decisions: list[Decisions] = Field(default=[])


class CellResult(Frozen):
    """The judgement of one process: its worst case decides."""

    cell: str
    verdict: Verdict
    reason: str = ""
    cache_proof: str
    cache_proved: bool
    repeats: str
    repeats_equal: bool = False
    cases: list[CaseResult]


class BetweenModes(Frozen):
    """Largest relative L2 difference between two modes of the device in step 1, over outputs, loss and gradients."""

    one: str
    other: str
    case: str
    bit_equal: bool
    relative_l2: float
    tensor: str


class Finding(Frozen):
    """What a check found. ``word`` is a fixed term (``recompile-bound``, ``precision-blocked(float64)``); ``fails`` decides
    whether the cell fails by it; what does not fail is for the reader.
    """

    word: str
    cell: str
    case: str = ""
    text: str
    fails: bool


class Statement(Frozen):
    """One sentence of the decision. measured, documented or open; rehearsal where our own device was the target."""

    kind: Literal["measured", "rehearsal", "documented", "open"]
    text: str
