"""What localisation found, as documents. Nothing here imports torch.

Schema history: ``/1`` first version.
"""

from __future__ import annotations

from typing import Literal

from ..evidence import Frozen

SCHEMA = "shakedown.bisect/1"

# located: an operator (or the smallest compiled part) is named. module: a module differs, none of its operators does.
# nothing: everything agrees, and did in the trial. not reproduced: the trial's cell failed, and here everything agrees.
# unobservable: this stage cannot be looked into here, with the reason. died: the process that looked did not survive.
Verdict = Literal["located", "module", "nothing", "not reproduced", "unobservable", "died"]
Phase = Literal["data", "forward", "backward", "optimizer"]


class Numbers(Frozen):
    """The error of one tensor against float64, as the trial's numerics measure it; norms are relative."""

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    relative_l2: float
    allowed_relative_l2: float
    margin: float
    ratio_to_cpu: float | None
    worst_row: int | None
    worst_row_relative_l2: float | None
    max_abs: float
    max_abs_at: tuple[int, ...]
    nonfinite_mismatches: int
    scale_minus_one: float | None
    findings: list[str]


class Module(Frozen):
    """The module whose inputs agree and whose output, or gradient, does not.

    ``path`` is its name in the model, empty for the model itself, and None for the workload's own ``forward`` around it;
    ``call`` counts the calls of this module in the step, from 0.
    """

    path: str | None
    kind: str
    call: int
    numbers: list[Numbers]


class Operator(Frozen):
    """The operator whose result is wrong for the inputs that it was given; several where only together they are."""

    names: list[str]
    line: str
    number: int  # position among the operators of its phase, from 1
    numbers: list[Numbers]
    raised: str = ""


class NotJudged(Frozen):
    """Operators that localisation cannot call right or wrong, with the reason."""

    operator: str
    reason: str
    count: int


class Stage(Frozen):
    """What one process found. ``mode`` is the mode that it looked into, which need not be the cell's."""

    mode: str
    verdict: Verdict
    text: str
    phase: Phase | None = None
    module: Module | None = None
    operator: Operator | None = None
    operators_judged: int = 0
    operators_counted: int = 0
    not_judged: tuple[NotJudged, ...] = ()
    case: str = ""  # folder of the runnable case, relative to bisect.json
    case_note: str = ""


class Bisect(Frozen):
    """``bisect.json``: the answer, and what it was looked for in."""

    schema_version: str = SCHEMA
    record: str
    record_seal: str
    label: str
    cell: str
    case: str
    step: int
    mode: str
    dtype: str
    target: str
    workload_sha256: str
    verdict: Verdict
    text: str
    stages: list[Stage]

    @property
    def found(self) -> Stage | None:
        """The stage that decided, when something was found."""
        return next((s for s in self.stages if s.verdict in ("located", "module")), None)

    @property
    def exit_code(self) -> int:
        """0 when there is nothing to localise; anything else is a negative result."""
        return 0 if self.verdict == "nothing" else 1
