"""Do two training runs have the same losses, as far as losses can tell?

A training run amplifies rounding: two correct devices part company, slowly or fast, and a fixed tolerance on the loss
either refuses them or lets a missing weight decay pass. So the reference is run again several times with every weight nudged
by one unit roundoff of the declared precision, and the distance of these twins says what rounding alone does to *this* training.
:func:`compare` is pure: series in, one result out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..evidence.losses import Losses
from . import gaps
from .formats import roundoff
from .gaps import Aligned
from .parity_results import PASSING as PASSING
from .parity_results import UNDECIDED as UNDECIDED
from .parity_results import (
    ParityClass,
    ParityCurve,
    ParityEvent,
    ParityResult,
    ParityWindow,
    PlainCheck,
)

WINDOW = 30  # steps: the median of fewer moves too much from window to window
LEAST_TWINS = 5
ALLOWED_RATIO = 3.0
LOSS_ROUNDINGS = 4.0  # c: a loss may be so many unit roundoffs off because its own sum is taken in another order
GROWS = 2.0  # the gap must grow this much more than any twin's to be called growing
ONE_SIDED = 0.9  # share of steps on one side from which a gap is called biased
_POINTS = 400  # of a curve that is drawn, and of a line through a long series


@dataclass(frozen=True)
class Rule:
    """What the user allows. ``limit``: relative gap of the twins above which losses decide nothing (None: no limit).
    ``tolerance`` at the steps ``at``: the plain rule (None: not asked for).
    """

    allowed_ratio: float = ALLOWED_RATIO
    limit: float | None = None
    tolerance: float | None = None
    at: tuple[int, ...] = ()


def compare(
    reference: Losses,
    twins: Sequence[Losses],
    candidate: Losses,
    rule: Rule = Rule(),
    *,
    low: Losses | None = None,
    repeat: Losses | None = None,
) -> ParityResult:
    """Judge `candidate` against `reference` and its twins.

    Args:
        reference: losses of the CPU.
        twins: the same with nudged weights, five or more.
        candidate: losses of the target.
        rule: what the user allows.
        low: losses of the CPU in the declared precision, where the reference computes in a wider one.
        repeat: the reference once more. Where it does not repeat itself, its own spread belongs to the floor.

    Raises:
        ValueError: fewer than five twins, or a limit or tolerance that is not above zero.
    """
    if len(twins) < LEAST_TWINS:
        raise ValueError(f"{len(twins)} twins are no envelope: the largest of {LEAST_TWINS} or more is needed")
    if any(value is not None and not value > 0 for value in (rule.limit, rule.tolerance, rule.allowed_ratio)):
        raise ValueError("allowed ratio, limit and tolerance must be above zero")
    series = gaps.align(reference, twins, candidate, low, repeat)
    said = _Answer(series, rule, candidate, twins)
    said.plain = _plain(reference, candidate, rule)
    said.events += [ParityEvent(step=e.step, kind=e.kind, text=e.text) for e in series.told]
    if series.identical:
        where = f"all {len(series.steps)} losses have the same bits"
        return said.result("identical", where if not series.resolution else f"{where}, as they were written")
    if series.broken is not None and (series.ends is None or series.broken < series.ends):
        step = series.steps[series.broken]
        text = (
            f"the loss is {candidate.not_finite.get(step, 'not finite')} at step {step}, and the reference's is finite"
        )
        said.events.append(ParityEvent(step=step, kind="not finite", text=text))
        return said.result("event", text)
    if series.ends is not None:
        step = series.steps[series.ends]
        said.notes.append(
            f"a loss of the CPU itself is not finite at step {step}: what comes from there on is not compared"
        )
        series = said.series = series.until(series.ends)
    if len(series.steps) < WINDOW:
        text = f"{len(series.steps)} steps can be compared, and a window has {WINDOW}"
        return said.result("untested", text)
    said.measure()
    return said.judged()


class _Answer:
    """A result in the making."""

    def __init__(self, series: Aligned, rule: Rule, candidate: Losses, twins: Sequence[Losses]) -> None:
        self.series, self.rule, self.candidate, self.twins = series, rule, candidate, twins
        self.windows: list[ParityWindow] = []
        self.plain: list[PlainCheck] = []
        self.events: list[ParityEvent] = []
        self.notes: list[str] = list(series.notes)
        self.growth: float | None = None
        self.twin_growth: list[float] = []
        self.first_outside: int | None = None
        self.one_sided: float | None = None
        self.jump, self.lasting = "", False

    def measure(self) -> None:
        """Windows, slopes, sides, and where the gap jumps."""
        s, rule = self.series, self.rule
        floor = np.maximum(LOSS_ROUNDINGS * roundoff("float32") * np.abs(s.reference), s.resolution)
        floor = np.maximum(floor, np.finfo(np.float32).tiny)  # a loss of exactly zero has no rounding to go by
        for first, last in gaps.windows(len(s.steps), WINDOW):
            self.windows.append(_window(s, slice(first, last), floor, rule))
        self.growth = gaps.growth(s.gap, floor, _POINTS)
        self.twin_growth = [gaps.growth(twin, floor, _POINTS) for twin in s.twins]
        sides = s.gap[s.gap != 0]
        self.one_sided = float(max((sides > 0).mean(), (sides < 0).mean())) if len(sides) else None
        outside = gaps.outside(s, floor, rule.allowed_ratio)
        self.first_outside = s.steps[outside] if outside is not None else None
        if (jump := gaps.jump(s, floor, rule.allowed_ratio, outside, WINDOW)) is not None:
            step = s.steps[jump.index]
            told = [e for e in s.told if e.kind != "other" and abs(e.step - step) <= gaps.NEAR]
            cause = f", at the {told[0].kind} that step {told[0].step} begins with" if told else ""
            text = f"the gap grows {jump.factor:.3g}-fold at step {step}{cause}"
            self.jump, self.lasting = text, jump.lasting
            self.events.append(ParityEvent(step=step, kind="gap", text=text))

    def judged(self) -> ParityResult:
        """The class of a series that was measured."""
        rule = self.rule
        worst = max(self.windows, key=lambda w: w.ratio)
        allowed = f"{rule.allowed_ratio:g} allowed"
        said = f"r = {worst.ratio:.3g} in the worst window (steps {worst.first} to {worst.last}), {allowed}"
        blind = [w for w in self.windows if not w.power]
        if self.lasting and worst.ratio <= rule.allowed_ratio:
            # In the second half of the last window, a median does not see it.
            return self.result("event", f"{self.jump}, and stays outside to the end; {said}")
        if worst.ratio <= rule.allowed_ratio:
            if blind:
                return self.result("no-power", self._no_power(blind[0], said))
            return self.result("within-envelope", said)
        low = max((w.low_ratio for w in self.windows if w.low_ratio is not None), default=None)
        if low is not None and low <= rule.allowed_ratio:
            return self.result(
                "explained-by-declared-precision",
                f"{said}; against the CPU in {self.candidate.dtype}, r = {low:.3g}",
            )
        if low is not None:
            said += f"; against the CPU in {self.candidate.dtype}, r = {low:.3g}"
        if self.jump:
            return self.result("event", f"{self.jump}; {said}")
        twins = max(self.twin_growth)
        if self.growth is not None and self.growth > GROWS * max(twins, 1.0):
            return self.result(
                "growing", f"the gap grows {self.growth:.3g}-fold, that of the twins {twins:.3g}-fold; {said}"
            )
        if self.one_sided is not None and self.one_sided >= ONE_SIDED:
            above = np.count_nonzero(self.series.gap > 0) > np.count_nonzero(self.series.gap < 0)
            side = "above" if above else "below"
            return self.result("biased", f"{self.one_sided:.0%} of the losses lie {side} the reference's; {said}")
        return self.result("above-envelope", said)

    def _no_power(self, blind: ParityWindow, said: str) -> str:
        share, limit = max(blind.twins) / abs(blind.reference) if blind.reference else float("inf"), self.rule.limit
        before = f"before it, {said}" if blind is not self.windows[0] else said
        return (
            f"from step {blind.first} on the twins themselves differ by {share:.2%}, more than the limit of {limit:.2%}, so "
            f"losses decide nothing there; {before}"
        )

    def result(self, kind: ParityClass, text: str) -> ParityResult:
        """The result, whatever was measured of it."""
        s = self.series
        differs = np.flatnonzero(s.differs)
        growth = self.growth
        failed = [check for check in self.plain if check.passed is not True]
        if failed:
            text += "; the plain rule " + ", ".join(_said(check) for check in failed)
        passed: bool | None = None if kind in UNDECIDED else kind in PASSING
        if any(check.passed is False for check in self.plain):
            passed = False
        elif failed and passed:
            passed = None
        trend = "" if growth is None else "growing" if growth > GROWS else "shrinking" if growth < 1 / GROWS else "flat"
        return ParityResult(
            dtype=self.candidate.dtype,
            device=self.candidate.device,
            parity=kind,
            passed=passed,
            text=text,
            steps=len(s.steps),
            twins=len(self.twins),
            allowed_ratio=self.rule.allowed_ratio,
            limit=self.rule.limit,
            ratio=max((w.ratio for w in self.windows), default=None),
            low_ratio=max((w.low_ratio for w in self.windows if w.low_ratio is not None), default=None),
            first_difference=s.steps[int(differs[0])] if len(differs) else None,
            first_outside=self.first_outside,
            trend=trend,  # type: ignore[arg-type]
            growth=growth,
            twin_growth=self.twin_growth,
            one_sided=self.one_sided,
            windows=self.windows,
            curve=_curve(s),
            plain=self.plain,
            events=sorted(self.events, key=lambda e: (e.step, e.kind)),
            notes=self.notes,
        )


def _window(s: Aligned, part: slice, floor: np.ndarray, rule: Rule) -> ParityWindow:
    def typical(values: np.ndarray) -> float:
        return float(np.median(np.abs(values[part])))

    twins = [typical(twin) for twin in s.twins]
    least = float(np.median(floor[part]))
    if s.repeat is not None:
        least = max(least, typical(s.repeat))
    own, reference = typical(s.gap), float(np.median(s.reference[part]))
    envelope = max(*twins, least)
    low = None if s.low is None else typical(s.low)
    return ParityWindow(
        first=s.steps[part.start],
        last=s.steps[part.stop - 1],
        reference=reference,
        gap=own,
        twins=twins,
        floor=least,
        ratio=own / envelope,
        low=low,
        low_ratio=None if low is None else own / max(low, envelope),
        power=rule.limit is None or max(twins) <= rule.limit * abs(reference),
    )


def _plain(reference: Losses, candidate: Losses, rule: Rule) -> list[PlainCheck]:
    """The plain rule at each step that was asked for. A loss that is not finite passes nowhere."""
    if rule.tolerance is None:
        return []
    mine, theirs = dict(zip(candidate.steps, candidate.losses)), dict(zip(reference.steps, reference.losses))
    found = []
    for step in rule.at:
        a, b = mine.get(step), theirs.get(step)
        reached = step in mine and step in theirs
        gap = abs(a - b) if a is not None and b is not None else None
        found.append(
            PlainCheck(
                step=step,
                tolerance=rule.tolerance,
                reference=b,
                candidate=a,
                relative_gap=gap / abs(b) if gap is not None and b else None,
                passed=(gap is not None and gap <= rule.tolerance * abs(b or 0.0)) if reached else None,
            )
        )
    return found


def _said(check: PlainCheck) -> str:
    if check.passed is None:
        return f"cannot be applied at step {check.step}, which was not reached"
    if check.relative_gap is None:
        return f"fails at step {check.step} (no relative gap: {check.candidate} against {check.reference})"
    return f"fails at step {check.step} (gap {check.relative_gap:.2%}, {check.tolerance:.2%} allowed)"


def _curve(s: Aligned) -> ParityCurve | None:
    if not s.steps:
        return None
    kept = np.unique(np.linspace(0, len(s.steps) - 1, min(len(s.steps), _POINTS)).round().astype(int))
    around = np.vstack([np.zeros((1, len(s.steps))), s.twins])
    lowest, highest = (s.reference + edge(around, axis=0) for edge in (np.min, np.max))

    def some(values: np.ndarray) -> list[float | None]:
        return [float(v) if np.isfinite(v) else None for v in values[kept]]

    return ParityCurve(
        steps=[s.steps[i] for i in kept],
        reference=some(s.reference),
        candidate=some(s.reference + s.gap),
        lowest_twin=some(lowest),
        highest_twin=some(highest),
        low=None if s.low is None else some(s.reference + s.low),
    )
