"""Who measured, and with what: facts about a machine and a process, each with its source or the reason why it is unknown."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from .files import Frozen

FamilyWord = Literal["rehearsal", "native", "legacy", "none"]
Group = Literal["machine", "accelerator", "software", "source", "process", "environment"]
RouteName = Literal["wheel", "source", "image"]
UNKNOWN = "not known: "


class Fact(Frozen):
    """One thing that was asked. Either ``value`` holds the answer, or ``unknown`` says why there is none."""

    group: Group
    name: str
    value: str = ""
    source: str = ""
    unknown: str = ""

    @model_validator(mode="after")
    def _one_of_both(self) -> Fact:
        if bool(self.value) == bool(self.unknown):
            raise ValueError(f"{self.name}: a fact has a value or a reason why it is not known, and not both")
        return self

    @property
    def said(self) -> str:
        """The value, or ``not known: `` with the reason."""
        return self.value or UNKNOWN + self.unknown


class Family(Frozen):
    """Which product answers for the device ``neuron``. AWS ships two under one distribution name, and this package is a
    third.

    ``by_metadata`` is what the installed files say before anything runs, ``by_behaviour`` what registered the device in
    the process that was asked; ``signs`` are what each was read from. ``word`` follows behaviour where there is any.
    """

    word: FamilyWord
    by_metadata: str
    by_behaviour: str
    signs: list[str]
    disagreement: str = ""


class Installation(Frozen):
    """How AWS's distribution came onto the machine, as its own metadata tells.

    ``how`` is the sign that it was read from, ``tags`` are its wheel's, and ``tags_fit`` whether this Python is among them.
    """

    route: RouteName
    how: str
    tags: tuple[str, ...] = ()
    tags_fit: bool = True


class Identity(Frozen):
    """All that is known about the process that was asked, and the machine under it.

    ``installation`` is None where no distribution of AWS's answers for the device; ``unmet`` are requirements of the
    distribution that does, which the installed versions do not meet. ``faults`` were switched on in the process on purpose.
    """

    schema_version: str = "shakedown.identity/1"
    target: str
    family: Family
    installation: Installation | None
    unmet: list[str]
    facts: list[Fact]
    faults: list[str] = Field(default=[])

    def said(self, name: str) -> str:
        """The answer to one question, or why there is none; names that are not there raise KeyError."""
        for fact in self.facts:
            if fact.name == name:
                return fact.said
        raise KeyError(name)

    def value(self, name: str) -> str:
        """The value of a fact, empty where it is not known."""
        return next((fact.value for fact in self.facts if fact.name == name), "")


class Probe(Frozen):
    """What one process saw of a device. ``opened`` is None while that was not tried to the end.

    ``seconds`` are those from asking for the device to reading the result back, compilation included.
    """

    schema_version: str = "shakedown.probe/1"
    identity: Identity
    opened: bool | None
    reason: str = ""
    operation: str = ""
    seconds: float | None = None
