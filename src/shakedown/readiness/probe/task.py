"""The task hook: a score of the user's own, from outputs that were captured on the device, computed on the CPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from .. import evidence
from ..errors import WorkloadError
from ..evidence.probes import TaskScore
from ..workload import Workload


def score(loaded: Workload, name: str, outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> float:
    """Call the workload's function `name`. Raises :class:`WorkloadError` where it is missing, raises, or gives no number."""
    function = loaded.functions.get(name)
    where = f"{loaded.source.name}: the task {name}(outputs, batch)"
    if function is None:
        raise WorkloadError(
            f"{where} of the requirements is not defined in the workload; it is a function of that file"
        )
    try:
        value: Any = function(dict(outputs), dict(batch))
    except Exception as error:
        raise WorkloadError(f"{where} raises {type(error).__name__}: {error}") from error
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WorkloadError(f"{where} returned {type(value).__name__}; it must return one number")
    return float(value)


def keep(
    loaded: Workload,
    name: str,
    tensors: Mapping[str, Tensor],
    batches: list[dict[str, Tensor]],
    tensors_sha256: str,
    path: Path,
) -> None:
    """Score steps whose outputs are in `tensors` (``step<i>/output/<name>``, as captured) and write the document."""
    by_step: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        when, role, output = key.split("/", 2)
        if role == "output":
            by_step.setdefault(int(when.removeprefix("step")), {})[output] = value
    scores: dict[str, float | None] = {}
    for step, outputs in sorted(by_step.items()):
        value = score(loaded, name, outputs, batches[step - 1])
        scores[f"step{step}"] = value if math.isfinite(value) else None
    evidence.write(TaskScore(function=name, of_tensors_sha256=tensors_sha256, scores=scores), path)
