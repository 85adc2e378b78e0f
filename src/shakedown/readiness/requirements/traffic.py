"""The lengths that the service meets: named in the requirements, fixed by their hash, and copied beside the lock."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from ...lengths import Lengths
from ..errors import BadInput, EvidenceError
from ..evidence import Frozen, write_atomic
from ..plan import lengths


class Traffic(Frozen):
    """The distribution of lengths, for the ledger of shapes and the plan of buckets."""

    lengths: str = Field(
        default="",
        description="File with the lengths of real requests, beside this one: a length a line, CSV `length,count`, or JSON. "
        "Empty: the shares of the cases, where they are given.",
    )
    sha256: str = Field(
        default="",
        pattern=r"^([0-9a-f]{64})?$",
        description="SHA-256 of that file, to pin it; empty takes the file as it is when the requirements are locked.",
    )
    batch: int = Field(
        default=0,
        ge=0,
        description="Batch size that the lengths come in: a line is one batch, with its longest length. 0: the first case's.",
    )
    maximum: int = Field(
        default=0,
        ge=0,
        description="The longest length that is served; no bucket is longer. 0: whatever the last bucket holds.",
    )
    longer: Literal["refuse", "truncate", "compile"] = Field(
        default="refuse",
        description="What becomes of a longer request: refused with an error, cut to the maximum, or compiled as a shape of "
        "its own, which makes somebody wait for the compiler.",
    )
    max_programs: int = Field(
        default=8,
        ge=1,
        le=256,
        description="Programs that a bucket plan may have. Dynamo compiles a function for eight shapes and runs it eagerly "
        "from then on (torch._dynamo.config.recompile_limit), so more need that limit raised.",
    )
    steps_per_start: int = Field(
        default=0,
        ge=0,
        description="Steps that one cold start serves: what compiling costs is spread over them. 0: workload.training_steps.",
    )


def attached(traffic: Traffic, folder: Path) -> Traffic:
    """`traffic` with the hash of its file, which is looked for in `folder`.

    Raises:
        BadInput: the file cannot be read, is no list of lengths, or is not the one that was pinned.
    """
    if not traffic.lengths:
        return traffic
    found = lengths.read(folder / traffic.lengths)
    if traffic.sha256 and found.sha256 != traffic.sha256:
        raise BadInput(
            f"{folder / traffic.lengths} has SHA-256 {found.sha256}, and traffic.sha256 is {traffic.sha256}: name the file "
            "that was meant, or take the pin out"
        )
    return traffic.model_copy(update={"sha256": found.sha256})


def copy_name(traffic: Traffic) -> str:
    """Name of the copy in a run's directory."""
    return "traffic.json" if traffic.lengths.lower().endswith(".json") else "traffic.txt"


def copy(traffic: Traffic, folder: Path, root: Path) -> Traffic:
    """Copy the file of lengths into `root`; return `traffic` with its hash. Raises as :func:`attached` does."""
    traffic = attached(traffic, folder)
    if traffic.lengths:
        write_atomic(root / copy_name(traffic), (folder / traffic.lengths).read_bytes())
    return traffic


def copied(traffic: Traffic, root: Path) -> Lengths | None:
    """The lengths that :func:`copy` left in `root`, None where none are named.

    Raises:
        EvidenceError: the copy is missing, damaged, or not the file that the requirements were locked with.
    """
    if not traffic.lengths:
        return None
    path = root / copy_name(traffic)
    try:
        found = lengths.read(path)
    except BadInput as error:
        raise EvidenceError(str(error)) from None
    if found.sha256 != traffic.sha256:
        raise EvidenceError(f"{path} is not the file of lengths that the requirements were locked with")
    return found.model_copy(update={"name": traffic.lengths})
