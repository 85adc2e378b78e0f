"""Reading, locking and unlocking the requirements file."""

from __future__ import annotations

import difflib
import hashlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from ..errors import BadInput, EvidenceError
from ..evidence import sha256, untrusted, write_atomic
from . import traffic
from .consistency import contradictions
from .model import SCHEMA, Requirements
from .positions import Place, lines, nearest


def load(path: Path | None) -> Requirements:
    """Read requirements from TOML; without a file, the defaults.

    Raises:
        BadInput: the file cannot be read, is not TOML, has keys or values that are not allowed, or contradicts itself. Each
            line of the message is one mistake, ``FILE:LINE: KEY: what is wrong``; all of them are given at once.
    """
    if path is None:
        return Requirements()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot read the requirements {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(
            f"cannot read the requirements {path}: not UTF-8 ({error.reason} at byte {error.start})"
        ) from None
    found = parse(text, str(path))
    try:
        return found.model_copy(update={"traffic": traffic.attached(found.traffic, path.parent)})
    except BadInput as error:
        raise BadInput(f"{path}:{nearest(lines(text), ('traffic', 'lengths'))}: traffic.lengths: {error}") from None


def parse(text: str, name: str) -> Requirements:
    """:func:`load` for a text; `name` is what messages call it. Raises :class:`BadInput`."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"line (\d+)", str(error))
        line = int(where[1]) if where else max(1, len(text.splitlines()))
        raise BadInput(f"{name}:{line}: not TOML: {error}") from None
    positions = lines(text)
    wrong: list[tuple[int, str, str]] = []
    found: Requirements | None = None
    try:
        found = Requirements.model_validate(raw, strict=True)
    except ValidationError as error:
        wrong = [_explained(one, positions) for one in error.errors()]
        found = _without(raw, [tuple(one["loc"]) for one in error.errors()])
    if found is not None:
        wrong += [(nearest(positions, place), _dotted(place), said) for place, said in contradictions(found)]
    if wrong or found is None:
        said = [f"{name}:{line}: {key + ': ' if key else ''}{what}" for line, key, what in sorted(wrong)]
        raise BadInput("\n".join(said))
    return found


def _without(raw: dict[str, Any], places: list[Place]) -> Requirements | None:
    """The requirements with defaults at `places`, so that what else is wrong can be told too; None where they have none."""
    for place in places:
        table: Any = raw
        for part in place[:-1]:
            table = table[part]
        if isinstance(table, dict):
            table.pop(place[-1], None)
    try:
        return Requirements.model_validate(raw, strict=True)
    except ValidationError:
        return None


_BOUNDS = {
    "greater_than_equal": "at least",
    "greater_than": "above",
    "less_than_equal": "at most",
    "less_than": "below",
}
_KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a text in quotation marks",
    "list_type": "a list in brackets",
    "dict_type": "a table",
    "model_type": "a table",
    "string_too_short": "at least one character",
}


def _dotted(place: Place) -> str:
    """``cases[1].size``, with members of a list counted from 0 as TOML readers do."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{_quoted(part)}"
    return text.removeprefix(".")


def _quoted(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{key}"'


def _explained(error: Any, positions: dict[Place, int]) -> tuple[int, str, str]:
    """Line, key and sentence of one validation error."""
    place: Place = tuple(error["loc"])
    kind, context, given = error["type"], error.get("ctx", {}), error["input"]
    said = str(error["msg"]).removeprefix("Value error, ")
    shown = f"{given!r:.60}"
    if kind == "extra_forbidden":
        known = list(_fields_at(place[:-1]))
        close = difflib.get_close_matches(str(place[-1]), known, 1, 0.6)
        hint = f"did you mean {close[0]}" if close else f"known here: {', '.join(known)}"
        said = f"unknown key; {hint}"
    elif kind == "missing":
        said = "this key is missing"
        return nearest(positions, place[:-1]), _dotted(place), said
    elif kind == "literal_error":
        said = f"{shown} is not allowed; choose {context['expected']}"
    elif kind in _BOUNDS:
        said = f"{shown} is not allowed; it must be {_BOUNDS[kind]} {next(iter(context.values()))}"
    elif kind in _KINDS:
        said = f"{shown} is not allowed; write {_KINDS[kind]}"
    elif kind != "value_error":
        said = f"{shown} is not allowed; {said[0].lower()}{said[1:]}"
    return nearest(positions, place), _dotted(place), said


def _fields_at(place: Place) -> Iterator[str]:
    """Keys that are known in the table at `place`."""
    model: Any = Requirements
    for part in place:
        if isinstance(model, type) and issubclass(model, BaseModel):
            model = model.model_fields[str(part)].annotation
        else:  # a list or a dict of tables
            model = get_args(model)[-1]
    if isinstance(model, type) and issubclass(model, BaseModel):
        yield from model.model_fields


# --- locking ------------------------------------------------------------------------------------------------------------


class Locked(BaseModel):
    """The file that is written before the first result: values, and the reason of each.

    ``file`` and ``file_sha256`` are name and hash of the TOML file that the values came from; empty where there was none.
    """

    model_config = ConfigDict(frozen=True)
    schema_version: str = SCHEMA
    values: Requirements
    reasons: dict[str, str]
    file: str = ""
    file_sha256: str = ""


def reasons(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """The sentence behind each number, by dotted name; keys of the tables in a list are ``cases[].size``."""
    found: dict[str, str] = {}
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found |= reasons(inner, f"{prefix}{name}.")
            continue
        if field.description:
            found[prefix + name] = field.description
        member = get_args(inner)[-1] if get_origin(inner) is list else None
        if isinstance(member, type) and issubclass(member, BaseModel):
            found |= reasons(member, f"{prefix}{name}[].")
    return found


def lock(requirements: Requirements, path: Path, source: Path | None = None) -> str:
    """Write `requirements` with their reasons to `path`; return the SHA-256 of what was written.

    `source` is the TOML file that they came from, whose own hash is kept too. A file of lengths that they name is copied
    beside the lock, and has its hash in it.

    Raises:
        BadInput: the file of lengths is not what it was when the requirements were read.
    """
    folder = source.parent if source else Path()
    requirements = requirements.model_copy(update={"traffic": traffic.copy(requirements.traffic, folder, path.parent)})
    document = Locked(
        values=requirements,
        reasons=reasons(Requirements),
        file=source.name if source else "",
        file_sha256=sha256(source) if source else "",
    )
    data = (document.model_dump_json(indent=1) + "\n").encode()
    write_atomic(path, data)
    return hashlib.sha256(data).hexdigest()


def unlock(path: Path) -> Requirements:
    """Read back what :func:`lock` wrote. Raises :class:`EvidenceError` where it is not readable."""
    return _locked(path).values


def _locked(path: Path) -> Locked:
    try:
        return Locked.model_validate(untrusted.read_json(path))
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{path} is not a readable requirements lock: {str(error).splitlines()[0]}") from None


def changed(now: Requirements | Path, lock_file: Path) -> str:
    """Why a run that was locked with `lock_file` must not go on with the requirements `now`; empty when nothing differs.

    Values decide: a comment or another order of keys in the file changes nothing.

    Raises:
        BadInput: `now` is a file with mistakes.
        EvidenceError: `lock_file` is missing or damaged.
    """
    locked = _locked(lock_file)
    if isinstance(now, Path):
        now = load(now)
    different = list(differences(locked.values, now))
    if not different:
        return ""
    return (
        "the requirements were changed after they were locked: "
        + "; ".join(different)
        + ". Results that were measured under the old ones cannot be judged by the new ones: start a new record with "
        "another --out, or put the old values back"
    )


def differences(old: Requirements, new: Requirements) -> Iterator[str]:
    """``key: old value -> new value`` for each key that differs."""
    before, after = _flat(old.model_dump(mode="json")), _flat(new.model_dump(mode="json"))
    for place in dict.fromkeys((*before, *after)):
        if before.get(place, _NOT_THERE) != after.get(place, _NOT_THERE):
            yield f"{_dotted(place)}: {_value(before, place)} -> {_value(after, place)}"


_NOT_THERE = object()


def _value(values: dict[Place, Any], place: Place) -> str:
    return repr(values[place]) if place in values else "(not there)"


def _flat(value: Any, place: Place = ()) -> dict[Place, Any]:
    """Leaves by place; an empty table or list is a leaf."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: dict[Place, Any] = {}
    for key, inner in members:
        found |= _flat(inner, (*place, key))
    return found or {place: value}
