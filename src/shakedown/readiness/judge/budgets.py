"""Budgets of time against pooled times. An interval that lies on both sides of a budget decides nothing, and neither does a
rehearsal: the embedded device's time says nothing of the real one's.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..requirements import Requirements
from .measured import PooledTiming
from .results import Finding


def _area(case: str) -> int:
    size, _, length = case.partition("~")[0].partition("#")[0].partition("x")
    return int(size) * int(length)


def largest(pooled: Sequence[PooledTiming], asked: str) -> str:
    """The real maximum: the case asked for, or the plain one with most elements."""
    plain = [one.case for one in pooled if "~" not in one.case and "#" not in one.case]
    return asked if asked in plain else max(plain, key=_area, default="")


def findings(pooled: Sequence[PooledTiming], requirements: Requirements) -> list[Finding]:
    """Budgets that are exceeded (they fail), or about which nothing can be said (they do not).

    The step is judged at the real maximum; a start in every case that was the first of a process, since a service starts
    with whatever comes first.
    """
    limits = requirements.budgets
    maximum = largest(pooled, requirements.variations.maximum)
    made = []
    for one in pooled:
        if one.mode == "reference":
            continue
        if limits.step and one.case == maximum:
            made.append(_step(one, limits.step))
        for start in one.starts:
            limit = {"cold": limits.cold_start, "warm": limits.warm_start}.get(start.cache, 0.0)
            if limit:
                name = f"{start.cache} start"
                unproved = "" if start.proved else f"the cache was not proved to be {start.cache}: {start.proof}"
                made.append(_against(one, name, min(start.setups), max(start.setups), limit, unproved))
    return [finding for finding in made if finding is not None]


def _step(one: PooledTiming, limit: float) -> Finding | None:
    if one.median is None:
        return _finding(one, "untested(budget)", f"step: {one.withheld}", False)
    if one.interval is None:
        return _finding(one, "untested(budget)", f"step: {one.median:.4g} s in one process; no interval", False)
    return _against(one, "step", one.interval.low, one.interval.high, limit, "")


def _against(one: PooledTiming, name: str, low: float, high: float, limit: float, doubt: str) -> Finding | None:
    """`low` and `high` are the ends of the interval of a median, or the extremes of what was seen."""
    seen = f"{name}: {low:.4g} to {high:.4g} s, budget {limit:.4g} s"
    if one.kind == "rehearsal":
        return _finding(one, "untested(budget)", f"{seen}; a rehearsal measures nothing of the real device", False)
    if doubt:
        return _finding(one, "untested(budget)", f"{seen}; {doubt}", False)
    if low > limit:
        return _finding(one, f"over-budget({name})", seen, True)
    if high > limit:
        return _finding(one, "untested(budget)", f"{seen}, which lies within", False)
    return None


def _finding(one: PooledTiming, word: str, text: str, fails: bool) -> Finding:
    return Finding(word=word, cell=f"{one.mode}-{one.dtype}", case=one.case, text=text, fails=fails)
