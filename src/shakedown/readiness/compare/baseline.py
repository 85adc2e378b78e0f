"""A record as the baseline of a trial that is about to run: refused at once where its comparison could not be fair."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput
from .sides import DIFFERENT, Opened, opened, other_source


@dataclass(frozen=True)
class Planned:
    """What a trial is going to be. Empty modes, precisions and cases: what the requirements or the workload say."""

    workload: str
    workload_sha256: str
    target: str
    quick: bool
    modes: Iterable[str] = ()
    dtypes: Iterable[str] = ()
    cases: Iterable[str] = ()


def checked(path: Path, planned: Planned, allow_different_workload: bool = False) -> Opened:
    """The baseline at `path`, before anything runs.

    Raises:
        BadInput: it cannot be read, was changed, tested nothing, is about something else, or has what `planned` is certain
            to leave out: every such cell would count as no longer tested.
    """
    found = opened(path)
    known = found.record.trial
    tested = [r for c, r in found.cells.values() if c.mode != "reference" and r.verdict != "untested"]
    if not tested:
        raise BadInput(
            f"the baseline {path} tested nothing on its target, so nothing could get worse; take another record"
        )
    if known["target"] != planned.target:
        raise BadInput(
            f"the baseline {path} is of the target {known['target']}, and this trial of {planned.target}: take a baseline of "
            "the same target, and `shakedown compare` for two targets"
        )
    problem = other_source(found, planned.workload, planned.workload_sha256)
    if problem and not allow_different_workload:
        raise BadInput(
            f"the baseline {path} is of another workload: {problem}; make a new baseline with `shakedown run`, or give "
            f"{DIFFERENT} to have verdicts compared all the same"
        )
    if planned.quick and not found.quick:
        raise BadInput(
            f"the baseline {path} is of a whole trial, and a quick one has fewer processes: run without --quick, or make a "
            "baseline with it"
        )
    for what, asked, had in (
        ("mode", planned.modes, known["modes"]),
        ("precision", planned.dtypes, known["dtypes"]),
        ("case", planned.cases, [case.partition("#")[0] for case in known["cases"]]),
    ):
        missing = [one for one in dict.fromkeys(had) if one not in set(asked)] if set(asked) else []
        if missing:
            raise BadInput(
                f"the baseline {path} has the {what} {', '.join(missing)}, which this trial leaves out: ask for it as well, "
                "or take a baseline without it"
            )
    return found
