"""One row of the ledger of shapes: what the traffic says of a shape, and what the trial saw of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..evidence import Frozen
from .graphs import GraphSummary
from .measured import PooledTiming
from .results import CaseResult, Cell, CellResult
from .step_cost import Costs, StepCost, shape_of

MODES = (
    "compiled",
    "adaptive",
    "eager",
)  # the first that was timed is taken: shapes matter most where they are compiled


class ShapeFamily(Frozen):
    """All lengths that are computed as one shape, ``size`` x ``length``: a program of its own on a static-shape target.

    ``share`` of the traffic, ``requests`` where they were counted; ``lengths`` distinct ones from ``shortest`` to
    ``longest``; ``waste``, the share of computed positions that are padding. From the compiled processes of the trial:
    ``calls`` of the compiled function and ``compiled`` graphs in the cold one (programs of the first step, in modes without
    graphs), ``reused``, the share of calls that ran a graph compiled before, ``ran_eager``, calls that a limit left
    uncompiled, ``loaded_warm``, programs that the warm process found in its cache. None: the trial did not run this shape, or
    the target does not tell.
    """

    size: int
    length: int
    share: float
    requests: int | None
    lengths: int
    shortest: int
    longest: int
    waste: float
    calls: int | None
    compiled: int | None
    reused: float | None
    ran_eager: int | None
    loaded_warm: int | None
    step: StepCost


@dataclass(frozen=True)
class Distribution:
    """Weights by batch size, length and the length that it is padded to today. ``note`` is what a reader should know of it."""

    source: str
    weights: Mapping[tuple[int, int, int], float]
    requests: int | None = None
    sha256: str = ""
    note: str = ""


@dataclass(frozen=True)
class Tried:
    """What a trial says about shapes; empty where there was none."""

    cells: Sequence[Cell] = ()
    results: Sequence[CellResult] = ()
    timings: Sequence[PooledTiming] = ()
    graphs: Mapping[str, GraphSummary] = field(default_factory=dict)

    def side(self, mode: str, dtype: str) -> tuple[str, str]:
        """The mode and precision to look at: those asked for, or the first of :data:`MODES` that has a time, or ran."""
        ran = [(c.mode, c.dtype) for c in self.cells if c.mode != "reference" and c.outcome.status != "untested"]
        timed = [(one.mode, one.dtype) for one in self.timings if one.median is not None]
        for some in (timed, ran):
            fitting = [s for s in some if s[0] in MODES and mode in ("", s[0]) and dtype in ("", s[1])]
            if fitting:
                return min(fitting, key=lambda s: MODES.index(s[0]))
        return mode, dtype


@dataclass(frozen=True)
class Rows:
    """Makes rows of the ledger."""

    known: Distribution
    tried: Tried
    mode: str
    dtype: str
    paid: Costs

    def row(self, shape: tuple[int, int], own: Mapping[int, float]) -> ShapeFamily:
        """The family of `shape`, with the share of each length in it."""
        size, length = shape
        share = sum(own.values())
        needed = sum(weight * one for one, weight in own.items())
        count = self.known.requests
        cold, warm = self._cases(shape, warm=False), self._cases(shape, warm=True)
        calls = compiled = eager = None
        reused = None
        rows = [
            row
            for cell, case in cold
            if cell.id in self.tried.graphs
            for row in self.tried.graphs[cell.id].ledger
            if row.case == case.case
        ]
        if rows:
            calls, compiled = sum(row.calls for row in rows), sum(row.compiled for row in rows)
            eager = sum(row.ran_eager for row in rows)
            fresh = sum(bool(row.compiled) for row in rows) + sum(row.without_graph for row in rows)
            reused = (calls - fresh) / calls if calls else None
        elif self.mode != "compiled":
            counted = [case.paths.compiled for _, case in cold if case.paths and case.paths.compiled is not None]
            compiled = sum(counted) if counted else None
        loaded = [case.paths.loaded for _, case in warm if case.paths and case.paths.loaded is not None]
        return ShapeFamily(
            size=size,
            length=length,
            share=share,
            requests=None if count is None else round(share * count),
            lengths=len(own),
            shortest=min(own),
            longest=max(own),
            waste=max(0.0, 1 - needed / (share * length)) if share else 0.0,
            calls=calls,
            compiled=compiled,
            reused=reused,
            ran_eager=eager,
            loaded_warm=sum(loaded) if loaded else None,
            step=self.paid.of(size, length),
        )

    def _cases(self, shape: tuple[int, int], warm: bool) -> list[tuple[Cell, CaseResult]]:
        """Results of the shape in the sequences of one cache state."""
        return [
            (cell, case)
            for cell, result in zip(self.tried.cells, self.tried.results, strict=True)
            if (cell.mode, cell.dtype, cell.kind) == (self.mode, self.dtype, "sequence")
            and (cell.cache == "warm") == warm
            for case in result.cases
            if shape_of(case.case) == shape
        ]
