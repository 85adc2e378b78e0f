"""Loss curves of candidate and reference with the envelope of the twins, and how far the gap is from theirs."""

from __future__ import annotations

from ...judge.parity_results import ParityResult
from ...record import Record
from . import charts
from .charts import Axis, Band, Line, Point
from .figures import Figure, Missing, Part
from .files import Files, Source

DRAWN = 6  # comparisons with charts of their own; the table has all


def parity(record: Record, files: Files) -> list[Part]:
    """A figure of losses and one of windows for each comparison."""
    found = record.judgement.parity
    if not found:
        why = "not measured: no long run was compared, only single steps; the requirements or `shakedown parity` ask for one"
        return [Missing("Loss curves", why)]
    made: list[Part] = []
    for number, one in enumerate(found[:DRAWN]):
        made += _one(one, number, _sources(one, files))
    if len(found) > DRAWN:
        made.append(
            Missing("Further loss curves", f"{len(found) - DRAWN} more are in record.json under judgement.parity")
        )
    return made


def _sources(one: ParityResult, files: Files) -> list[Source]:
    folder = f"evidence/{one.cell}/"
    names = [
        name for name in files.record.files if one.cell and name.startswith(folder) and name.endswith(".losses.json")
    ]
    return [files.judged("judgement.parity"), *files.sources(names, most=3)]


def _one(one: ParityResult, number: int, sources: list[Source]) -> list[Part]:
    name = " ".join(part for part in (one.mode, one.dtype, one.case) if part)
    title = f"Loss over {one.steps} steps: {name}"
    curve = one.curve
    if curve is None:
        return [Missing(title, f"{one.parity}: {one.text}")]
    sides = (("reference, CPU", curve.reference), (f"candidate, {one.device}", curve.candidate))
    few = len(curve.steps) <= 40
    lines = [Line(side, [Point(*place) for place in zip(curve.steps, losses)], marked=few) for side, losses in sides]
    if curve.low is not None:
        lines.append(
            Line(f"CPU in {one.dtype}", [Point(*place) for place in zip(curve.steps, curve.low)], marked=False)
        )
    ends = zip(curve.steps, curve.lowest_twin, curve.highest_twin)
    band = Band(f"envelope of {one.twins} twins", [Point(step, None, low, high) for step, low, high in ends])
    events = [(float(event.step), event.kind) for event in one.events[:6]]
    said = [
        f"{one.parity}: {one.text}",
        f"Loss, without a unit; n = {one.steps} steps, of which {len(curve.steps)} are drawn. A twin is the reference run "
        "again with every weight nudged by one rounding: the envelope is what harmless differences do.",
    ]
    drawn = charts.lines(
        f"loss-{number}", title, lines, Axis("step", zero=False), Axis("loss", zero=False), [band], events
    )
    made: list[Part] = [Figure(title, said, drawn, sources)]
    if one.windows:
        ratio = [Line("gap over the largest twin's", [Point((w.first + w.last) / 2, w.ratio) for w in one.windows])]
        far = (
            max(w.ratio for w in one.windows) > 10 * one.allowed_ratio
        )  # a gap of zero has a place on a linear axis only
        low = [Point((w.first + w.last) / 2, w.low_ratio) for w in one.windows if w.low_ratio is not None]
        ratio += [Line(f"the same against the CPU in {one.dtype}", low)] if low else []
        title = f"Gap in windows of steps, over the largest twin's: {name}"
        axes = Axis("middle step of the window", zero=False), Axis("median gap over the largest twin's", log=far)
        bound = [(one.allowed_ratio, f"allowed: {one.allowed_ratio:g}")]
        windowed = charts.lines(f"gap-{number}", title, ratio, *axes, levels=bound)
        made.append(Figure(title, [f"A ratio without a unit; n = {len(one.windows)} windows."], windowed, sources))
    return made
