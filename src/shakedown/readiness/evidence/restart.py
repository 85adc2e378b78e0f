"""A training run that was saved, ended, and loaded in a new process, beside the same run without the interruption."""

from __future__ import annotations

from .files import Frozen
from .untrusted import RelativePath

SCHEMA = "shakedown.restart/1"


class Side(Frozen):
    """One of the two processes: what it held at the moment of saving (or after loading), and the updates that followed.

    Hashes are SHA-256 over dtype, shape and bits. ``losses`` are those of the updates after the restart; ``samples`` the
    hashes of the batches they saw; ``elsewhere`` lists state tensors that are not on their parameter's device, Adam's
    scalar ``step`` apart, which may stay on the host by design.
    """

    schema_version: str = SCHEMA
    steps_before: int
    weights: dict[str, str]
    optimizer: dict[str, str]
    groups: str
    rng: dict[str, str]
    samples: list[str]
    elsewhere: list[str]
    losses: list[float | None]
    tensors_file: RelativePath
    tensors_sha256: str
