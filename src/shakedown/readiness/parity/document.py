"""``parity.json``: what ``shakedown parity`` found, with every file it rests on by hash, sealed.

Schema history: ``/1`` first version.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from .. import evidence as ev
from ..errors import EvidenceError, RecordError
from ..evidence import Frozen
from ..judge.parity import ParityResult
from ..judge.results import Statement
from ..record import FileEntry
from ..record.document import Label

SCHEMA = "shakedown.parity/1"
NAME = "parity.json"
ALONE = (
    "gradients and updated weights of steps 0, 1 and k were not compared here, and losses alone pass no training: "
    "`shakedown run` compares them"
)


class Asked(Frozen):
    """What decides whether finished runs may be used again: the script, its arguments, and all that must not differ."""

    schema_version: str = "shakedown.parity-request/1"
    script: str
    script_sha256: str
    arguments: list[str]
    target: str
    dtype: str
    steps: int
    twins: int
    threads: int
    versions: dict[str, str]
    source_sha256: str
    environment: dict[str, str]


class ParityDocument(Frozen):
    """The answer, and the way to it. ``seal`` is the SHA-256 of all other fields in canonical JSON."""

    schema_version: str = SCHEMA
    created: str
    shakedown_version: str
    label: Label
    label_text: str
    asked: Asked
    result: ParityResult
    statements: list[Statement]
    files: dict[str, FileEntry]
    seal: str = ""


def sealed(document: ParityDocument) -> ParityDocument:
    """`document` with its seal."""
    return document.model_copy(update={"seal": _seal(document)})


def _seal(document: ParityDocument) -> str:
    return hashlib.sha256(ev.canonical(document.model_dump(mode="json", exclude={"seal"}))).hexdigest()


def load(folder: Path) -> ParityDocument:
    """Read ``parity.json`` and check its seal and files.

    Raises:
        RecordError: it is missing or damaged, or it or a file of it was changed.
    """
    try:
        document = ev.read(ParityDocument, folder / NAME)
    except EvidenceError as error:
        raise RecordError(str(error)) from None
    if _seal(document) != document.seal:
        raise RecordError(f"{folder / NAME} was changed after it was sealed")
    for name, entry in document.files.items():
        path = folder / name
        if not path.is_file() or ev.sha256(path) != entry.sha256:
            raise RecordError(f"{path} is not the file that {NAME} was made from")
    return document
