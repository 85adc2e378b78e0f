"""Stop conditions of a migration, as the requirements answer them: what would stop it before it starts."""

from __future__ import annotations

import re
from typing import Literal

from ..evidence.files import Frozen
from ..requirements import Kernel, Operation

_NONE = re.compile(r"(none|no|nobody|no one|n/?a|-)\.?", re.IGNORECASE)


class StopCondition(Frozen):
    """One condition. ``clear`` and ``answered`` let the migration go on, ``unanswered`` and ``triggered`` stop it."""

    name: str
    question: str
    answer: str
    state: Literal["clear", "answered", "unanswered", "triggered"]
    text: str

    @property
    def stops(self) -> bool:
        return self.state in ("unanswered", "triggered")


def conditions(
    operation: Operation, kernels: list[Kernel], own: tuple[str, ...], torch: list[str]
) -> list[StopCondition]:
    """The three conditions.

    `own` are kernels that were found in the workload, in its step or in its source, `torch` the PyTorch versions that the target
    is documented for (empty: any).
    """
    return [
        _kernels(operation.handwritten_kernels.strip(), kernels, own),
        _pinned(operation.pinned_framework.strip(), torch),
        _on_call(operation.on_call.strip()),
    ]


def _kernels(answer: str, kernels: list[Kernel], own: tuple[str, ...]) -> StopCondition:
    question = "Hand-written kernels without an owner or a fallback?"
    key = "operation.handwritten_kernels"

    def state(word: Literal["clear", "answered", "unanswered", "triggered"], text: str) -> StopCondition:
        return StopCondition(name="hand-written kernels", question=question, answer=answer, state=word, text=text)

    undeclared = [name for name in own if not any(_covers(kernel.name, name) for kernel in kernels)]
    if not answer:
        return state("unanswered", f"not answered: set {key} to `none`, or name the plan")
    if not _NONE.fullmatch(answer):
        return state("answered", "the plan is the reviewer's to judge")
    if kernels:
        names = ", ".join(kernel.name for kernel in kernels)
        return state("triggered", f"answered `{answer}`, but the requirements declare {names}; name the plan instead")
    if undeclared:
        return state("triggered", f"answered `{answer}`, but the workload has {', '.join(undeclared)}")
    return state("clear", "none declared, and none found in the step or in the source")


def _covers(kernel: str, operator: str) -> bool:
    """Whether a declared kernel is that operator: by full name, without overload, or by the package that brings it."""
    return kernel in (operator, operator.split(".")[0], operator.split("::")[0])


def _pinned(answer: str, documented: list[str]) -> StopCondition:
    question = "A framework version that cannot move?"

    def state(word: Literal["clear", "answered", "unanswered", "triggered"], text: str) -> StopCondition:
        return StopCondition(name="pinned framework", question=question, answer=answer, state=word, text=text)

    if not answer:
        return state("unanswered", "not answered: set operation.pinned_framework to `none`, or to the version")
    if _NONE.fullmatch(answer):
        return state("clear", "PyTorch may move")
    found = re.search(r"\d+\.\d+", answer)
    if not found:
        return state("triggered", "the answer names no version, so it cannot be compared with what is documented")
    if not documented:
        return state("answered", "this target is documented for no particular version")
    where = " and ".join(documented)
    if any(version.startswith(found[0] + ".") or version == found[0] for version in documented):
        return state("clear", f"the target is documented for PyTorch {where}")
    return state("triggered", f"the target is documented for PyTorch {where}, and {found[0]} cannot move there")


def _on_call(answer: str) -> StopCondition:
    question = "Nobody on call who knows the device?"

    def state(word: Literal["clear", "answered", "unanswered", "triggered"], text: str) -> StopCondition:
        return StopCondition(name="on call", question=question, answer=answer, state=word, text=text)

    if not answer:
        return state("unanswered", "not answered: set operation.on_call to the team that is")
    if _NONE.fullmatch(answer):
        return state("triggered", "nobody is on call")
    return state("clear", "a team is named")
