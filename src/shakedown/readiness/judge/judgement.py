"""Everything that follows from evidence and requirements: what :func:`.decision.judge` returns and a record holds."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..cost.payback import Payback
from ..evidence import Frozen
from ..scan.results import Scan
from .break_even import BreakEven
from .disposition import Decision
from .fusion import FusionSummary
from .graphs import GraphSummary
from .measured import MemorySummary, PooledTiming
from .parity import ParityResult
from .probes import ProbeSummary
from .projection import Projection
from .results import BetweenModes, CellResult, Finding, Statement
from .shapes import ShapeLedger
from .traces import TraceSummary


class OlderVerdict(Frozen):
    """What records had before there was a decision: a verdict, its sentence, and the statements that it rested on."""

    verdict: Literal["passed", "failed", "inconclusive"]
    sentence: str
    statements: list[Statement]


class Judgement(Frozen):
    """The decision with all that it rests on. Keys of the dicts are cells; those of fusion, cases within them.
    ``scan`` is the reading of the source, with whether each place ran; None where it is missing or damaged."""

    decision: Decision
    cells: list[CellResult]
    between_modes: list[BetweenModes]
    timings: list[PooledTiming]
    memory: list[MemorySummary]
    graphs: dict[str, GraphSummary]
    fusion: dict[str, dict[str, FusionSummary]]
    probes: list[ProbeSummary]
    traces: dict[str, list[TraceSummary]]
    scan: Scan | None
    findings: list[Finding]
    parity: list[ParityResult] = Field(default=[])
    projection: Projection | None = None  # of counted programs on a published instance; never a measurement
    break_even: list[BreakEven] = Field(default=[])
    shapes: ShapeLedger | None = None
    payback: Payback | None = None  # of the costs that the requirements give; nothing of it is measured
    older: OlderVerdict | None = None  # only in records of versions that had no decision
