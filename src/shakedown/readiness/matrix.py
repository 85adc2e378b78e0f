"""Which processes a trial consists of, in the order they run.

The CPU goes through every case and variation once, in each precision: that run is what others are compared with. Then, for
each precision, the target's modes go through all cases in one process (cold, then warm), so that re-use of programs is
seen, and adaptive eager meets a case again that it has fused; then each case runs alone in fresh processes, cold, warm,
and as often again as the requirements ask for; then each
variation. Modes, and the CPU, take turns at every point, so that a machine that grows slower does so for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import targets
from .judge.results import Cell, Kind, Outcome
from .judge.verdict import expand
from .requirements import Requirements
from .workload import Case

WAITING = Outcome(status="untested", reason="the trial stopped before it")
HARD = ("large", "tiny", "ties")


@dataclass(frozen=True)
class Shapes:
    """The cases of a trial: plain ones in order, and the varied ones, each with a reason where it cannot be made."""

    plain: tuple[str, ...]
    varied: dict[str, str]

    def runnable(self) -> list[str]:
        """Varied cases that exist."""
        return [case for case, reason in self.varied.items() if not reason]


def plain_cases(demand: Requirements, own: tuple[Case, ...], asked: tuple[str, ...]) -> tuple[str, ...]:
    """Cases in the order they run: those asked for, or the requirements', or the workload's own; and the real maximum."""
    cases = [Case.parse(text) for text in asked]
    if not cases:
        cases = [Case(case.size, case.length) for case in demand.cases] or list(own)
    largest = demand.variations.maximum
    if largest and not asked and Case.parse(largest) not in cases:
        cases.append(Case.parse(largest))
    return tuple(str(case) for case in cases)


def wanted_variations(demand: Requirements, plain: tuple[str, ...]) -> list[str]:
    """Names of the varied cases that the requirements ask for. Each varies the first case: one change at a time."""
    asked = demand.variations
    names = ["padding"] * asked.padding + ["noncontiguous"] * asked.noncontiguous
    names += ["logging"] * bool(asked.logging_every) + [*HARD] * asked.hard_inputs
    first = Case.parse(plain[0])
    return [str(Case(first.size, first.length, name)) for name in names]


def plan(
    target: targets.Target,
    modes: tuple[str, ...],
    dtypes: tuple[str, ...],
    shapes: Shapes,
    demand: Requirements,
    *,
    quick: bool = False,
    trace: bool = False,
) -> list[Cell]:
    """All processes of the trial. ``quick`` leaves warm caches and single cases out; ``trace`` adds profiled processes."""
    cells: list[Cell] = []

    def add(
        kind: Kind, mode: Any, dtype: str, cases: list[str], cache: Any = "none", note: str = "", reason: str = ""
    ) -> None:
        name = "-".join(part for part in (mode, dtype, note, "" if cache == "none" else cache) if part)
        cells.append(
            Cell(
                id=name,
                kind=kind,
                mode=mode,
                dtype=dtype,
                cache=cache,
                target="cpu" if mode == "reference" else target.name,
                cases=expand(cases),
                outcome=Outcome(status="untested", reason=reason) if reason else WAITING,
            )
        )

    missing = {mode: why for mode in modes if (why := lacks(target, mode, demand))}
    present = [mode for mode in modes if mode not in missing]
    caches = ("none",) if not target.persistent_cache else ("cold",) if quick else ("cold", "warm")
    plain = list(shapes.plain)
    # Adaptive eager fuses what it has met before: only a case that comes again runs fused from its first step on.
    fused = plain[:1] * ("adaptive" in present and len(set(plain)) == len(plain))
    # The sequences have timed each case already: once on the CPU, once in each cache state on the target.
    reference_again, again = (0, 0) if quick else (demand.timing.processes - 1, demand.timing.processes - len(caches))
    for dtype in dtypes:
        add("sequence", "reference", dtype, plain + fused + shapes.runnable())
    for dtype in dtypes:
        for cache in caches:
            for mode in present:
                add("sequence", mode, dtype, plain + fused * (mode == "adaptive"), cache)
        for case in dict.fromkeys(plain):
            for number in range(1, max(reference_again, again) + 1):
                if number <= reference_again:
                    add("single", "reference", dtype, [case], note=f"{case}-{number}")
                for mode in present if number <= again else ():
                    cache = "none" if caches == ("none",) else "cold" if number == 1 else "warm"
                    add("single", mode, dtype, [case], cache, note=f"{case}-{number}")
        for case in shapes.varied:
            for mode in present:
                add("variation", mode, dtype, [case], caches[0], note=case, reason=shapes.varied[case])
    smallest = min(plain, key=_tokens)
    for dtype in dtypes:
        if demand.parity.steps:
            add("parity", "reference", dtype, [smallest], note="parity")
        for mode in present:
            if demand.variations.neighbours and mode != "adaptive":
                add("probe", mode, dtype, [], note="probe")
            if demand.variations.restart:
                add("restart", mode, dtype, plain[:1], note="restart")
            if demand.parity.steps:
                add("parity", mode, dtype, [smallest], note="parity")
            for cache in caches if trace else ():
                add("trace", mode, dtype, plain[:1], cache, note="trace")
    for mode in modes:
        for dtype in dtypes if mode in missing else ():
            add("sequence", mode, dtype, plain, reason=missing[mode])
    return cells


def lacks(target: targets.Target, mode: str, demand: Requirements) -> str:
    """Why a mode cannot be tried as it was asked for; empty when it can."""
    if mode == "compiled" and demand.workload.boundary == "step" and not target.whole_step:
        return (
            "the requirements ask for the whole step as one compiled program, which the target "
            f"{target.name} does not have: set workload.boundary to `forward and loss`"
        )
    return targets.lacks(target, mode)


def _tokens(case: str) -> int:
    parsed = Case.parse(case)
    return parsed.size * parsed.length


def cache_of(cell: Cell) -> str:
    """Name of the cache directory that a process uses: its own, or the one that its cold twin has filled."""
    if cell.kind == "single":
        return f"{cell.mode}-{cell.dtype}-{cell.cases[0]}"
    return cell.id.removesuffix(f"-{cell.cache}")
