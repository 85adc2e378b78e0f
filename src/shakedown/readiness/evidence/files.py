"""Files of evidence: written at once, hashed, read back with their schema checked."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from ..errors import EvidenceError
from .untrusted import read_json


class Frozen(BaseModel):
    """A document or a part of one: it cannot change, and has no key that is not known."""

    model_config = ConfigDict(frozen=True, extra="forbid")


_owner: int | None = None


def own() -> None:
    """From now on, evidence is this process's to write, and not that of children which it forks."""
    global _owner
    _owner = os.getpid()


def leave_if_forked() -> None:
    """End a forked child that has come to write evidence: a workload that forks and does not end the child would have
    every piece written twice.
    """
    if _owner not in (None, os.getpid()):
        os._exit(0)


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
    leave_if_forked()
    write_atomic(path, (document.model_dump_json(indent=1) + "\n").encode())


_Document = TypeVar("_Document", bound=BaseModel)


def read(kind: type[_Document], path: Path) -> _Document:
    """Read one document, which somebody else may have made. Raises :class:`EvidenceError` when it is damaged or of another
    version.
    """
    try:
        raw = read_json(path)
        field = kind.model_fields.get("schema_version")
        if field is not None and raw.get("schema_version") != field.default:
            raise EvidenceError(f"{path} has schema {raw.get('schema_version')!r}; this version reads {field.default}")
        return kind.model_validate(raw)
    except (OSError, ValueError, AttributeError) as error:
        raise EvidenceError(f"{path} is not a readable {kind.__name__}: {error}") from None
