"""Stage 5: what one process saw of one case, as files that are written at once and never changed.

A piece of evidence is ``<case>.json`` beside ``<case>.safetensors``. Tensors are kept as float32 (float64 where the run
was float64, integers as they were), so that NumPy reads them without torch; the original dtype is in the JSON. Files
appear under their final name only when complete. :func:`blendable` refuses to put together what must not be compared.

Schema history: ``/1`` first version.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict
from safetensors.numpy import load_file

from .errors import EvidenceError

SCHEMA = "shakedown.evidence/1"
TRUTH_SCHEMA = "shakedown.truth/1"
Role = Literal["output", "loss", "gradient", "weight", "buffer"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorInfo(_Frozen):
    """One kept tensor: its name is ``step<i>/<role>/<name>``."""

    step: int
    role: Role
    name: str
    dtype: str
    shape: tuple[int, ...]


class PathRow(_Frozen):
    """Events of one kind, operator, phase and reason, counted over one step.

    ``seconds`` is 0 where it is not measured; ``nbytes`` is what crossed between host and device.
    """

    kind: Literal["execute", "fallback", "compile", "transfer", "synchronize", "flush"]
    name: str
    phase: str
    detail: str = ""
    count: int
    seconds: float = 0.0
    nbytes: int = 0


class Paths(_Frozen):
    """Where operators ran: in the first step, and in a later one. None = not observed, with the reason."""

    source: str
    first_step: list[PathRow] | None
    later_step: list[PathRow] | None
    reason: str = ""


class Graphs(_Frozen):
    """What ``torch.compile`` captured until the end of this case, cumulated over the process."""

    captured: int
    calls: int
    breaks: dict[str, int]


class StepSeries(_Frozen):
    """Seconds of each timed step, in order, completion awaited once per step; the least disturbed of so many attempts.

    ``foreign_cores`` is the number of cores that other processes kept busy meanwhile, None where that cannot be read.
    """

    seconds: list[float]
    compiles_during: int | None
    foreign_cores: float | None
    attempts: int


class Timings(_Frozen):
    """Seconds per phase of the first step (each phase awaited), the later steps, and phases of a few later ones."""

    first_step: dict[str, float]
    first_step_foreign_cores: float | None
    later: StepSeries
    later_phases: dict[str, list[float]]


class Training(_Frozen):
    """Loss on the first batch before training, and after so many steps (None: not finite)."""

    steps: int
    first_loss: float | None
    last_loss: float | None


class Startup(_Frozen):
    """Seconds from starting the process to a restored workload on the device."""

    launch: float
    import_torch: float
    device_init: float
    restore: float
    optimizer: float


class SelfTest(_Frozen):
    """Can this target's clock be trusted? ``ratio`` is time of 2N calls over twice the time of N calls."""

    passed: bool
    ratio: float
    read_back_share: float
    calls: int
    tries: int
    reason: str = ""


class CacheState(_Frozen):
    """The experiment's own cache directory, as the worker found it before importing torch."""

    state: Literal["cold", "warm", "none"]
    files_before: int
    bytes_before: int
    note: str = ""


class Evidence(_Frozen):
    """Everything one process wrote about one case."""

    schema_version: str = SCHEMA
    cell: str
    case: str
    mode: str
    dtype: str
    identity: dict[str, Any]
    snapshot_sha256: str
    requirements_sha256: str
    restored_sha256: str
    moved_exactly: bool
    tensors_file: str
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


class Truth(_Frozen):
    """The float64 run on the CPU that one piece of evidence is judged against.

    Steps 1 and k were each computed from the weights that the device itself had before that step, and weights were
    updated with the device's own gradients, so that each difference is the error of one stage and not of all before it.
    """

    schema_version: str = TRUTH_SCHEMA
    of_tensors_sha256: str
    case: str
    dtype: str
    identity: dict[str, Any]
    snapshot_sha256: str
    requirements_sha256: str
    tensors_file: str
    tensors_sha256: str
    tensors: list[TensorInfo]


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` so that `path` holds either all of it or nothing, whenever the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def finite(value: float) -> float | None:
    """`value`, or None where it is not a number or infinite: JSON has neither."""
    return value if math.isfinite(value) else None


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no spare blanks: equal values have equal bytes, so they can be hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()


def write(document: BaseModel, path: Path) -> None:
    """Write one document (evidence, truth, self-test)."""
    write_atomic(path, (document.model_dump_json(indent=1) + "\n").encode())


_Document = TypeVar("_Document", bound=BaseModel)


def read(kind: type[_Document], path: Path) -> _Document:
    """Read one document. Raises :class:`EvidenceError` when it is damaged or of another version."""
    try:
        raw = json.loads(path.read_text())
        field = kind.model_fields.get("schema_version")
        if field is not None and raw.get("schema_version") != field.default:
            raise EvidenceError(f"{path} has schema {raw.get('schema_version')!r}; this version reads {field.default}")
        return kind.model_validate(raw)
    except (OSError, ValueError, AttributeError) as error:
        raise EvidenceError(f"{path} is not a readable {kind.__name__}: {error}") from None


def tensors(document: Evidence | Truth, root: Path) -> dict[str, np.ndarray]:
    """The kept tensors, by full name. Raises :class:`EvidenceError` when the file is not the one that was written."""
    path = root / document.tensors_file
    try:
        if sha256(path) != document.tensors_sha256:
            raise EvidenceError(f"{path} is not the file that its evidence was written with")
        return load_file(path)
    except OSError as error:
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
