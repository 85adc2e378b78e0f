"""Which operators adaptive eager runs in fused programs once a loop has settled, and why the others are not."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from .. import targets
from ..evidence.fusion import Fusion, FusionGroup, SteadyStep
from ..targets import Target
from .paths import Recorder

_SOURCE = "torch.neuron.adaptive and the device's event stream"


def observe(
    target: Target, recorder: Recorder, step: Callable[[], None], seconds: float = 120.0, most_steps: int = 20
) -> Fusion:
    """Run `step` until fusing has settled, then once more, observed. For a process in adaptive mode, outside timed steps.

    `step` is one whole training step that waits for the device at its end, as a timed one does: waiting runs what is
    recorded. A segment is fused once it has come twice and its program is compiled in the background; so between steps
    this waits for the compiler, `seconds` in all, and stops when two steps in a row fused equally much.
    """
    why = recorder.unobservable.get("fusion groups", "")
    if why or targets.family(target) != "rehearsal":
        return Fusion(source="none", step=None, reason=why or f"nothing on {target.name} tells of fusion")
    adaptive = torch.neuron.adaptive
    if not adaptive.status()["enabled"]:
        return Fusion(source=_SOURCE, step=None, reason="adaptive eager is off in this process")
    start = time.perf_counter()
    steps, settled, last = 0, False, (-1, -1)
    while steps < most_steps and not settled:
        before = adaptive.status()["operators"]
        step()
        steps += 1
        ready = adaptive.wait(max(0.0, seconds - (time.perf_counter() - start)))
        after = adaptive.status()["operators"]
        counted = tuple(after[kind] - before[kind] for kind in ("fused", "one_by_one"))
        settled = ready and (counted == last or (counted[1] == 0 and counted[0] > 0))
        last = counted
        if not ready:
            break
    spent = time.perf_counter() - start
    before, groups = adaptive.status(), {_key(group): group for group in adaptive.groups()}
    with recorder.step() as rows:
        step()
    after = adaptive.status()
    executed: Counter[str] = Counter()
    fallbacks: Counter[str] = Counter()
    for row in rows:
        if row.kind == "execute" and row.detail != "composite":  # whose parts are counted themselves
            executed[row.name] += row.count or 0
        elif row.kind == "fallback":
            fallbacks[row.name] += row.count or 0
    return Fusion(
        source=_SOURCE,
        step=SteadyStep(
            operators=dict(executed.most_common()),
            fused=after["operators"]["fused"] - before["operators"]["fused"],
            one_by_one=after["operators"]["one_by_one"] - before["operators"]["one_by_one"],
            fallbacks=dict(fallbacks),
            flushes=dict(Counter(after["flushes"]) - Counter(before["flushes"])),
            groups=[
                made for group in adaptive.groups() if (made := _group(group, groups.get(_key(group)))) is not None
            ],
        ),
        steps=steps,
        settled=settled,
        seconds=spent,
        programs=after["programs"],
        bytes_saved=after["bytes_saved"],
        compiler=after["compiler"]["state"],
    )


def _key(group: dict[str, Any]) -> tuple[Any, ...]:
    return group["name"], tuple(group["operators"]), group["first_seen"]


def _group(now: dict[str, Any], before: dict[str, Any] | None) -> FusionGroup | None:
    """What `now` did since `before`; None for a group that did not come."""
    fused, each = (before["runs_fused"], before["runs_one_by_one"]) if before else (0, 0)
    if now["runs_fused"] == fused and now["runs_one_by_one"] == each:
        return None
    return FusionGroup(
        name=now["name"],
        operators=dict(Counter(now["operators"]).most_common()),
        length=len(now["operators"]),
        runs_fused=now["runs_fused"] - fused,
        runs_one_by_one=now["runs_one_by_one"] - each,
        runs_before=fused + each,
        compile_seconds=now["compile_seconds"],
        errors=now["errors"],
    )
