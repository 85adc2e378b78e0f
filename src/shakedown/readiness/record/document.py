"""The record as a document.

Schema history:

- ``/1``: first version.
- ``/2``: all kinds of evidence; timings pooled over processes.
- ``/3``: a decision (four results and a disposition) in place of a verdict, a sentence and statements; loss parity,
  break-even, the ledger of shapes, the projection; names of files, cells and cases are restricted.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict  # what pydantic asks for below Python 3.12; it comes with pydantic

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


_OPEN = ConfigDict(extra="allow")  # what a later trial says of itself besides is kept


@with_config(_OPEN)
class Trial(TypedDict):
    """What was run: the workload, where, and in which modes, precisions and cases."""

    workload: Annotated[str, Field(description="Name of the workload.")]
    workload_sha256: Annotated[str, Field(description="SHA-256 of its file.")]
    target: Annotated[str, Field(description="Device that the modes ran on.")]
    modes: list[str]
    dtypes: Annotated[list[str], Field(description="Precisions.")]
    cases: Annotated[list[str], Field(min_length=1, description="Plain cases, batch x length, in the order they ran.")]
    varied: Annotated[dict[str, str], Field(description="Varied cases, each with the reason why it could not be made.")]
    quick: NotRequired[Annotated[bool, Field(description="A first look, which claims nothing about speed.")]]
    compiled_means: Annotated[str, Field(description="What compiled mode means on this target.")]
    step_means: Annotated[str, Field(description="What is timed as one step, and how its end is awaited.")]
    truth: Annotated[dict[str, Any], Field(description="What became of the float64 recomputation.")]


class Identity(TypedDict):
    """Who measured. Secrets in the environment were masked when it was captured."""

    fixed: Annotated[dict[str, Any], Field(description="Equal in all evidence: host, versions, threads, environment.")]
    cells: Annotated[dict[str, dict[str, Any]], Field(description="What differs by process, by cell.")]


@with_config(_OPEN)
class Snapshot(TypedDict):
    """What every process started from: snapshot/snapshot.json."""

    schema_version: str
    workload: str
    workload_sha256: str
    dimensions: dict[str, Any]
    seed: int
    steps: Annotated[int, Field(ge=1, description="Batches kept for each case: steps 1 to this one.")]
    cases: list[str]
    reduction_lengths: Annotated[dict[str, int], Field(description="Terms in the longest sum of a step, by case.")]
    parameters: Annotated[int, Field(description="Number of trainable and other parameters.")]
    dropout_switched_off: Annotated[list[str], Field(description="Names of dropout modules that were set to zero.")]
    optimizer: str
    optimizer_groups: list[dict[str, Any]]
    files: Annotated[dict[str, str], Field(description="SHA-256 of each file of the snapshot.")]


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
    trial: Trial
    identity: Identity
    snapshot: Snapshot
    snapshot_sha256: str = Field(description="SHA-256 of snapshot/snapshot.json, which all evidence names.")
    requirements: Requirements = Field(description="Every demand and tolerance, frozen before the first result.")
    requirements_sha256: str = Field(description="SHA-256 of requirements.json, which all evidence names.")
    cells: list[Cell] = Field(description="The processes of the trial, in the order they ran, and what became of each.")
    judgement: Judgement = Field(description="All that follows from the evidence and the requirements.")
    files: dict[RelativePath, FileEntry] = Field(
        json_schema_extra={"additionalProperties": False},
        description="Every file of the run's directory by path. Left out are this document, reports made from it, caches, "
        "scratch folders and unfinished parts.",
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
