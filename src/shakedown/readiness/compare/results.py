"""What a comparison of two records says. ``before`` is the baseline, ``after`` the record that is judged against it.

Seconds, bytes and counts as in the records. None: not measured, not observable, or not in that record; it is never zero.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..evidence import Frozen
from ..judge.resample import Interval
from ..judge.results import FAILED, Verdict

COMPARISON_SCHEMA = "shakedown.comparison/1"
Label = Literal["rehearsal", "measurement", "self-check"]
# Which differences of two identities matter for what. host: a time means nothing beside one of another host. settings: what
# processes were started with. software: versions, which a comparison is often about.
Group = Literal["host", "settings", "software"]
# broken: matched and fails now. no longer tested: had a verdict and has none now. still fails: failed before, so no regression.
# fails now: was untested, so no regression, and no success either.
Change = Literal["broken", "no longer tested", "fixed", "newly tested", "fails now", "still fails"]


class Side(Frozen):
    """One of the two records. ``upgraded_from`` is the older version that it was read from; that had no disposition."""

    directory: str
    seal: str
    created: str
    shakedown_version: str
    label: Label
    upgraded_from: str | None
    workload: str
    workload_sha256: str
    snapshot_sha256: str
    target: str
    quick: bool
    disposition: str
    sentence: str


class Difference(Frozen):
    """One fact about host, software or settings that is not the same. Empty: there is none; ``not recorded``: not asked for."""

    group: Group
    name: str
    before: str
    after: str


class VerdictChange(Frozen):
    """A process (``case`` empty), or one case of it, whose verdict is not what it was, or that failed before and still does.

    None: the record has no such process or case. ``why`` is the later record's own reason or first finding.
    """

    cell: str
    case: str
    before: Verdict | None
    after: Verdict | None
    change: Change
    why: str

    @property
    def regression(self) -> bool:
        """Whether something that was proved is so no more."""
        return self.change == "broken" or (self.change == "no longer tested" and self.before not in FAILED)


class ResultChange(Frozen):
    """One of the four results of the decision, the disposition itself, or loss parity in one place. None: not in that record."""

    name: str
    before: str | None
    after: str | None
    regression: bool
    why: str


class MarginChange(Frozen):
    """The tensor of one mode and precision that used most of its allowance: 1 is the gate. None: nothing was judged."""

    mode: str
    dtype: str
    before: float | None
    before_tensor: str
    after: float | None
    after_tensor: str


class TensorChange(Frozen):
    """A tensor that uses more of its allowance than before: error over allowed error."""

    cell: str
    case: str
    tensor: str
    before: float
    after: float


class FallbackChange(Frozen):
    """An operator of one phase that left the device in one of the two records only. ``cells`` are that record's."""

    change: Literal["new", "gone"]
    name: str
    phase: str
    cause: str
    modes: list[str]


class GraphChange(Frozen):
    """What ``torch.compile`` did in one process, over all its cases."""

    cell: str
    what: Literal["graphs captured", "graph breaks", "compiled again", "calls that ran as written"]
    before: int
    after: int


class FindingChange(Frozen):
    """A finding of one of the two records only. ``where`` are the processes and cases that it was found in."""

    change: Literal["new", "gone"]
    word: str
    text: str
    fails: bool
    where: list[str]


class StepChange(Frozen):
    """Step time of one mode, precision and case in both records, as medians in seconds.

    ``ratio`` is after over before, below 1 being faster, ``interval`` that of the hierarchical bootstrap over stored step
    times; both are None where they may not be set against each other, and ``why`` says so. ``claim`` is made only where the
    whole interval is further from 1 than the requirements' ``timing.between_records``. ``saving`` is before less after, in
    seconds, with its interval.
    """

    mode: str
    dtype: str
    case: str
    kind_before: Literal["measured", "rehearsal"] | None
    kind_after: Literal["measured", "rehearsal"] | None
    before: float | None
    after: float | None
    before_interval: Interval | None = None
    after_interval: Interval | None = None
    ratio: float | None = None
    interval: Interval | None = None
    saving: float | None = None
    saving_interval: Interval | None = None
    processes: int = 0
    claim: Literal["faster", "slower", "none"] = "none"
    why: str = ""


class StartChange(Frozen):
    """Median seconds from starting a process to the end of its first step. No ratio: too few starts of each kind."""

    mode: str
    dtype: str
    case: str
    cache: Literal["cold", "warm", "none"]
    before: float | None
    before_processes: int
    after: float | None
    after_processes: int


class MemoryChange(Frozen):
    """Largest bytes of one mode, precision and case. ``why`` says where two figures are not of one kind."""

    mode: str
    dtype: str
    case: str
    what: Literal["device", "host"]
    before: int | None
    after: int | None
    why: str = ""


class Effect(Frozen):
    """What changed in figures between two records: for a ledger of what each change of a migration brought.

    ``problem`` is why the two cannot be compared at all; everything else is empty then.
    """

    before_seal: str
    after_seal: str
    before_label: Label
    after_label: Label
    same_workload: bool
    problem: str = ""
    fixed: int = 0
    broken: int = 0
    fallbacks_before: int | None = None
    fallbacks_after: int | None = None
    graph_breaks_before: int | None = None
    graph_breaks_after: int | None = None
    steps: list[StepChange] = Field(default=[])
    starts: list[StartChange] = Field(default=[])
    memory: list[MemoryChange] = Field(default=[])


class Comparison(Frozen):
    """Everything that differs. ``cautions`` limit what follows from it; ``regressions`` decide the exit code."""

    schema_version: str = COMPARISON_SCHEMA
    before: Side
    after: Side
    same_workload: bool
    cautions: list[str]
    regressions: list[str]
    identity: list[Difference]
    requirements: list[str]
    results: list[ResultChange]
    verdicts: list[VerdictChange]
    unchanged: int
    margins: list[MarginChange]
    tensors: list[TensorChange]
    fallbacks: list[FallbackChange]
    graphs: list[GraphChange]
    findings: list[FindingChange]
    steps: list[StepChange]
    starts: list[StartChange]
    memory: list[MemoryChange]

    @property
    def exit_code(self) -> int:
        """1 when a verdict, or the disposition, is worse than it was."""
        return 1 if self.regressions else 0
