"""Which processes measured one mode, precision and case, and which of them count.

Nothing here picks a process by how fast it was. A process is left out because its clock failed, strangers ran beside it, it
is not comparable, or it never became steady; each is counted and named. One whose numbers are wrong withholds the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from .. import evidence as ev
from ..evidence import Evidence, SelfTest
from ..requirements import Timing
from . import timing
from .results import Cell
from .series import Steady

TIMED = ("sequence", "single", "variation")  # kinds of processes whose steps are timed
Key = tuple[str, str, str]  # mode, precision, case


@dataclass(frozen=True)
class Process:
    """One process's steady steps of one case."""

    cell: Cell
    evidence: Evidence
    state: Steady
    seconds: np.ndarray

    @property
    def started(self) -> float | None:
        return self.evidence.timings.later.started


@dataclass
class Group:
    """All processes that were to measure one mode, precision and case."""

    key: Key
    cells: list[Cell]
    seen: list[Process]
    used: list[Process]
    left_out: dict[str, str]
    withheld: str = ""


def by_key(cells: Iterable[Cell]) -> dict[Key, list[Cell]]:
    """Processes that were started to time steps, by what they measured."""
    groups: dict[Key, list[Cell]] = {}
    for cell in cells:
        if cell.kind in TIMED and cell.outcome.status != "untested":
            for case in cell.cases:
                groups.setdefault((cell.mode, cell.dtype, case), []).append(cell)
    return groups


def gather(
    key: Key,
    cells: list[Cell],
    cases: Mapping[tuple[str, str], Evidence],
    self_tests: Mapping[str, SelfTest],
    matched: Mapping[tuple[str, str], bool],
    demand: Timing,
) -> Group:
    """Sort the processes of one key into those whose times count and those left out, each with its reason."""
    group = Group(key, cells, [], [], {})
    wrong = []
    for cell in cells:
        found = cases.get((cell.id, key[2]))
        if found is None:
            continue
        state, seconds = timing.settled(found, demand)
        process = Process(cell, found, state, np.asarray(seconds))
        group.seen.append(process)
        reason = "; ".join(ev.blendable(group.seen[0].evidence, found))
        if not reason and not matched.get((cell.id, key[2]), False):
            wrong.append(cell.id)
        reason = reason or timing.untrusted(found, self_tests.get(cell.id), demand)
        reason = reason or (f"{timing.UNTESTED}: {state.reason}" if state.reason else "")
        if reason:
            group.left_out[cell.id] = reason
        else:
            group.used.append(process)
    group.used.sort(key=lambda p: p.started or 0.0)
    unsteady = sum(bool(p.state.reason) for p in group.seen)
    if not group.seen:
        group.withheld = f"{timing.UNTESTED}: no process left evidence of this case"
    elif wrong:
        group.withheld = f"withheld: the numbers of {', '.join(wrong)} are not explained yet"
    elif not group.used:
        group.withheld = next(iter(group.left_out.values()))
    elif unsteady > len(group.seen) / 2:
        group.withheld = f"{timing.UNTESTED}: {unsteady} of {len(group.seen)} processes never became steady"
    else:
        apart = spread(group.used)
        if apart > demand.refuse_spread:
            group.withheld = (
                f"{timing.UNTESTED}: quartiles {apart:.0%} of the median apart in the typical process, "
                f"over {demand.refuse_spread:.0%}"
            )
    return group


def spread(processes: list[Process]) -> float:
    """The typical process's quartile distance over its median."""
    spreads = []
    for process in processes:
        q1, middle, q3 = np.percentile(process.seconds, [25, 50, 75])
        spreads.append((q3 - q1) / middle if middle else 0.0)
    return float(np.median(spreads))
