"""Reading, locking and unlocking the requirements file."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from ..errors import BadInput
from .model import SCHEMA, Requirements


def load(path: Path | None) -> Requirements:
    """Read requirements from TOML; without a file, the defaults. Raises :class:`BadInput` naming the key at fault."""
    if path is None:
        return Requirements()
    try:
        return Requirements.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise BadInput(f"cannot read the requirements {path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"the requirements {path} are not TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"the requirements {path} are wrong at {where}: {first['msg']}") from None


class Locked(BaseModel):
    """The file that is written before the first result: values, and the reason of each."""

    model_config = ConfigDict(frozen=True)
    schema_version: str = SCHEMA
    values: Requirements
    reasons: dict[str, str]


def reasons(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """The sentence behind each number, by dotted name."""
    found: dict[str, str] = {}
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found |= reasons(inner, f"{prefix}{name}.")
        elif field.description:
            found[prefix + name] = field.description
    return found


def lock(requirements: Requirements, path: Path) -> str:
    """Write `requirements` with their reasons to `path`; return the file's SHA-256."""
    text = Locked(values=requirements, reasons=reasons(Requirements)).model_dump_json(indent=1)
    path.write_text(text + "\n")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def unlock(path: Path) -> Requirements:
    """Read back what :func:`lock` wrote."""
    return Locked.model_validate_json(path.read_text()).values
