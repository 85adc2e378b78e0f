"""Every check that reads evidence of its own kind: a pure function from the run's directory to findings.

Adding a kind of evidence means adding its check here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..requirements import Requirements
from . import (
    cache,
    decisions,
    fusion,
    graphs,
    identity,
    leftovers,
    memory,
    padding,
    parity_cells,
    paths,
    probes,
    projection,
    restart,
    scan,
    timing,
    traces,
)
from .results import Cell, Finding

Check = Callable[[Path, list[Cell], Requirements], list[Finding]]

CHECKS: tuple[Check, ...] = (
    restart.findings,
    parity_cells.findings,
    leftovers.findings,
    timing.findings,
    memory.findings,
    cache.findings,
    paths.findings,
    graphs.findings,
    fusion.findings,
    traces.findings,
    scan.findings,
    probes.findings,
    projection.findings,
    padding.findings,
    decisions.task_findings,
    identity.findings,
)


def findings(root: Path, cells: list[Cell], requirements: Requirements) -> list[Finding]:
    """What every check finds in the run at `root`."""
    return [finding for check in CHECKS for finding in check(root, cells, requirements)]
