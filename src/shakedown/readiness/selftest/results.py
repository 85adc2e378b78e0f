"""What the self-test leaves: one document for each trial, one for the whole."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..evidence import Frozen

TRIED_SCHEMA, SELFTEST_SCHEMA = "shakedown.tried/1", "shakedown.selftest/1"
# caught: by the word that was to catch it. other word: found, and named differently. below rounding: smaller than what the
# precision itself does. missed: nothing was found. legal: right in another way, and nothing failed. alarm: something failed
# where nothing is wrong. not applicable: the trial could not be made.
Result = Literal["caught", "other word", "below rounding", "missed", "legal", "alarm", "not applicable"]
GOOD: tuple[Result, ...] = ("caught", "below rounding", "legal")


class Detection(Frozen):
    """One thing that a check said. ``word`` is its fixed term; ``fails`` whether the cell fails by it."""

    check: str
    word: str
    cell: str
    mode: str
    dtype: str
    case: str = ""
    text: str
    fails: bool


class Tried(Frozen):
    """One trial, of a faulty or of a healthy device, in one precision of its recipe.

    ``expected`` are the words that must come up, ``margin`` is the share of its allowance that the worst tensor used (1 and
    more fails), ``seconds`` what the whole trial took.
    """

    schema_version: str = TRIED_SCHEMA
    name: str
    kind: Literal["fault", "healthy"]
    group: str
    what: str
    source_sha256: str
    workload: str
    modes: list[str]
    dtype: str
    seed: int = 0
    result: Result
    expected: list[str]
    phase: str = ""
    by: list[Detection]
    detections: list[Detection]
    verdict: str
    margin: float | None = None
    seconds: float
    reason: str = ""


class Rate(Frozen):
    """How often a word came up where nothing was wrong: the share, and the upper end of its 95 % interval."""

    word: str
    fails: bool
    count: int
    runs: int
    share: float
    upper: float


class SelfTest(Frozen):
    """The whole. ``false_alarms`` are healthy or legal runs in which something failed."""

    schema_version: str = SELFTEST_SCHEMA
    created: str
    shakedown_version: str
    source_sha256: str
    versions: dict[str, str]
    seconds: float
    jobs: int
    tried: list[Tried]
    false_alarms: Rate | None
    words: list[Rate] = Field(default=[])

    @property
    def faults(self) -> list[Tried]:
        """Trials of faulty devices."""
        return [one for one in self.tried if one.kind == "fault"]

    @property
    def healthy(self) -> list[Tried]:
        """Trials of healthy devices."""
        return [one for one in self.tried if one.kind == "healthy"]

    @property
    def exit_code(self) -> int:
        """0 where every fault was caught by its word, and nothing else failed."""
        return 0 if all(one.result in GOOD for one in self.tried) else 1
