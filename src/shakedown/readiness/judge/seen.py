"""What the decision is made from: everything that was judged before it, as one value with the questions asked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..evidence import Identity
from ..requirements import Requirements
from .measured import PooledTiming
from .results import FAILED, CaseResult, Cell, CellResult, Finding

UNLIKE = "not comparable: "  # begins the reason of a case whose evidence must not be put together with its reference's


@dataclass(frozen=True)
class Seen:
    """Cells with their results (in the same order), all findings, pooled times, and who measured, by cell."""

    cells: Sequence[Cell]
    results: Sequence[CellResult]
    findings: Sequence[Finding]
    timings: Sequence[PooledTiming]
    identities: Mapping[str, Identity]
    requirements: Requirements
    rehearsal: bool

    def pairs(self) -> list[tuple[Cell, CellResult]]:
        """Every process with its result."""
        return list(zip(self.cells, self.results, strict=True))

    def candidates(self) -> list[tuple[Cell, CellResult]]:
        """Processes on the target."""
        return [(cell, result) for cell, result in self.pairs() if cell.mode != "reference"]

    def tested(self) -> list[str]:
        """Processes on the target about which something can be said."""
        return [cell.id for cell, result in self.candidates() if result.verdict != "untested"]

    def failed(self) -> list[str]:
        """Processes on the target that failed, each with how."""
        return [f"{cell.id}: {result.verdict}" for cell, result in self.candidates() if result.verdict in FAILED]

    def doubtful(self) -> list[str]:
        """CPU runs outside their own gates. A varied case that the CPU cannot do at this precision (an overflow, say)
        decides nothing about the others.
        """
        return [
            cell.id
            for cell, result in self.pairs()
            if cell.mode == "reference" and any(c.verdict == "mismatch" and "~" not in c.case for c in result.cases)
        ]

    def cases(self) -> list[tuple[Cell, CaseResult]]:
        """Every case on the target, with its process."""
        return [(cell, case) for cell, result in self.candidates() for case in result.cases]

    def compared(self) -> list[tuple[Cell, CaseResult]]:
        """Cases on the target that were set against float64 truth."""
        return [(cell, case) for cell, case in self.cases() if case.verdict in ("match", "mismatch")]

    def unlike(self) -> list[str]:
        """Why cases that ran on the target could not be compared, each reason once: they stand on other ground."""
        reasons = (case.reason for _, case in self.cases() if case.reason.startswith(UNLIKE))
        return list(dict.fromkeys(reasons))

    def bad_cases(self) -> list[tuple[Cell, CaseResult]]:
        """Cases on the target that differ, or whose process ended in them. A time that ran out shows nothing wrong."""
        return [(cell, case) for cell, case in self.cases() if case.verdict in ("mismatch", "crashed", "killed")]

    def failing(self) -> list[Finding]:
        """Findings that make their cell fail."""
        return [finding for finding in self.findings if finding.fails]

    def with_words(self, *words: str) -> list[Finding]:
        """Findings of these words, whatever stands in brackets behind."""
        return [
            finding for finding in self.findings if finding.word.partition("(")[0] in words or finding.word in words
        ]

    def paths_hidden(self) -> bool:
        """Whether some case does not show what left the device."""
        return any(case.paths is not None and case.paths.fallbacks is None for _, case in self.cases())
