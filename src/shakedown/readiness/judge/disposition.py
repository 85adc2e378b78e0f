"""The decision: four results, and the one disposition that follows from them.

A pure function of what the trial's checks found and of the requirements; nothing here reads a file. What was not run stays
open, and a disposition never covers more than the tested path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from ..evidence import Frozen
from . import changes, statements
from .changes import Change
from .results import Statement
from .seen import Seen

Disposition = Literal["suitable for the tested path", "needs a named change", "inconclusive", "blocked"]
SUITABLE, CHANGE, INCONCLUSIVE, BLOCKED = get_args(Disposition)  # from best to worst
Name = Literal["environment", "correctness", "execution path", "operation"]
# met: shown by evidence of this trial. not met: evidence shows the opposite. open: neither, and the statements say why.
Standing = Literal["met", "not met", "open"]


class Result(Frozen):
    """One of the four results, with every statement that it rests on or that it leaves open."""

    name: Name
    standing: Standing
    sentence: str
    statements: list[Statement]


class Decision(Frozen):
    """What follows from the trial. ``changes`` are named where one is needed, ``blocked_by`` are requirements that the
    target does not meet, ``next`` is what to run or to settle next, the most useful first.
    """

    disposition: Disposition
    sentence: str
    results: list[Result]
    changes: list[Change]
    blocked_by: list[str]
    next: list[str]

    @property
    def suitable(self) -> bool:
        """Whether nothing that was tested speaks against the move."""
        return self.disposition == SUITABLE

    @property
    def statements(self) -> list[Statement]:
        """Those of all four results, in their order."""
        return [statement for result in self.results for statement in result.statements]


def worse(one: Disposition, other: Disposition) -> bool:
    """Whether `other` is a worse answer than `one`."""
    order = get_args(Disposition)
    return order.index(other) > order.index(one)


def decide(seen: Seen) -> Decision:
    """The decision on one trial."""
    needed, blocks = changes.needed(seen), changes.blocks(seen)
    results = [_environment(seen), _correctness(seen), _path(seen), _operation(seen)]
    where = " in rehearsal on the embedded device, which is not Trainium" if seen.rehearsal else ""
    tested, failed = seen.tested(), seen.failed()
    disposition: Disposition
    if seen.doubtful():
        disposition = INCONCLUSIVE
        sentence = f"the CPU does not pass its own gates ({', '.join(seen.doubtful())}), so they decide nothing"
    elif not tested:
        disposition, sentence = INCONCLUSIVE, "nothing was tested on the target"
    elif blocks:
        disposition, sentence = BLOCKED, f"blocked{where} by what was required: {'; '.join(blocks)}"
    elif needed:
        disposition = CHANGE
        sentence = f"{_failed(failed, tested)}{where}; to be changed: {'; '.join(_brief(needed))}"
    elif failed:
        disposition, sentence = INCONCLUSIVE, f"{_failed(failed, tested)}{where}, and why is not known"
    elif unlike := seen.unlike():
        disposition, sentence = INCONCLUSIVE, f"cases that ran were {unlike[0]}"
    elif not seen.compared():
        disposition, sentence = INCONCLUSIVE, "no case was compared on the target"
    elif results[0].standing == "not met":
        disposition = INCONCLUSIVE
        sentence = f"{_all(tested)}{where}, but {results[0].sentence}"
    else:
        disposition = SUITABLE
        untested = len(seen.candidates()) - len(tested)
        rest = f"; {untested} {'cell is' if untested == 1 else 'cells are'} untested" if untested else ""
        sentence = f"{_all(tested)} float64 truth within what rounding explains{where}{rest}"
    return Decision(
        disposition=disposition,
        sentence=sentence,
        results=results,
        changes=needed,
        blocked_by=blocks,
        next=changes.next_steps(seen, disposition == SUITABLE, needed),
    )


def _failed(failed: Sequence[str], tested: Sequence[str]) -> str:
    if not failed:
        return _all(tested)
    listed = ", ".join(failed[:4]) + (f" and {len(failed) - 4} more" if len(failed) > 4 else "")
    return f"{len(failed)} of {len(tested)} tested cells failed ({listed})"


def _all(tested: Sequence[str]) -> str:
    return f"all {len(tested)} tested cells match" if len(tested) > 1 else "the one tested cell matches"


def _brief(needed: Sequence[Change]) -> list[str]:
    said = [f"{one.kind} {one.name}" for one in needed[:4]]
    return said + ([f"and {len(needed) - 4} more"] if len(needed) > 4 else [])


def _environment(seen: Seen) -> Result:
    against = seen.with_words("unmet-requirement", "unsupported-combination", "family-disagreement")
    standing: Standing
    if against:
        standing, sentence = "not met", f"the environment is not a supported one: {against[0].text}"
    elif seen.rehearsal:
        standing, sentence = "open", "the embedded device stood in for the target; nothing of the real machine was seen"
    elif not seen.identities or seen.with_words("untested(identity)"):
        standing, sentence = "open", "who measured is not known in every process"
    else:
        standing, sentence = "met", "every process ran where it says it did, in a combination that is not ruled out"
    return Result(name="environment", standing=standing, sentence=sentence, statements=statements.environment(seen))


def _correctness(seen: Seen) -> Result:
    wrong = [f for f in seen.failing() if not f.word.startswith(changes.PATH_WORDS + changes.OPERATION_WORDS)]
    bad = seen.bad_cases()
    standing: Standing
    if seen.doubtful():
        standing, sentence = "open", "the CPU does not pass its own gates"
    elif bad or wrong:
        named = [f"{len(bad)} cases do not match"] if bad else []
        named += sorted({f.word for f in wrong})
        standing, sentence = "not met", ", ".join(named)
    elif not seen.compared():
        standing, sentence = "open", "no case was compared on the target"
    else:
        standing, sentence = "met", "every tested case matches float64 truth within what rounding explains"
    return Result(name="correctness", standing=standing, sentence=sentence, statements=statements.correctness(seen))


def _path(seen: Seen) -> Result:
    against = [f for f in seen.findings if f.word.startswith(changes.PATH_WORDS) and (f.fails or f.word == "fallback")]
    standing: Standing
    if against:
        standing, sentence = "not met", ", ".join(sorted({f.word for f in against}))
    elif not seen.compared() or seen.paths_hidden():
        standing, sentence = "open", "which operators left the device cannot be seen here, or nothing ran"
    else:
        standing, sentence = (
            "met",
            "nothing left the device that the requirements do not accept, and no limit was reached",
        )
    return Result(name="execution path", standing=standing, sentence=sentence, statements=statements.path(seen))


def _operation(seen: Seen) -> Result:
    against = [f for f in seen.failing() if f.word.startswith(changes.OPERATION_WORDS)]
    said = statements.operation(seen)
    standing: Standing
    if against:
        standing, sentence = "not met", ", ".join(sorted({f.word for f in against}))
    elif any(statement.kind == "open" for statement in said):
        left = sum(statement.kind == "open" for statement in said)
        things = "one thing that running it needs was" if left == 1 else f"{left} things that running it needs were"
        standing, sentence = "open", f"{things} not shown"
    else:
        standing, sentence = "met", "start, steady state, restart and rollback are shown, within the budgets"
    return Result(name="operation", standing=standing, sentence=sentence, statements=said)
