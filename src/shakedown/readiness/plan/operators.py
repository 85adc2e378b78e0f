"""The operators of one training step, and where each would run: on the device, on the CPU instead, or nowhere.

As ``python -m shakedown.readiness.plan.operators JOB.json`` it is asked in a process of its own, in which the embedded device
answers whatever else is installed: its table and its support profiles are what is consulted, and nothing runs on any device.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from ..evidence.files import Frozen, write
from ..requirements import AcceptedFallback


class OperatorRow(Frozen):
    """Calls of one operator in one phase that would leave the device, summed over the precisions asked for."""

    phase: str
    operator: str
    calls: int
    verdict: str
    accepted: bool
    dtypes: tuple[str, ...]
    lines: tuple[str, ...]
    reason: str
    source: str


class PhaseCount(Frozen):
    """Distinct operators of one phase: how many would run on the device, on the CPU instead, and nowhere."""

    phase: str
    native: int
    fallback: int
    missing: int


class Operators(Frozen):
    """What a step would ask of the device. ``rows`` are the operators that are not native; ``stops`` say where the trace
    ended early, so that what comes after is not in here; ``own`` are operators that are not PyTorch's.

    ``unknown`` is the reason why nothing could be said; then all else is empty.
    """

    schema_version: str = "shakedown.operators/1"
    profile: str = ""
    case: str = ""
    dtypes: tuple[str, ...] = ()
    phases: tuple[PhaseCount, ...] = ()
    rows: tuple[OperatorRow, ...] = ()
    own: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    bad_input: bool = False
    unknown: str = ""

    def unaccepted(self) -> list[OperatorRow]:
        """Rows that the requirements do not accept."""
        return [row for row in self.rows if not row.accepted]


def accepts(fallbacks: list[AcceptedFallback], operator: str, phase: str, calls: int) -> bool:
    """Whether an operator may run on the CPU so often in that phase; a name without overload covers all of them."""
    return any(
        accepted.operator in (operator, operator.split(".")[0])
        and accepted.phase in ("", phase)
        and calls <= accepted.calls
        for accepted in fallbacks
    )


def count(job: dict[str, Any]) -> Operators:
    """Trace the workload in each precision and look every operator up.

    Raises:
        BadInput: the workload cannot be loaded, or the profile does not exist.
    """
    from .. import workload
    from . import support, trace

    profile = job["profile"] or support.active_profile()
    source = workload.Source(job["name"], Path(job["path"]), job["sha256"])
    loaded = workload.load(source)
    accepted = [AcceptedFallback.model_validate(entry) for entry in job["accepted"]]
    case = workload.Case.parse(job["case"]) if job["case"] else loaded.cases[0]
    dtypes = tuple(job["dtypes"]) or loaded.dtypes
    seen: dict[tuple[str, str], str] = {}
    left: dict[tuple[str, str], dict[str, Any]] = {}
    own: list[str] = []
    stops: list[str] = []
    for dtype in dtypes:
        traced = trace.trace(loaded, case, dtype)
        own += [call.operator for call in traced.calls if call.own]
        stops += [f"{dtype}, {s.phase}: {s.kind}{f' at {s.line}' if s.line else ''}: {s.why}" for s in traced.stops]
        calls: dict[tuple[str, str], int] = {}
        for placed in support.place(traced, profile=profile):
            key, found = (placed.phase, placed.support.operator), placed.support
            worst = max(seen.get(key, "native"), found.verdict, key=("native", "fallback", "missing").index)
            seen[key] = worst
            if found.verdict == "native":
                continue
            calls[key] = calls.get(key, 0) + placed.calls
            entry = left.setdefault(
                key, {"calls": 0, "dtypes": [], "lines": [], "reason": found.reason, "source": found.source}
            )
            entry["calls"] = max(entry["calls"], calls[key])
            entry["dtypes"].append(dtype)
            entry["lines"] += placed.lines
    phases = tuple(
        PhaseCount(
            phase=phase,
            **{
                word: sum(v == word for (p, _), v in seen.items() if p == phase)
                for word in ("native", "fallback", "missing")
            },
        )
        for phase in trace.PHASES
    )
    rows = tuple(
        OperatorRow(
            phase=phase,
            operator=operator,
            calls=entry["calls"],
            verdict=seen[phase, operator],
            accepted=seen[phase, operator] == "fallback" and accepts(accepted, operator, phase, entry["calls"]),
            dtypes=tuple(dict.fromkeys(entry["dtypes"])),
            lines=tuple(dict.fromkeys(entry["lines"])),
            reason=entry["reason"],
            source=entry["source"],
        )
        for (phase, operator), entry in left.items()
    )
    return Operators(
        profile=profile,
        case=str(case),
        dtypes=dtypes,
        phases=phases,
        rows=rows,
        own=tuple(dict.fromkeys(own)),
        stops=tuple(dict.fromkeys(stops)),
    )


def main() -> int:
    """Read the job, count, write."""
    # The embedded device must answer even beside AWS's package, which must not be started by asking.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    os.environ["SHAKEDOWN_DEVICE"] = "rehearsal"
    job = json.loads(Path(sys.argv[1]).read_text())
    from ..errors import BadInput
    from ..observe.paths import register_embedded_device

    register_embedded_device()
    try:
        found = count(job)
    except BadInput as error:
        found = Operators(bad_input=True, unknown=str(error))
    write(found, Path(job["out"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
