"""From series of seconds to numbers that may be shown, each with its doubts."""

from __future__ import annotations

import numpy as np

from ..evidence import Evidence, SelfTest
from ..requirements import Timing
from .results import Series, TimingSummary


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
        withheld = f"untested(timing): quartiles {spread:.0%} of the median apart, over {demand.refuse_spread:.0%}"
    elif spread > demand.warn_spread:
        warnings.append(f"quartiles {spread:.0%} of the median apart")
    p90 = float(np.percentile(values, 90)) if len(values) >= demand.p90_samples else None
    return Series(
        n=len(values), median=middle, q1=q1, q3=q3, p90=p90, spread=spread, warnings=warnings, withheld=withheld
    )


def summarise(evidence: Evidence, test: SelfTest | None, matched: bool, demand: Timing) -> TimingSummary:
    """Timing of one case. Steps are withheld while numbers are wrong: a fast wrong answer is not a speed."""
    later = series(evidence.timings.later.seconds, demand)
    warnings = list(later.warnings)
    foreign, compiles = evidence.timings.later.foreign_cores, evidence.timings.later.compiles_during
    tries = evidence.timings.later.attempts
    disturbed = f"other processes used {foreign or 0.0:.1f} cores meanwhile"
    if tries > 1:
        warnings.append(f"the least disturbed of {tries} series")
    if foreign is not None and foreign > demand.foreign_load:
        warnings.append(disturbed)
    if compiles:
        warnings.append(f"{compiles} programs were compiled or loaded during the timed steps")
    withheld = later.withheld
    if foreign is not None and foreign > demand.refuse_foreign_load:
        withheld = f"untested(timing): {disturbed}"
    if test is None:
        withheld = "untested(timing): the timer's self-test did not finish"
    elif not test.passed:
        withheld = f"untested(timing): {test.reason}"
    if not matched:
        withheld = "withheld: the numbers are not explained yet"
    return TimingSummary(
        startup=evidence.startup.model_dump(),
        first_step=evidence.timings.first_step,
        first_step_foreign_cores=evidence.timings.first_step_foreign_cores,
        later=later.model_copy(update={"warnings": warnings, "withheld": withheld}),
        later_phases={name: float(np.median(values)) for name, values in evidence.timings.later_phases.items()},
    )
