"""From the series of one process to numbers that may be shown, each with its doubts. :mod:`.pooled` joins processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .. import evidence as ev
from ..errors import EvidenceError
from ..evidence import Evidence, SelfTest
from ..requirements import Requirements, Timing
from .results import Cell, Finding, Series, TimingSummary
from .series import Event, Steady, steady

UNTESTED = "untested(timing)"


def series(seconds: list[float], demand: Timing) -> Series:
    """Median and quartiles. A p90 needs enough samples that it is not one or two stalls."""
    values = np.asarray(seconds)
    q1, middle, q3 = (float(x) for x in np.percentile(values, [25, 50, 75]))
    spread = (q3 - q1) / middle if middle else 0.0
    warnings = []
    withheld = ""
    if len(values) < demand.least_steps:
        warnings.append(f"only {len(values)} steps")
    if spread > demand.refuse_spread:
        withheld = f"{UNTESTED}: quartiles {spread:.0%} of the median apart, over {demand.refuse_spread:.0%}"
    elif spread > demand.warn_spread:
        warnings.append(f"quartiles {spread:.0%} of the median apart")
    p90 = float(np.percentile(values, 90)) if len(values) >= demand.p90_samples else None
    return Series(
        n=len(values), median=middle, q1=q1, q3=q3, p90=p90, spread=spread, warnings=warnings, withheld=withheld
    )


def settled(evidence: Evidence, demand: Timing) -> tuple[Steady, list[float]]:
    """The steady state of one case in one process, and the seconds of its steps."""
    later = evidence.timings.later
    found = steady(later.seconds, later.compiles, demand.lasting_change, demand.least_steps)
    return found, [later.seconds[step - 1] for step in found.steps]


def untrusted(evidence: Evidence, test: SelfTest | None, demand: Timing) -> str:
    """Why no time of this process is believed, whatever it is: the clock, or strangers on the machine; else empty."""
    foreign = evidence.timings.later.foreign_cores
    if test is None:
        return f"{UNTESTED}: the timer's self-test did not finish"
    if not test.passed:
        return f"{UNTESTED}: {test.reason}"
    if foreign is not None and foreign > demand.refuse_foreign_load:
        return f"{UNTESTED}: other processes used {foreign:.1f} cores meanwhile"
    return ""


def told(event: Event) -> str:
    """One event in words."""
    if event.kind == "drift":
        return f"the step time drifts by {event.ratio - 1:+.0%} over the series"
    size = f"{event.ratio:.1f} times the level" if event.ratio >= 2 else f"{event.ratio - 1:+.0%}"
    return f"{event.kind} at step {event.step} ({size}, {event.seconds * 1e3:+.1f} ms): {event.cause}"


def summarise(evidence: Evidence, test: SelfTest | None, matched: bool, demand: Timing) -> TimingSummary:
    """Timing of one case in one process, of its steady state. Steps are withheld while numbers are wrong: a fast wrong
    answer is not a speed.
    """
    found, seconds = settled(evidence, demand)
    later = series(seconds, demand)
    foreign, tries = evidence.timings.later.foreign_cores, evidence.timings.later.attempts
    warnings = [*later.warnings, *(told(event) for event in found.events)]
    if tries > 1:
        warnings.append(f"the least disturbed of {tries} series")
    if foreign is not None and foreign > demand.foreign_load:
        warnings.append(f"other processes used {foreign:.1f} cores meanwhile")
    compiles = evidence.timings.later.compiles_during
    if compiles:
        warnings.append(f"{compiles} programs were compiled or loaded during the timed steps")
    withheld = f"{UNTESTED}: {found.reason}" if found.reason else later.withheld
    withheld = untrusted(evidence, test, demand) or withheld
    if not matched:
        withheld = "withheld: the numbers are not explained yet"
    return TimingSummary(
        startup=evidence.startup.model_dump(),
        first_step=evidence.timings.first_step,
        first_step_foreign_cores=evidence.timings.first_step_foreign_cores,
        later=later.model_copy(update={"warnings": warnings, "withheld": withheld}),
        later_phases={name: float(np.median(values)) for name, values in evidence.timings.later_phases.items()},
    )


def findings(root: Path, cells: list[Cell], requirements: Requirements) -> list[Finding]:
    """Clocks that cannot be trusted, series without a steady state, and late compiles. None of them fails a cell: a time
    that is not known is withheld, and no speed is claimed.
    """
    found: list[Finding] = []
    for cell in cells:
        folder = root / "evidence" / cell.id
        if (folder / "self-test.json").exists():
            try:
                test = ev.read(SelfTest, folder / "self-test.json")
                reason = "" if test.passed else test.reason
            except EvidenceError as error:
                reason = str(error)
            if reason:
                found.append(Finding(word=UNTESTED, cell=cell.id, text=reason, fails=False))
        for case in cell.cases:
            try:
                one = ev.read(Evidence, folder / f"{case}.json")
            except EvidenceError:
                continue  # judgement names it, and calls its case untested
            state, _ = settled(one, requirements.timing)
            if state.reason:
                found.append(Finding(word=UNTESTED, cell=cell.id, case=case, text=state.reason, fails=False))
            found += [
                Finding(word=event.kind.replace(" ", "-"), cell=cell.id, case=case, text=told(event), fails=False)
                for event in state.events
                if event.kind in ("late compile", "lasting change")
            ]
    return found
