"""Decisions made from outputs, and the user's own score: did a difference that is allowed change what is done?

A decision is the column with the largest value in each row of an output, or the side of a declared threshold. It flips on a
correct device where truth itself is within rounding of a tie. So a flip is a *near tie* when truth's distance between the two
choices is no more than two elements' allowed rounding errors (the gate on the whole tensor, spread over its elements), and a
wrong decision otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .. import evidence as ev
from ..errors import EvidenceError
from ..evidence.files import Frozen
from ..evidence.probes import TaskScore
from ..requirements import Numerics, Requirements, Task
from . import numerics
from .results import Cell, Decisions, Finding

_BOTH = 2.0  # one element may be too low and the other one too high


def measure(
    name: str,
    device: np.ndarray,
    truth: np.ndarray,
    cpu: np.ndarray | None,
    allowed_error: float,
    threshold: float | None = None,
) -> Decisions | None:
    """Compare decisions. `allowed_error` is the RMS error per element that the gate allows.

    None where the output decides nothing: it has fewer than two columns and no threshold, is empty, or holds integers.
    """
    columns = truth.shape[-1] if truth.ndim else 0
    if not truth.size or device.shape != truth.shape or not np.issubdtype(device.dtype, np.floating):
        return None
    if threshold is None and columns < 2:
        return None
    explained = _BOTH * allowed_error
    exact = truth.astype(np.float64)
    if threshold is None:
        rows = exact.reshape(-1, columns)
        ordered = np.partition(rows, -2, axis=1)
        margins = ordered[:, -1] - ordered[:, -2]
        chosen, right = device.reshape(-1, columns).argmax(1), rows.argmax(1)
        every = np.arange(len(rows))
        gap = rows[every, right] - rows[every, chosen]  # 0 where truth itself is tied between the two
        other = None if cpu is None else cpu.reshape(-1, columns).argmax(1)
        kind = f"largest of {columns} columns"
    else:
        values, explained = exact.reshape(-1), allowed_error
        margins = gap = np.abs(values - threshold)
        chosen, right = device.reshape(-1) > threshold, values > threshold
        other = None if cpu is None else cpu.reshape(-1) > threshold
        kind = f"above {threshold:g}"
    lost = (np.isnan(device) & ~np.isnan(truth)).reshape(len(right), -1).any(1)  # decided by what is not a number
    flipped = (chosen != right) | lost
    wrong = flipped & (lost | ~(gap <= explained))
    quartiles: tuple[float | None, ...] = (None, None, None)
    finite = margins[np.isfinite(margins)]
    if finite.size and explained > 0:
        quartiles = tuple(float(q) for q in np.quantile(finite / explained, (0.25, 0.5, 0.75)))
    return Decisions(
        name=name,
        kind=kind,
        rows=len(right),
        flips=int(flipped.sum()),
        near_ties=int((flipped & ~wrong).sum()),
        wrong=int(wrong.sum()),
        cpu_flips=None if other is None else int((other != right).sum()),
        explained=explained,
        margin_q1=quartiles[0],
        margin_median=quartiles[1],
        margin_q3=quartiles[2],
        share_of_near_ties=float((margins <= explained).mean()),
        first_wrong=_first(wrong, chosen, right, gap) if wrong.any() else "",
    )


def _first(wrong: np.ndarray, chosen: np.ndarray, right: np.ndarray, gap: np.ndarray) -> str:
    row = int(wrong.argmax())
    return f"row {row} decides {int(chosen[row])}, truth {int(right[row])}, which is ahead by {float(gap[row]):.3g}"


def of_case(
    device: Mapping[str, np.ndarray],
    truth: Mapping[str, np.ndarray],
    own_errors: Mapping[str, np.ndarray],
    dtypes: Mapping[str, str],
    reduction: int,
    demand: Numerics,
) -> list[Decisions]:
    """Decisions of every output of one case. Keys are ``step<i>/output/<name>``; `own_errors` are the CPU's own errors at this
    precision, `dtypes` the outputs' dtypes.
    """
    found = []
    for key in sorted(truth):
        if "/output/" not in key or key not in device or key not in dtypes:
            continue
        if not np.issubdtype(device[key].dtype, np.floating) or device[key].shape != truth[key].shape:
            continue
        exact = truth[key].astype(np.float64)
        own = own_errors.get(key)
        subject = numerics.Subject(
            name=key,
            role="output",
            dtype=dtypes[key],
            device=device[key],
            truth=np.where(np.isfinite(exact), exact, 0.0),
            reference_error=own,
            reduction=reduction,
        )
        per_element = numerics.allowed(subject, demand).whole / math.sqrt(max(exact.size, 1))
        threshold = demand.thresholds.get(key.split("/", 2)[2])
        result = measure(key, device[key], exact, None if own is None else exact + own, per_element, threshold)
        if result is not None:
            found.append(result)
    return found


def flipped(results: list[Decisions], cell: str, case: str) -> list[Finding]:
    """``decision-flipped`` for every output with a decision that rounding does not explain."""
    return [
        Finding(
            word="decision-flipped",
            cell=cell,
            case=case,
            text=f"{result.name}: {result.wrong} of {result.rows} decisions ({result.kind}) differ where truth is no near "
            f"tie ({result.first_wrong}; rounding explains {result.explained:.2g}); {result.near_ties} more are near ties",
            fails=True,
        )
        for result in results
        if result.wrong
    ]


class TaskResult(Frozen):
    """The user's own score at one step: device, float64 truth, and the limit on their difference."""

    step: str
    device: float | None
    truth: float | None
    difference: float | None
    within: bool


def task(device: TaskScore, truth: TaskScore, demand: Task) -> list[TaskResult]:
    """Compare scores step by step. A score that is not a finite number is within no limit."""
    found = []
    for step, right in truth.scores.items():
        mine = device.scores.get(step)
        difference = None if mine is None or right is None else abs(mine - right)
        within = difference is not None and difference <= demand.limit
        found.append(TaskResult(step=step, device=mine, truth=right, difference=difference, within=within))
    return found


def task_findings(root: Path, cells: list[Cell], requirements: Requirements) -> list[Finding]:
    """``task-outside-limit`` for every case whose score is further from truth's than the frozen limit.

    A case is scored in ``evidence/<cell>/<case>.task.json``, its truth in ``evidence/truth/<hash>.task.json``.
    """
    found: list[Finding] = []
    if not requirements.task.function:
        return found
    for cell in cells:
        for case in cell.cases:
            path = root / "evidence" / cell.id / f"{case}.task.json"
            if cell.mode == "reference" or not path.exists():
                continue
            try:
                mine = ev.read(TaskScore, path)
                beside = root / "evidence" / "truth" / f"{mine.of_tensors_sha256[:16]}.task.json"
                results = task(mine, ev.read(TaskScore, beside), requirements.task)
            except EvidenceError as error:
                found.append(Finding(word="untested(task)", cell=cell.id, case=case, text=str(error), fails=False))
                continue
            for result in results:
                if not result.within:
                    text = _outside(result, requirements.task)
                    found.append(Finding(word="task-outside-limit", cell=cell.id, case=case, text=text, fails=True))
    return found


def _outside(result: TaskResult, demand: Task) -> str:
    if result.difference is None:
        return (
            f"{demand.function} at {result.step} is not a finite number on both sides ({result.device}, {result.truth})"
        )
    return (
        f"{demand.function} at {result.step} is {result.device:.6g}, truth {result.truth:.6g}: {result.difference:.3g} apart, "
        f"the limit is {demand.limit:g}" + (f" ({demand.reason})" if demand.reason else "")
    )
