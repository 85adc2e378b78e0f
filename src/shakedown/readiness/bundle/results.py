"""What a bundle says about itself: ``manifest.json`` inside it, and what the command prints.

Schema history: ``/1`` first version.
"""

from __future__ import annotations

from pydantic import Field

from ..evidence import Frozen, RelativePath

SCHEMA = "shakedown.bundle/1"


class Bundled(Frozen):
    """One file of the bundle.

    ``masked`` counts what was replaced in it; ``of_record_sha256`` is the hash of the record's file that it was made from,
    empty where it was made for the bundle or comes from localisation.
    """

    name: RelativePath
    what: str
    nbytes: int
    sha256: str
    masked: int = 0
    of_record_sha256: str = ""


class Bundle(Frozen):
    """The whole bundle. ``verified`` is whether the record was what it was sealed as, ``problems`` say what was not.

    ``case`` is empty for a cell without cases. ``localised`` says where the finding begins, or how to find that out.
    """

    schema_version: str = SCHEMA
    shakedown_version: str
    record_seal: str
    record_created: str
    label: str
    label_text: str
    workload: str
    target: str
    cell: str
    case: str
    verdict: str
    findings: list[str]
    verified: bool
    problems: list[str] = Field(default=[])
    localised: str
    has_minimal_case: bool
    left_out: list[str]
    files: list[Bundled]

    @property
    def nbytes(self) -> int:
        """Bytes of all files before they are packed."""
        return sum(file.nbytes for file in self.files)
