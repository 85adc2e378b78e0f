"""The migration ledger: what was changed for the device, the hours it took, and what records say that it brought.

An append-only file of JSON lines. Each line has the hash of its own content and that of the line before, so that an edit,
a removal or a change of order shows. (Cutting lines off the end does not: keep the last hash elsewhere, or the file in
version control.) Writers wait for each other. A line that a crash left unfinished is kept, told, and stepped over.
"""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock, Timeout
from pydantic import Field, ValidationError

from ..errors import BadInput
from ..evidence import Frozen, canonical, untrusted
from .effect import Measured
from .ranges import Range, exactly

SCHEMA = "shakedown.ledger/1"
Kind = Literal["device", "padding", "layout", "unsupported-api", "graph-break", "custom-kernel", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FIRST = "0" * 64  # what the first line has for the line before it
_LONGEST = 4_000_000  # bytes of one line: an effect of some thousand cases
_BEGINNING = b'{"schema_version": "shakedown.ledger/'
_WAIT = 10.0  # seconds for another writer to finish


class Entry(Frozen):
    """One change. ``previous`` is the hash of the entry before, ``sha256`` of this one's other fields.

    ``after_torn`` is the hash of an unfinished line between the two, where a writer died.
    """

    schema_version: str = SCHEMA
    number: int
    when: datetime
    kind: Kind
    what: str = Field(min_length=1, max_length=4000)
    hours: Decimal = Field(ge=0, le=100_000)
    effect: Measured | None = None
    after_torn: str = ""
    previous: str
    sha256: str = ""


class Ledger(Frozen):
    """The file as read. ``problems`` are edits; ``torn`` are unfinished lines, which harm nothing but themselves."""

    file: str
    entries: list[Entry]
    problems: list[str] = Field(default=[])
    torn: list[str] = Field(default=[])

    @property
    def head(self) -> str:
        """Hash of the last entry: with it kept elsewhere, lines cut off the end show too."""
        return self.entries[-1].sha256 if self.entries else FIRST


class KindSum(Frozen):
    """Hours of one kind of change. ``cost`` is None where no rate was given."""

    kind: Kind
    entries: int
    hours: Decimal
    cost: Range | None


class LedgerSum(Frozen):
    """All hours; ``effects`` names the entries that have a measured one."""

    schema_version: str = "shakedown.ledger-sum/1"
    file: str
    currency: str
    rate: Range | None
    kinds: list[KindSum]
    hours: Decimal
    cost: Range | None
    effects: list[Entry]
    problems: list[str]
    torn: list[str]
    head: str


def read(path: Path) -> Ledger:
    """Every entry, with what is wrong with the chain. A file that is not there is an empty ledger.

    Raises:
        BadInput: it cannot be read, or is no ledger at all.
    """
    return _read(_bytes(path), path)[0]


def _bytes(path: Path) -> bytes:
    """What the file holds, which somebody else may have written; nothing where there is none."""
    try:
        return untrusted.read_bytes(path)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise BadInput(f"cannot read the ledger {path}: {error.strerror}") from None
    except ValueError as error:
        raise BadInput(f"cannot read the ledger {path}: {error}") from None


def _read(raw: bytes, path: Path) -> tuple[Ledger, str]:
    """The ledger, and the hash of an unfinished line at its end, if there is one."""
    entries: list[Entry] = []
    problems: list[str] = []
    torn: list[str] = []
    pending: tuple[int, bytes] | None = None  # a line that is not an entry: torn if the next one says so, or the last
    lines = raw.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        found = _entry(line)
        if found is None:
            if pending is not None:
                problems.append(f"line {pending[0]} is not an entry")
            pending = number, line
            continue
        entry, content = found
        if pending is not None:
            if entry.after_torn == _hash(pending[1]) and _unfinished(pending[1]):
                torn.append(f"line {pending[0]} was left unfinished ({len(pending[1])} bytes) and is not counted")
            else:
                problems.append(f"line {pending[0]} is not an entry")
            pending = None
        elif entry.after_torn:
            problems.append(f"line {number} follows an unfinished line that is not there")
        problems += _broken(entry, content, entries, number)
        entries.append(entry)
    left = ""
    if pending is not None:
        if pending[0] == len(lines) and _unfinished(pending[1]):
            left = _hash(pending[1])
            torn.append(f"the last line was left unfinished ({len(pending[1])} bytes) and is not counted")
        else:
            problems.append(f"line {pending[0]} is not an entry")
    if not entries and problems:
        raise BadInput(f"{path} is not a ledger: its first line is no entry of {SCHEMA}")
    return Ledger(file=str(path), entries=entries, problems=problems, torn=torn), left


def _entry(line: bytes) -> tuple[Entry, str] | None:
    """The entry and the hash of what it holds, as written: a later version with more fields must not change it."""
    if len(line) > _LONGEST:
        return None
    try:
        raw = untrusted.parse_exactly(line)
        return Entry.model_validate(untrusted.shown(raw)), _content(raw)
    except (ValueError, AttributeError):
        return None


def _content(raw: dict[str, Any]) -> str:
    """SHA-256 of everything in an entry but its own hash, in canonical JSON."""
    return _hash(canonical({name: value for name, value in raw.items() if name != "sha256"}))


def _unfinished(line: bytes) -> bool:
    """Whether it can be the beginning of an entry, and not something else."""
    return line.startswith(_BEGINNING) or _BEGINNING.startswith(line)


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _broken(entry: Entry, content: str, before: list[Entry], line: int) -> list[str]:
    """What is wrong with one entry, whose content has this hash, given those before it."""
    said = []
    if content != entry.sha256:
        said.append(f"line {line} (entry {entry.number}) was changed after it was written")
    if entry.previous != (before[-1].sha256 if before else FIRST):
        said.append(
            f"line {line} (entry {entry.number}) does not follow the line before it: something was removed or moved"
        )
    return said


def add(path: Path, kind: str, what: str, hours: Decimal, effect: Measured | None, wait: float = _WAIT) -> Entry:
    """Append one entry, and make sure that it is on disk.

    Raises:
        BadInput: the kind is unknown, a value is not allowed, the file is no ledger or its chain is broken, or another
            writer does not finish.
    """
    if kind not in KINDS:
        raise BadInput(f"--kind {kind!r:.40} is not known; use one of {', '.join(KINDS)}")
    lock = FileLock(str(path.with_name(path.name + ".lock")))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock.acquire(timeout=wait):
            return _append(path, kind, what, hours, effect)
    except Timeout:
        raise BadInput(
            f"another process has been writing to {path} for {wait:g} s; try again when it has ended"
        ) from None
    except OSError as error:
        raise BadInput(f"cannot write the ledger {path}: {error.strerror or error}") from None


def _append(path: Path, kind: Kind, what: str, hours: Decimal, effect: Measured | None) -> Entry:
    raw = _bytes(path)
    ledger, left = _read(raw, path)
    if ledger.problems:
        raise BadInput(
            f"{path} is not added to, since its chain is broken: {ledger.problems[0]}; see `shakedown ledger list`"
        )
    try:
        draft = Entry(
            number=len(ledger.entries) + 1,
            when=datetime.now(UTC).replace(microsecond=0),
            kind=kind,
            what=untrusted.printable(what.strip()),
            hours=hours,
            effect=effect,
            after_torn=left,
            previous=ledger.head,
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"--{first['loc'][0]}: {first['msg']}") from None
    entry = draft.model_copy(update={"sha256": _content(draft.model_dump(mode="json"))})
    # A line that was left unfinished ends here, so that the new one begins at the start of a line.
    start = b"\n" if raw and not raw.endswith(b"\n") else b""
    line = start + json.dumps(entry.model_dump(mode="json"), ensure_ascii=False).encode() + b"\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    with os.fdopen(handle, "ab") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    return entry


def total(ledger: Ledger, rate: Range | None, currency: str) -> LedgerSum:
    """Hours by kind, with their cost where a rate is given."""
    kinds = []
    for kind in KINDS:
        own = [entry for entry in ledger.entries if entry.kind == kind]
        if own:
            hours = sum((entry.hours for entry in own), Decimal(0))
            cost = exactly(hours) * rate if rate else None
            kinds.append(KindSum(kind=kind, entries=len(own), hours=hours, cost=cost))
    hours = sum((one.hours for one in kinds), Decimal(0))
    return LedgerSum(
        file=ledger.file,
        currency=currency,
        rate=rate,
        kinds=kinds,
        hours=hours,
        cost=exactly(hours) * rate if rate else None,
        effects=[entry for entry in ledger.entries if entry.effect is not None],
        problems=ledger.problems,
        torn=ledger.torn,
        head=ledger.head,
    )
