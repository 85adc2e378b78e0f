"""One time for each mode, precision and case, out of all processes that measured it: :mod:`.processes` says which count,
:mod:`.resample` how sure it is, :mod:`.ratios` how it stands to other modes, :mod:`.amortise` what set-up adds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np

from .. import targets
from ..evidence import Evidence, SelfTest
from ..requirements import Requirements, Timing
from . import amortise, paths, processes, ratios, resample
from .amortise import Curve
from .measured import Happened, PooledTiming, Ratio, Start, Throughput
from .processes import Group, Key, Process, spread
from .resample import Interval
from .results import Cell

CACHES: tuple[Literal["cold", "warm", "none"], ...] = ("cold", "warm", "none")
MODES = ("reference", "eager", "adaptive", "compiled")  # a mode is compared with those before it


def boundary(cell: Cell, phases: Iterable[str]) -> str:
    """What a step's time contains and what it does not, for a reader who has to compare it with another."""
    named = {
        "data": "copying the batch from host memory to the device",
        "forward": "forward pass and loss",
        "backward": "backward pass",
        "optimizer": "optimizer",
        "step": "forward pass and loss, backward pass and optimizer as one program",
        "logging": "reading and printing the loss every so many steps",
    }
    seen = list(phases)
    inside = [named.get(phase, phase) for phase in seen]
    outside = ["making the batch", *([] if "logging" in seen else ["reading or logging the loss"]), "checkpoints"]
    end = targets.completion(targets.get(cell.target))
    return f"inside: {', '.join(inside) or 'not known'}; outside: {', '.join(outside)}; {end}"


def pooled(
    cells: list[Cell],
    cases: Mapping[tuple[str, str], Evidence],
    self_tests: Mapping[str, SelfTest],
    matched: Mapping[tuple[str, str], bool],
    requirements: Requirements,
) -> list[PooledTiming]:
    """:func:`of` the :func:`groups`: every mode, precision and case, in the order in which the cells name them."""
    return of(groups(cells, cases, self_tests, matched, requirements), cases, requirements)


def groups(
    cells: list[Cell],
    cases: Mapping[tuple[str, str], Evidence],
    self_tests: Mapping[str, SelfTest],
    matched: Mapping[tuple[str, str], bool],
    requirements: Requirements,
) -> dict[Key, Group]:
    """The processes of every mode, precision and case, with those that count.

    Args:
        cells: all processes of the trial, those that crashed as well.
        cases: evidence by cell and case.
        self_tests: the timer's self-test by cell.
        matched: whether the numbers of a cell's case passed; one that is missing counts as no.
        requirements: what is asked for, warned about and refused.
    """
    return {
        key: processes.gather(key, own, cases, self_tests, matched, requirements.timing)
        for key, own in processes.by_key(cells).items()
    }


def of(
    gathered: dict[Key, Group], cases: Mapping[tuple[str, str], Evidence], requirements: Requirements
) -> list[PooledTiming]:
    """Pool each of the :func:`groups`."""
    return [_result(group, gathered, cases, requirements) for group in gathered.values()]


def _result(
    group: Group, groups: dict[Key, Group], cases: Mapping[tuple[str, str], Evidence], requirements: Requirements
) -> PooledTiming:
    mode, dtype, case = group.key
    starts = _starts(group, cases)
    attempts = sum(p.evidence.timings.later.attempts - 1 for p in group.seen)
    rehearsal = any(p.evidence.identity.get("also", {}).get("family") == "rehearsal" for p in group.seen)
    common = {
        "mode": mode,
        "dtype": dtype,
        "case": case,
        "kind": "rehearsal" if rehearsal else "measured",
        "boundary": boundary(group.cells[0], _phase_names(group)),
        "launched": len(group.cells),
        "finished": sum(c.outcome.status == "finished" for c in group.cells),
        "used": len(group.used),
        "ended": {c.id: f"{c.outcome.status}: {c.outcome.reason}" for c in group.cells if c.outcome.reason},
        "left_out": group.left_out,
        "dropped_attempts": attempts,
        "starts": starts,
        "events": [Happened(cell=p.cell.id, event=e) for p in group.seen for e in p.state.events],
        "warnings": _warnings(group, attempts, requirements.timing),
    }
    if group.withheld:
        nothing = dict.fromkeys(("median", "interval", "q1", "q3", "spread", "between", "dispatch", "throughput"))
        empty: dict[str, object] = {"n": 0, "percentiles": {}, "phases": {}, "curves": [], "ratios": []}
        return PooledTiming.model_validate(common | nothing | empty | {"withheld": group.withheld})
    steps = [p.seconds for p in group.used]
    together = np.concatenate(steps)
    middle = resample.middle(steps)
    drawn = resample.medians(steps, requirements.resampling.draws, resample.generator())
    found = resample.interval(drawn, len(steps), requirements.resampling)
    each = [float(np.median(s)) for s in steps]
    q1, q3 = (float(x) for x in np.percentile(together, [25, 75]))
    measured = {
        "n": len(together),
        "median": middle,
        "interval": found,
        "q1": q1,
        "q3": q3,
        "percentiles": _percentiles(together, requirements.timing),
        "spread": spread(group.used),
        "between": (max(each) - min(each)) / middle if middle and len(each) > 1 else None,
        "dispatch": _dispatch(group.used),
        "phases": _phases(group.used),
        "throughput": _throughput(case, middle, found),
        "curves": _curves(group, starts, groups, cases, requirements),
        "ratios": _ratios(group, groups, requirements),
    }
    return PooledTiming.model_validate(common | measured)


