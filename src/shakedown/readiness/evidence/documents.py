"""Stage 5: what one process saw of one case, as files that are written at once and never changed.

A piece of evidence is ``<case>.json``, and names the file of its tensors by hash. Tensors are kept as float32 (float64 where
the run was float64, integers as they were), so that NumPy reads them without torch; the original dtype is in the JSON. Files
appear under their final name only when complete. :func:`blendable` refuses to put together what must not be compared.

Schema history: ``/1`` first version; ``/2`` optimizer state, tensors under the name of their hash, inference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import EvidenceError
from .files import Frozen, sha256
from .graphs import Graphs
from .paths import Paths
from .timing import CacheState, Startup, Timings, Training
from .untrusted import FileName, RelativePath, load_tensors

SCHEMA = "shakedown.evidence/2"
TRUTH_SCHEMA = "shakedown.truth/1"
Role = Literal["output", "loss", "gradient", "weight", "buffer", "state"]


class TensorInfo(Frozen):
    """One kept tensor: its name is ``step<i>/<role>/<name>``."""

    step: int
    role: Role
    name: str
    dtype: str
    shape: tuple[int, ...]
    sparse: bool = False


class Evidence(Frozen):
    """Everything one process wrote about one case."""

    schema_version: str = SCHEMA
    cell: FileName
    case: FileName
    mode: str
    dtype: str
    identity: dict[str, Any]
    snapshot_sha256: str
    requirements_sha256: str
    restored_sha256: str
    moved_exactly: bool
    tensors_file: RelativePath
    tensors_sha256: str
    tensors: list[TensorInfo]
    missing_gradients: list[str]
    reduction_length: int
    startup: Startup
    cache: CacheState
    paths: Paths
    graphs: Graphs | None
    timings: Timings
    training: Training


class Truth(Frozen):
    """The float64 run on the CPU that one piece of evidence is judged against.

    Steps 1 to k were each computed from the weights that the device itself had before that step, and weights were
    updated with the device's own gradients, so that each difference is the error of one stage and not of all before it.
    """

    schema_version: str = TRUTH_SCHEMA
    of_tensors_sha256: str
    case: FileName
    dtype: str
    identity: dict[str, Any]
    snapshot_sha256: str
    requirements_sha256: str
    tensors_file: RelativePath
    tensors_sha256: str
    tensors: list[TensorInfo]


def tensors(document: Evidence | Truth, root: Path) -> dict[str, np.ndarray]:
    """The kept tensors, by full name. Raises :class:`EvidenceError` when the file is not the one that was written."""
    path = root / document.tensors_file
    try:
        if sha256(path) != document.tensors_sha256:
            raise EvidenceError(f"{path} is not the file that its evidence was written with")
        return load_tensors(path)
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{path} cannot be read: {error}") from None


def blendable(one: Evidence, other: Evidence | Truth) -> list[str]:
    """Why two pieces of evidence must not be compared; empty when they may.

    Mode, dtype, device and cache state are the point of the comparison. Host, versions, threads, snapshot and
    requirements must be equal.
    """
    differs = [
        f"{name} differs: {one.identity['fixed'].get(name)!r:.60} and {other.identity['fixed'].get(name)!r:.60}"
        for name in sorted({*one.identity["fixed"], *other.identity["fixed"]})
        if one.identity["fixed"].get(name) != other.identity["fixed"].get(name)
    ]
    if one.snapshot_sha256 != other.snapshot_sha256:
        differs.append("they start from different snapshots")
    if one.requirements_sha256 != other.requirements_sha256:
        differs.append("they were made under different requirements")
    if isinstance(other, Evidence) and one.dtype == other.dtype and one.restored_sha256 != other.restored_sha256:
        differs.append("the restored weights and inputs differ")
    return differs
