"""What a step of a shape costs, and what compiling a shape costs, from what a trial timed; an estimate between and beyond."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from ..evidence import Frozen
from .measured import PooledTiming
from .results import Cell, CellResult

Basis = Literal["measured", "interpolated", "extrapolated", "not measured"]
REACH = 2.0  # times the largest timed shape: beyond it attention's square, or memory, may have taken over unseen
_PLAIN = re.compile(r"(\d+)x(\d+)(?:#\d+)?")


class StepCost(Frozen):
    """Seconds of one step of a shape. Measured by the trial, or an estimate from :class:`StepModel`; never filled in."""

    seconds: float | None
    low: float | None
    high: float | None
    basis: Basis


class Measured(Frozen):
    """A shape whose step the trial timed: median seconds and interval."""

    size: int
    length: int
    seconds: float
    low: float | None
    high: float | None


class StepModel(Frozen):
    """Step time as a function of the shape, fitted to what was measured; an estimate everywhere else.

    ``method`` in words; ``variable`` is what the ``coefficients`` (seconds, by power of it) are of. ``residual`` is the root
    of the mean squared relative error at the measured shapes, ``worst`` the largest; None where the fit has no freedom left
    to be wrong.
    """

    method: str
    variable: Literal["length", "batch x length"]
    coefficients: tuple[float, float, float]
    points: list[Measured]
    residual: float | None
    worst: float | None

    def seconds(self, size: int, length: int) -> float:
        """The estimate for a shape, in seconds."""
        x = _variable(self.variable, size, length)
        return sum(c * x**power for power, c in enumerate(self.coefficients))

    def basis(self, size: int, length: int) -> Basis:
        """Whether a shape lies between measured ones, beyond them, or beyond :data:`REACH`, where there is no estimate."""
        known = [_variable(self.variable, one.size, one.length) for one in self.points]
        x = _variable(self.variable, size, length)
        if x > REACH * max(known):
            return "not measured"
        return "interpolated" if min(known) <= x <= max(known) else "extrapolated"


class CompileCost(Frozen):
    """Seconds that a shape costs once, beyond a steady step: the median over ``shapes`` first steps, and the extremes."""

    seconds: float
    low: float
    high: float
    shapes: int
    method: str


@dataclass(frozen=True)
class Costs:
    """What one mode and precision cost: measured shapes, and a model for the others where there can be one."""

    measured: list[Measured]
    model: StepModel | None
    compiling: CompileCost | None
    doubt: str = ""  # why there is no model where there could be one

    def of(self, size: int, length: int) -> StepCost:
        """Cost of one step of a shape, measured where it was."""
        for one in self.measured:
            if (one.size, one.length) == (size, length):
                return StepCost(seconds=one.seconds, low=one.low, high=one.high, basis="measured")
        basis = self.model.basis(size, length) if self.model else "not measured"
        seconds = self.model.seconds(size, length) if self.model and basis != "not measured" else None
        return StepCost(seconds=seconds, low=None, high=None, basis=basis)


def shape_of(case: str) -> tuple[int, int] | None:
    """Batch size and length of a plain case, None for a varied one."""
    found = _PLAIN.fullmatch(case)
    return (int(found[1]), int(found[2])) if found else None


def costs(
    cells: Sequence[Cell],
    results: Sequence[CellResult],
    timings: Sequence[PooledTiming],
    mode: str,
    dtype: str,
    sizes: Sequence[int],
    most_wrong: float = 0.25,
) -> Costs:
    """Costs of `mode` in `dtype`, for traffic of the batch `sizes`. A model that is further off than `most_wrong` (a share) at
    any timed shape is none.
    """
    points = []
    for one in timings:
        shape = shape_of(one.case)
        if (
            (one.mode, one.dtype) == (mode, dtype)
            and shape is not None
            and one.median is not None
            and "#" not in one.case
        ):
            low, high = (one.interval.low, one.interval.high) if one.interval else (None, None)
            points.append(Measured(size=shape[0], length=shape[1], seconds=one.median, low=low, high=high))
    model, doubt = fitted(points, sizes), ""
    if model is not None and model.worst is not None and model.worst > most_wrong:
        doubt = f"step times follow no law of the length ({model.method}, {model.worst:.0%} at worst), so there are no estimates"
        model = None
    return Costs(points, model, _compiling(cells, results, mode, dtype), doubt)


def _variable(name: str, size: int, length: int) -> int:
    return length if name == "length" else size * length


def fitted(points: Sequence[Measured], sizes: Sequence[int]) -> StepModel | None:
    """The model over `points`: in the length, where all traffic has one batch size and it was timed at two lengths; else in
    batch x length. None where only one value of that was timed.

    Coefficients are not negative, so that a longer step never costs less; errors are relative, so that short steps count.
    The square (attention's) is taken from four values on.
    """
    if len(set(sizes)) == 1:
        own = [one for one in points if one.size == sizes[0]]
        if len({one.length for one in own}) > 1:
            return _fit(own, "length", f" at batch {sizes[0]}")
    if len({one.size * one.length for one in points}) > 1:
        return _fit(list(points), "batch x length", "")
    return None


def _fit(points: list[Measured], variable: Literal["length", "batch x length"], where: str) -> StepModel:
    x = np.array([_variable(variable, one.size, one.length) for one in points], dtype=np.float64)
    y = np.array([one.seconds for one in points])
    values = len(set(x.tolist()))
    powers = 3 if values > 3 else 2
    # Columns are scaled to their largest value: lengths squared and a constant differ by many orders.
    scale = np.array([x.max() ** power for power in range(powers)])
    columns = np.stack([x**power for power in range(powers)], axis=1) / scale
    found, best = np.zeros(powers), np.inf
    for count in range(1, powers + 1):  # few columns: every set of them that may be positive is tried
        for chosen in combinations(range(powers), count):
            part, *_ = np.linalg.lstsq(columns[:, chosen] / y[:, None], np.ones(len(y)), rcond=None)
            error = float(np.square(columns[:, chosen] @ part / y - 1).sum())
            if part.min() >= 0 and error < best - 1e-15:
                best, found = error, np.zeros(powers)
                found[list(chosen)] = part
    relative = np.abs(columns @ found / y - 1)
    free = values - int((found > 0).sum())
    coefficients = np.zeros(3)
    coefficients[:powers] = found / scale
    formula = " + ".join(("a", f"b * {variable}", f"c * ({variable})^2")[power] for power in np.flatnonzero(found))
    formula = "a constant" if formula == "a" else formula
    said = f"{formula} through {len(points)} timed shapes{where}"
    root, worst = (float(np.sqrt(np.mean(relative**2))), float(relative.max())) if free else (None, None)
    said += "; no residual: as many coefficients as values" if root is None else f"; {root:.1%} off on average"
    return StepModel(
        method=said,
        variable=variable,
        coefficients=(float(coefficients[0]), float(coefficients[1]), float(coefficients[2])),
        points=points,
        residual=root,
        worst=worst,
    )


def _compiling(cells: Sequence[Cell], results: Sequence[CellResult], mode: str, dtype: str) -> CompileCost | None:
    """From shapes that came later in a process with an empty cache, since the first also pays for what comes once."""
    later: list[float] = []
    first: list[float] = []
    for cell, result in zip(cells, results, strict=True):
        if (cell.mode, cell.dtype) != (mode, dtype) or cell.cache == "warm" or cell.kind not in ("sequence", "single"):
            continue
        for number, case in enumerate(result.cases):
            if case.timing is None or case.verdict != "match" or shape_of(case.case) is None or "#" in case.case:
                continue
            seconds = sum(case.timing.first_step.values()) - case.timing.later.median
            (later if number else first).append(max(0.0, seconds))
    taken = later or first
    if not taken:
        return None
    what = (
        "shapes that a process with an empty cache met after its first one"
        if later
        else "first shapes of processes with an empty cache, so what a process pays once is in it"
    )
    return CompileCost(
        seconds=float(np.median(taken)),
        low=min(taken),
        high=max(taken),
        shapes=len(taken),
        method=f"first step less a steady one, median over {len(taken)} {what}",
    )
