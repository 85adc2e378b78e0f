"""The loss of every step of one training run, with what happened on its way and how its weights were nudged."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .files import Frozen

SCHEMA = "shakedown.losses/1"
RUNS_SCHEMA = "shakedown.loss-runs/1"
# reference: the CPU. repeat: the same again. twin: the same with every weight nudged. low: the CPU in the declared precision,
# where the reference computes in a wider one. candidate: the target.
LossRole = Literal["reference", "repeat", "twin", "low", "candidate"]


class LossEvent(Frozen):
    """Something that a loss may show: training was resumed, or a shape was met. ``step`` is the first one after it."""

    step: int
    kind: Literal["restart", "shape", "other"]
    text: str = ""


class Nudge(Frozen):
    """How the weights of a twin were changed: each by about ``roundoff`` of itself, up or down by chance."""

    roundoff: float
    seed: int
    when: str
    tensors: int
    elements: int
    changed: int


class Losses(Frozen):
    """One run. ``losses`` belong to ``steps``; None is a loss that is not finite, with its word in ``not_finite``.

    ``devices`` are the types of device on which trained weights were seen; empty: none were seen. ``resolution`` is the
    smallest difference that the losses can show as they were written, 0 where they are whole floats. ``samples_sha256`` is
    the hash of all batches, empty where they are the script's own affair. ``reason`` says why there are no losses.
    """

    schema_version: str = SCHEMA
    name: str
    role: LossRole
    device: str
    dtype: str
    steps: list[int]
    losses: list[float | None]
    not_finite: dict[int, Literal["nan", "inf", "-inf"]] = Field(default={})
    events: list[LossEvent] = Field(default=[])
    resolution: float = 0.0
    nudge: Nudge | None = None
    devices: list[str] = Field(default=[])
    samples_sha256: str = ""
    reason: str = ""


class LossRuns(Frozen):
    """The runs of one process of a trial: one on the target; on the CPU the reference, its repetition, the twins, and the run
    in the declared precision where the reference computes in a wider one. ``identity`` is what must be equal in evidence
    that is put together.
    """

    schema_version: str = RUNS_SCHEMA
    identity: dict[str, Any]
    snapshot_sha256: str
    requirements_sha256: str
    runs: list[Losses]