def _warnings(group: Group, attempts: int, demand: Timing) -> list[str]:
    """Doubts about the pooled time."""
    said = []
    finished = sum(c.outcome.status == "finished" for c in group.cells)
    if finished < len(group.cells):
        said.append(f"{finished} of {len(group.cells)} processes finished")
    if group.left_out:
        said.append(f"{len(group.left_out)} of {len(group.seen)} processes are left out")
    if len(group.used) < demand.processes:
        said.append(f"{len(group.used)} processes instead of {demand.processes}")
    if attempts:
        said.append(f"{attempts} series that strangers disturbed were dropped")
    if group.used and spread(group.used) > demand.warn_spread:
        said.append(f"quartiles {spread(group.used):.0%} of the median apart in the typical process")
    short = [p.cell.id for p in group.used if len(p.seconds) < min(demand.steps, demand.least_steps)]
    if short:
        said.append(f"fewer than {demand.least_steps} steps in {', '.join(short)}")
    busy = [p.evidence.timings.later.foreign_cores or 0.0 for p in group.used]
    if busy and max(busy) > demand.foreign_load:
        said.append(f"other processes used up to {max(busy):.1f} cores meanwhile")
    return said


def _percentiles(seconds: np.ndarray, demand: Timing) -> dict[str, float]:
    """p50, and those further out that so many samples can carry."""
    asked = [50] + [90] * (len(seconds) >= demand.p90_samples) + [99] * (len(seconds) >= demand.p99_samples)
    return {f"p{p}": float(np.percentile(seconds, p)) for p in asked}


def _dispatch(processes: list[Process]) -> float | None:
    """Median over processes of the median time until the calls of a steady step had returned."""
    medians = []
    for process in processes:
        returned = process.evidence.timings.later.dispatched
        if returned is not None:
            medians.append(float(np.median([returned[step - 1] for step in process.state.steps])))
    return float(np.median(medians)) if medians else None


def _phase_names(group: Group) -> list[str]:
    """Phases of a step, in order; the logging of a case that logs is in some of its steps only."""
    names = list(dict.fromkeys(phase for p in group.seen for phase in p.evidence.timings.later_phases))
    return names + ["logging"] * (group.key[2].endswith("~logging") and "logging" not in names)


def _phases(processes: list[Process]) -> dict[str, float]:
    """Median over processes of each phase's median, each phase awaited."""
    found: dict[str, list[float]] = {}
    for process in processes:
        for phase, seconds in process.evidence.timings.later_phases.items():
            found.setdefault(phase, []).append(float(np.median(seconds)))
    return {phase: float(np.median(values)) for phase, values in found.items()}


def _throughput(case: str, step: float, found: Interval | None) -> Throughput | None:
    shape = re.match(r"(\d+)x(\d+)", case)
    if shape is None or not step:
        return None
    size, length = int(shape[1]), int(shape[2])
    return Throughput(
        items=size / step,
        items_low=size / found.high if found and found.high else None,
        items_high=size / found.low if found and found.low else None,
        positions=size * length / step,
    )


def _starts(group: Group, cases: Mapping[tuple[str, str], Evidence]) -> list[Start]:
    """Cold and warm starts, from the processes in which this case came first: a later case finds programs compiled."""
    made = []
    for cache in CACHES:
        first = [p for p in group.seen if p.cell.cache == cache and p.cell.cases[0] == group.key[2]]
        if not first:
            continue
        proofs = []
        for process in first:
            own = [cases[process.cell.id, c] for c in process.cell.cases if (process.cell.id, c) in cases]
            proofs.append(paths.cache_proof(own))
        proved = all(good for good, _ in proofs)
        made.append(
            Start(
                cache=cache,
                start_up=[sum(p.evidence.startup.model_dump().values()) for p in first],
                first_step=[sum(p.evidence.timings.first_step.values()) for p in first],
                proved=proved,
                proof=next(words for good, words in proofs if good == proved),
            )
        )
    return made


def _curves(
    group: Group,
    starts: list[Start],
    groups: dict[Key, Group],
    cases: Mapping[tuple[str, str], Evidence],
    requirements: Requirements,
) -> list[Curve]:
    """The amortised cost of each way to start, against the CPU where that was timed too."""
    reference = groups.get(("reference", *group.key[1:])) if group.key[0] != "reference" else None
    cpu = None
    if reference is not None and not reference.withheld:
        began = _starts(reference, cases)
        if began:
            cpu = amortise.Side(began[0].cache, began[0].setups, [p.seconds for p in reference.used])
    steps = [p.seconds for p in group.used]
    return [
        amortise.curve(
            amortise.Side(start.cache, start.setups, steps),
            cpu,
            requirements.workload.training_steps,
            requirements.resampling,
        )
        for start in starts
    ]


def _ratios(group: Group, groups: dict[Key, Group], requirements: Requirements) -> list[Ratio]:
    """This side over each mode that comes before it, the CPU first."""
    mode, dtype, case = group.key
    return [
        ratios.ratio(earlier, group, groups[earlier, dtype, case], requirements)
        for earlier in MODES[: MODES.index(mode)]
        if (earlier, dtype, case) in groups
    ]
