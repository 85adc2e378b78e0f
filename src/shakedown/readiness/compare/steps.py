"""Step times of two records: side by side always, as a ratio only where one may be made, and rarely as a claim.

Within a trial the sides take turns, so that what drifts slowly favours neither. Two records lie hours or months apart and
cannot. So a ratio needs the same host, by everything that the identity says of it, and a claim needs two things more: the
whole interval beyond ``timing.between_records``, and a control, the step of the CPU in both records, within it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import EvidenceError
from ..evidence import Evidence, SelfTest, printable
from ..judge import processes, resample
from ..judge.measured import PooledTiming
from ..judge.processes import Group, Key
from ..requirements import Requirements
from .figures import NOT_RECORDED
from .results import Difference, StepChange
from .sides import Opened


@dataclass(frozen=True)
class _Series:
    """Steady steps of each process that counts, or why there are none."""

    seconds: list[np.ndarray]
    why: str = ""


def steps(before: Opened, after: Opened, differences: list[Difference], like: bool) -> list[StepChange]:
    """Every mode, precision and case that either record timed. The requirements of `after` decide what is claimed."""
    old, new = ({(t.mode, t.dtype, t.case): t for t in side.record.judgement.timings} for side in (before, after))
    refused = never(before, after, differences, like)
    demand = after.record.requirements
    found: dict[Key, StepChange] = {}
    # The CPU comes first: it is the control of the others.
    for key in sorted(dict.fromkeys((*old, *new)), key=lambda key: key[0] != "reference"):
        side_by_side = _side_by_side(key, old.get(key), new.get(key))
        control = found.get(("reference", *key[1:]))
        found[key] = _compared(side_by_side, before, after, refused, demand, control)
    return [found[key] for key in dict.fromkeys((*old, *new))]


def never(before: Opened, after: Opened, differences: list[Difference], like: bool) -> str:
    """Why no time of one record may be divided by one of the other; empty where it may."""
    one, other = before.record, after.record
    if one.label != other.label:
        return f"not comparable: one record is a {one.label} and the other a {other.label}"
    if before.record.trial["target"] != after.record.trial["target"]:
        return f"not comparable: target differs ({before.record.trial['target']} and {after.record.trial['target']})"
    if not like:
        return "not comparable: the workloads differ"
    hosts = [one for one in differences if one.group == "host"]
    unknown = [one.name for one in hosts if NOT_RECORDED in (one.before, one.after)]
    differ = [one.name for one in hosts if one.name not in unknown]
    if differ:
        return f"not comparable: host differs ({', '.join(differ[:3])}{', ...' if len(differ) > 3 else ''})"
    if unknown:
        return f"not comparable: the same host cannot be shown, {', '.join(unknown)} is not recorded in both"
    return ""


def _side_by_side(key: Key, old: PooledTiming | None, new: PooledTiming | None) -> StepChange:
    mode, dtype, case = key
    why = ""
    for name, one in (("before", old), ("after", new)):
        if one is None:
            why = why or f"not timed {name}"
        elif one.median is None:
            why = why or f"{name}: {one.withheld}"
    return StepChange(
        mode=mode,
        dtype=dtype,
        case=case,
        kind_before=old.kind if old else None,
        kind_after=new.kind if new else None,
        before=old.median if old else None,
        after=new.median if new else None,
        before_interval=old.interval if old else None,
        after_interval=new.interval if new else None,
        why=why,
    )


def _compared(
    change: StepChange,
    before: Opened,
    after: Opened,
    refused: str,
    demand: Requirements,
    control: StepChange | None,
) -> StepChange:
    if change.before is None or change.after is None or refused:
        return change.model_copy(update={"why": refused or change.why})
    key = change.mode, change.dtype, change.case
    old, new = _series(before, key, demand), _series(after, key, demand)
    if old.why or new.why:
        return change.model_copy(update={"why": f"before: {old.why}" if old.why else f"after: {new.why}"})
    fewest = min(len(old.seconds), len(new.seconds))
    draws, random = demand.resampling.draws, resample.generator()
    mine, theirs = (resample.medians(seconds, draws, random) for seconds in (new.seconds, old.seconds))
    was, now = resample.middle(old.seconds), resample.middle(new.seconds)
    change = change.model_copy(
        update={
            "ratio": now / was,
            "interval": resample.interval(mine / theirs, fewest, demand.resampling),
            "saving": was - now,
            "saving_interval": resample.interval(theirs - mine, fewest, demand.resampling),
            "processes": fewest,
        }
    )
    claim, why = claimed(change, demand, control)
    return change.model_copy(update={"claim": claim, "why": why})


def claimed(change: StepChange, demand: Requirements, control: StepChange | None) -> tuple[str, str]:
    """What may be said of two records that did not take turns, or why nothing may."""
    needed, slack, found = demand.timing.claim_processes, demand.timing.between_records, change.interval
    if change.mode == "reference":
        return "none", "no claim: the CPU's own step is the control for the others"
    if found is None or change.processes < needed:
        few = f"{change.processes} {'process' if change.processes == 1 else 'processes'} a side"
        return "none", f"no claim: {few}, and {needed} are needed"
    if found.high >= 1 - slack and found.low <= 1 + slack:
        return "none", (
            f"no claim: the records did not take turns, and the interval is not wholly more than {slack:.0%} away from 1"
        )
    if control is None or control.ratio is None:
        return (
            "none",
            "no claim: the CPU's step was not timed in both records, so nothing shows that the machine was as fast",
        )
    if abs(control.ratio - 1) > slack:
        return "none", (
            f"no claim: the CPU's own step changed by {control.ratio - 1:+.0%} between the records, so the machine did too"
        )
    return ("faster" if found.high < 1 else "slower"), ""


def _series(side: Opened, key: Key, demand: Requirements) -> _Series:
    """The stored step times of one mode, precision and case, of the processes that count by `demand`."""
    try:
        group = _group(side, key, demand)
    except EvidenceError as error:
        return _Series([], printable(str(error)))
    if not group.seen:
        return _Series([], f"the evidence with its step times is not beside {side.root / 'record.json'}")
    return _Series([process.seconds for process in group.used], group.withheld)


def _group(side: Opened, key: Key, demand: Requirements) -> Group:
    mode, dtype, case = key
    cells = processes.by_key(cell for cell, _ in side.cells.values() if (cell.mode, cell.dtype) == (mode, dtype))
    seen: dict[tuple[str, str], Evidence] = {}
    tests: dict[str, SelfTest] = {}
    for cell in cells.get(key, []):
        found = side.read(Evidence, f"evidence/{cell.id}/{case}.json")
        test = side.read(SelfTest, f"evidence/{cell.id}/self-test.json")
        if found is not None:
            seen[cell.id, case] = found
        if test is not None:
            tests[cell.id] = test
    matched = {(r.cell, c.case): c.verdict == "match" for _, r in side.cells.values() for c in r.cases}
    return processes.gather(key, cells.get(key, []), seen, tests, matched, demand.timing)
