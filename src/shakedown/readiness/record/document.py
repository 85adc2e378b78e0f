"""The record as a document.

Schema history:

- ``/1``: first version.
- ``/2``: all kinds of evidence; timings pooled over processes.
- ``/3``: a decision (four results and a disposition) in place of a verdict, a sentence and statements; loss parity,
  break-even, the ledger of shapes, the projection; names of files, cells and cases are restricted.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ..evidence import Frozen, RelativePath
from ..judge.judgement import Judgement
from ..judge.results import Cell
from ..requirements import Requirements

SCHEMA = "shakedown.record/3"
Label = Literal["rehearsal", "measurement", "self-check"]
LABELS: dict[str, str] = {
    "rehearsal": "REHEARSAL: the target was Shakedown's embedded device, not AWS Trainium. Nothing here measures "
    "Trainium.",
    "measurement": "Measured on the named device.",
    "self-check": "Self-check: the CPU was compared with itself. This shows that the trial works, and says nothing of "
    "any device.",
}


class FileEntry(Frozen):
    """A file of the run, by its size and SHA-256."""

    nbytes: int = Field(description="Size in bytes.", ge=0)
    sha256: str = Field(description="SHA-256 of its bytes, in hex.", pattern="^[0-9a-f]{64}$")


class Record(Frozen):
    """The whole trial as one document: what was asked, who measured, what came of it, and every file that it rests on."""

    schema_version: str = Field(default=SCHEMA, description="Name and number of this form of the document.")
    created: str = Field(description="When it was sealed: ISO 8601, UTC.")
    shakedown_version: str = Field(description="Version of the Shakedown that sealed it.")
    label: Label = Field(
        description="rehearsal: the target was the embedded device, and nothing measures Trainium. self-check: the CPU was "
        "compared with itself. measurement: the named device was measured."
    )
    label_text: str = Field(description="The label as a sentence.")
    trial: dict[str, Any] = Field(
        description="What was run: workload by name and SHA-256, target, modes, precisions, cases, what compiled mode and a "
        "step mean there, and what became of the float64 recomputation."
    )
    identity: dict[str, Any] = Field(
        description="Who measured: `fixed` (host, versions, threads, environment) is equal in all evidence, `cells` holds "
        "what differs by process. Secrets in the environment were masked when it was captured."
    )
    snapshot: dict[str, Any] = Field(description="The description of the snapshot that every process started from.")
    snapshot_sha256: str = Field(description="SHA-256 of snapshot/snapshot.json, which all evidence names.")
    requirements: Requirements = Field(description="Every demand and tolerance, frozen before the first result.")
    requirements_sha256: str = Field(description="SHA-256 of requirements.json, which all evidence names.")
    cells: list[Cell] = Field(description="The processes of the trial, in the order they ran, and what became of each.")
    judgement: Judgement = Field(description="All that follows from the evidence and the requirements.")
    files: dict[RelativePath, FileEntry] = Field(
        description="Every file of the run's directory by path. Left out are this document, reports made from it, caches, "
        "scratch folders and unfinished parts."
    )
    upgraded_from: str | None = Field(
        default=None, description="Schema version of the file that this was read from, where it was an older one."
    )
    not_recorded: list[str] = Field(
        default=[],
        description="Fields that the version that wrote the file did not have, by dotted name. What they hold here is "
        "empty, or a requirement's default, and was not part of the trial.",
    )
    seal: str = Field(
        default="", description="SHA-256 of all other fields, as JSON with sorted keys and no blanks, in hex."
    )

    @property
    def exit_code(self) -> int:
        """0 only when what was tested is suitable."""
        return 0 if self.judgement.decision.suitable else 1

    @property
    def says_not_recorded(self) -> str:
        """A sentence on what an older version did not hold; empty for a record of this version."""
        if self.upgraded_from is None:
            return ""
        left = f": {', '.join(self.not_recorded)}" if self.not_recorded else ""
        return f"not recorded by {self.upgraded_from}{left}"
