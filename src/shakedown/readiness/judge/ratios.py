"""The step time of one side over another's, and what may be said from it."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np

from .. import evidence as ev
from ..requirements import Requirements
from . import resample
from .measured import Ratio
from .processes import Group


def took_turns(one: list[float], other: list[float]) -> str:
    """Why two sides did not take turns, by when their series began; empty when they did.

    In order of time, the side must change at least as often as the shorter one has series, with no more than two of one
    side in a row beyond what their numbers force: then nothing that drifts slowly can favour either.
    """
    order = [side for _, side in sorted([(t, 0) for t in one] + [(t, 1) for t in other])]
    changes = sum(a != b for a, b in pairwise(order))
    fewest = min(len(one), len(other))
    if changes < fewest:
        return f"the sides did not take turns: {changes} changes of side in {len(order)} series"
    row = longest = 1
    for before, after in pairwise(order):
        row = row + 1 if before == after else 1
        longest = max(longest, row)
    forced = -(-max(len(one), len(other)) // (fewest + 1))
    if longest > max(2, forced + 1):
        return f"the sides did not take turns: {longest} series of one side in a row"
    return ""


def no_turns(one: Group, other: Group) -> str:
    """:func:`took_turns` of the series that count; or that their evidence does not tell."""
    began = [[p.started for p in side.used if p.started is not None] for side in (one, other)]
    if len(began[0]) < len(one.used) or len(began[1]) < len(other.used):
        return "the evidence does not say when its series began"
    return took_turns(*began)


def ratio(name: str, one: Group, other: Group, requirements: Requirements) -> Ratio:
    """Step time of `one` over that of `other`, called `name`, and whether anything may be said from it."""
    nothing = {"over": name, "value": None, "interval": None, "processes": 0, "paired": False, "claim": "none"}
    if other.withheld:
        return Ratio.model_validate(nothing | {"why": f"the other side has no time: {other.withheld}"})
    differs = ev.blendable(one.used[0].evidence, other.used[0].evidence)
    if differs:
        return Ratio.model_validate(nothing | {"why": "not comparable: " + "; ".join(differs)})
    mine, theirs = [p.seconds for p in one.used], [p.seconds for p in other.used]
    turns = no_turns(one, other)
    paired = not turns and len(mine) == len(theirs)
    fewest = min(len(mine), len(theirs))
    drawn = resample.ratios(mine, theirs, paired, requirements.resampling.draws, resample.generator())
    found = resample.interval(drawn, fewest, requirements.resampling)
    each = [float(np.median(a) / np.median(b)) for a, b in zip(mine, theirs)]
    value = float(np.median(each)) if paired else resample.middle(mine) / resample.middle(theirs)
    claim: Literal["faster", "slower", "none"] = "none"
    needed = requirements.timing.claim_processes
    if found is None or fewest < needed:
        why = f"no claim: {fewest} {'process' if fewest == 1 else 'processes'} a side, and {needed} are needed"
    elif turns:
        why = f"no claim: {turns}"
    elif found.low <= 1 <= found.high:
        why = "no claim: the interval includes 1"
    else:
        claim, why = ("faster" if found.high < 1 else "slower"), ""
    return Ratio(over=name, value=value, interval=found, processes=fewest, paired=paired, claim=claim, why=why)
