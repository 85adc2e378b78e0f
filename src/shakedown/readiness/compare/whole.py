"""Both records put beside each other: :func:`compare` for a reader and a pipeline, :func:`effect` for a ledger."""

from __future__ import annotations

from pathlib import Path

from ..errors import BadInput
from ..record import LABELS, Record
from ..requirements import differences as changed_requirements
from . import figures, steps, verdicts
from .results import Comparison, Difference, Effect
from .sides import DIFFERENT, Opened, opened, unlike


def compare(before: Opened, after: Opened, allow_different_workload: bool = False) -> Comparison:
    """What changed from `before`, the baseline, to `after`.

    Raises:
        BadInput: they are not about the same workload, and that was not allowed.
    """
    problem = unlike(before, after)
    if problem and not allow_different_workload:
        raise BadInput(refusal(before, after, problem))
    changed = _changed_requirements(before.record, after.record)
    identity = figures.identity(before, after)
    verdict_changes, unchanged = verdicts.verdicts(before, after)
    results = verdicts.results(before, after)
    tensors, unknown_tensors = figures.tensors(before, after, after.record.requirements.numerics)
    fallbacks, blind = figures.fallbacks(before, after)
    cautions = _cautions(before, after, problem, changed, identity)
    if unknown_tensors:
        cautions.append(f"single tensors: {unknown_tensors}")
    if blind:
        cautions.append(
            f"fallbacks of {', '.join(blind)} cannot be seen in both records, so none is called new or gone"
        )
    return Comparison(
        before=before.side(),
        after=after.side(),
        same_workload=not problem,
        cautions=cautions,
        regressions=verdicts.regressions(verdict_changes, results),
        identity=identity,
        requirements=changed,
        results=results,
        verdicts=verdict_changes,
        unchanged=unchanged,
        margins=figures.margins(before, after),
        tensors=tensors,
        fallbacks=fallbacks,
        graphs=figures.graphs(before, after),
        findings=verdicts.findings(before, after),
        steps=steps.steps(before, after, identity, not problem),
        starts=figures.starts(before, after),
        memory=figures.memory(before, after),
    )


def _changed_requirements(before: Record, after: Record) -> list[str]:
    """``key: old value -> new value``. What an older version could not ask for was not changed by anybody."""
    unknown = {*before.not_recorded, *after.not_recorded}

    def known(text: str) -> bool:
        key = f"requirements.{text.partition(': ')[0]}"
        return not any(key == name or key.startswith((f"{name}.", f"{name}[")) for name in unknown)

    return list(filter(known, changed_requirements(before.requirements, after.requirements)))


def refusal(before: Opened, after: Opened, problem: str) -> str:
    """One sentence: what is unlike, and what to do."""
    return (
        f"{before.root} and {after.root} are records of different workloads: {problem}; compare records of one workload, or "
        f"give {DIFFERENT} to have verdicts side by side all the same"
    )


def _cautions(before: Opened, after: Opened, problem: str, changed: list[str], identity: list[Difference]) -> list[str]:
    """What limits everything that follows."""
    said = []
    one, other = before.record, after.record
    if problem:
        said.append(f"DIFFERENT WORKLOADS: {problem}. Each verdict is about its own, and no time is divided by another")
    if one.label != other.label:
        said.append(f"the first record is a {one.label}, the second a {other.label}: their times are never divided")
    elif other.label == "rehearsal":
        said.append("both records are rehearsals on the embedded device: no figure here is of Trainium")
    for name, side in (("first", one), ("second", other)):
        if side.upgraded_from is not None:
            said.append(
                f"the {name} record is of {side.upgraded_from}, which did not hold {len(side.not_recorded)} of today's fields "
                "and had no decision: what it does not hold is not compared"
            )
        if side.label_text != LABELS[side.label]:
            said.append(f"the {name} record is labelled: {side.label_text}")
    if before.record.trial["target"] != after.record.trial["target"]:
        said.append(f"the targets differ: {before.record.trial['target']} before, {after.record.trial['target']} after")
    if changed:
        said.append(
            f"the requirements were changed ({len(changed)} {'key' if len(changed) == 1 else 'keys'}): each verdict was reached "
            "under its own record's, and a change of verdict counts as it stands under the new ones"
        )
    if before.quick != after.quick:
        quick, whole = ("first", "second") if before.quick else ("second", "first")
        said.append(f"the {quick} record is of a quick trial and the {whole} of a whole one, which has more processes")
    if any(difference.group == "host" for difference in identity):
        said.append("the hosts differ, or cannot be shown to be the same: no step time is divided by another")
    else:
        said.append(
            "two records do not take turns on the machine, so a ratio of their times is a weaker claim than one within a trial"
        )
    return said


def effect(before: Path | Opened, after: Path | Opened) -> Effect:
    """The figures that changed between two records, as a value that can be kept.

    Records of different workloads give an effect with a ``problem`` and nothing else: a saving that came from another
    workload is none.

    Raises:
        BadInput: one of them is no readable record, or was changed after it was sealed.
    """
    one, other = (side if isinstance(side, Opened) else opened(side) for side in (before, after))
    problem = unlike(one, other)
    common = {
        "before_seal": one.record.seal,
        "after_seal": other.record.seal,
        "before_label": one.record.label,
        "after_label": other.record.label,
        "same_workload": not problem,
        "problem": problem,
    }
    if problem:
        return Effect.model_validate(common)
    changes, _ = verdicts.verdicts(one, other)
    return Effect.model_validate(
        common
        | {
            "fixed": sum(change.change == "fixed" and not change.case for change in changes),
            "broken": sum(change.change == "broken" and not change.case for change in changes),
            "fallbacks_before": figures.fallbacks_seen(one),
            "fallbacks_after": figures.fallbacks_seen(other),
            "graph_breaks_before": figures.breaks_seen(one),
            "graph_breaks_after": figures.breaks_seen(other),
            "steps": steps.steps(one, other, figures.identity(one, other), like=True),
            "starts": figures.starts(one, other),
            "memory": figures.memory(one, other),
        }
    )
