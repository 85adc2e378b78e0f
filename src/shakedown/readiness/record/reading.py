"""Reading a record that anybody may have made."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import RecordError
from ..evidence import printable, untrusted
from . import upgrade
from .document import SCHEMA, Record

NAME = "record.json"
_OWN = {"upgraded_from", "not_recorded", "judgement.older"}  # what upgrading itself fills


def load(root: Path) -> Record:
    """Read ``record.json`` of the trial in `root`; an older version is upgraded, and says what it did not hold.

    Control characters in its strings are written out, so that they can be printed. Nothing is verified here.

    Raises:
        RecordError: it is missing, damaged or of a version that is not known, or the directory holds links or more files
            than a trial leaves.
    """
    raw = exact(root)
    return understood(untrusted.shown(raw), root / NAME)


def exact(root: Path) -> dict[str, Any]:
    """The document as it was written, after a look at the directory around it. Raises :class:`RecordError`."""
    path = root / NAME
    try:
        raw = untrusted.parse_exactly(untrusted.read_bytes(path))
    except OSError as error:
        raise RecordError(f"there is no record in {root}: {error.strerror}") from None
    except ValueError as error:
        raise RecordError(f"{path} is not a record: {printable(str(error))}") from None
    if not isinstance(raw, dict):
        raise RecordError(f"{path} is not a record: it is JSON, and not an object")
    _check_version(raw, path)
    files(root)
    return raw


def files(root: Path) -> dict[str, int]:
    """Every file below `root` with its size. Raises :class:`RecordError` at a link, or when there are too many."""
    try:
        return dict(untrusted.inventory(root))
    except OSError as error:
        raise RecordError(f"{root} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise RecordError(f"{root} is not a trial's directory: {error}") from None


def _check_version(raw: dict[str, Any], path: Path) -> None:
    version = raw.get("schema_version")
    if version == SCHEMA or version in list(upgrade.STEPS):
        return
    known = f"{next(iter(upgrade.STEPS))} to {SCHEMA}"
    number = re.fullmatch(r"shakedown\.record/(\d{1,9})", version) if isinstance(version, str) else None
    if number and int(number[1]) > int(SCHEMA.rpartition("/")[2]):
        writer = raw.get("shakedown_version")
        named = f"Shakedown {printable(writer)[:40]}" if isinstance(writer, str) and writer else "a later Shakedown"
        raise RecordError(
            f"{path} has schema {version}, which is newer than this Shakedown reads ({known}); {named} wrote it, and that "
            "version or a later one reads it"
        )
    raise RecordError(f"{path} has schema {printable(repr(version))[:60]}; this Shakedown reads {known}")


def understood(raw: dict[str, Any], path: Path) -> Record:
    """The record that a document of any known version describes. Raises :class:`RecordError` where it is none."""
    version = raw["schema_version"]
    try:
        missing = [name for name in upgrade.not_recorded(Record, raw) if name not in _OWN]
        newest = upgrade.upgraded(raw)
        if version != SCHEMA:
            newest |= {"upgraded_from": version, "not_recorded": missing}
        return Record.model_validate(newest)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RecordError(f"{path} does not follow {version}: {printable(place)[:200]}: {first['msg']}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path} does not follow {version}: {printable(str(error))[:200]}") from None
