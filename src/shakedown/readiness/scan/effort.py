"""What the changes would cost: an estimate from counts, with its constants here and nowhere else.

The hours are one engineer's who knows PyTorch and reads this code base for the first time, test included, review not.
The first place of a rule costs its grade's range; each further place of the same rule costs a share of it, because it is
the same change again. They were set by judgement, not measured: use them to compare workloads and to see what
dominates, not to sign a date.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .results import Effort, Grade, Hit, Hours, Kind, KindEffort

# Minutes for a spelling; up to half a day for one function; up to three days for a part that must be rewritten and
# proved; up to three weeks for a kernel with its backward pass.
GRADES: dict[Grade, Hours] = {
    "none": Hours(low=0, high=0),
    "trivial": Hours(low=0.1, high=0.5),
    "small": Hours(low=0.5, high=4),
    "medium": Hours(low=4, high=24),
    "large": Hours(low=24, high=120),
}
# A spelling is replaced everywhere by the same edit; each further kernel is nearly as much work as the first.
AGAIN: dict[Grade, float] = {"none": 0.0, "trivial": 0.1, "small": 0.25, "medium": 0.4, "large": 0.7}
REQUIRED = ("blocks", "changes needed")


def hours(grade: Grade, places: int) -> Hours:
    """Hours of `places` changes of one rule and grade."""
    factor = 1 + AGAIN[grade] * (places - 1) if places else 0.0
    return Hours(low=round(GRADES[grade].low * factor, 2), high=round(GRADES[grade].high * factor, 2))


def grade(total: Hours) -> Grade:
    """The grade whose range the sum falls into, by its upper end."""
    if not total.high:
        return "none"
    return next((name for name in ("trivial", "small", "medium") if total.high <= GRADES[name].high), "large")


def summed(hits: Iterable[Hit]) -> Effort:
    """All changes together. Notes cost nothing."""
    nothing = Hours(low=0, high=0)
    required = optional = nothing
    by_kind: dict[Kind, tuple[int, Hours]] = {}
    groups = Counter((hit.rule, hit.kind, hit.severity, hit.effort) for hit in hits if hit.severity != "note")
    for (_, kind, severity, effort), places in sorted(groups.items()):
        cost = hours(effort, places)
        before, spent = by_kind.get(kind, (0, nothing))
        by_kind[kind] = (before + places, spent + cost)
        if severity in REQUIRED:
            required += cost
        else:
            optional += cost
    return Effort(
        grade=grade(required),
        required=required,
        optional=optional,
        kinds=[KindEffort(kind=kind, places=places, hours=cost) for kind, (places, cost) in sorted(by_kind.items())],
    )
