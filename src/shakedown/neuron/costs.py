"""What the programs of a step compute and move, counted and not timed: for ``torch.neuron.count_programs``.

Nothing of this runs, and nothing is loaded, until somebody counts. While a step is counted, every plan, graph and fused
program is called through a :class:`_Counted`, which notes how often, in which phase and for inputs of which shapes; what
one call costs is worked out afterwards, from two sources:

- XLA's cost analysis of the executable: operations, transcendental functions, bytes. It describes the program as this
  machine's compiler made it: half precision is widened, functions are expanded, and each loop is counted as one turn.
- the traced program (:mod:`.traced`): matrix products and convolutions by dtype, loops of known length in full; and how
  much of its arguments it needs, and of its results it makes.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from . import events, runtime
from .modes import adaptive
from .plan import Plan
from .traced import Work, add, work_of

_Signature: TypeAlias = tuple[runtime.Aval, ...]
_Segment: TypeAlias = tuple[Any, Sequence[Any]]  # a fused program and the code of its segment


@dataclass(slots=True)
class _Calls:
    """Calls of one program with inputs of one signature in one phase."""

    segment: _Segment | None
    run: Callable[..., Any]
    same: tuple[int, ...]  # of each input, the number of the first input that is the same buffer
    count: int = 0


@dataclass(slots=True)
class _Counting:
    """Calls by name, phase, signature, inputs that are one buffer, and identity of the callable."""

    calls: dict[tuple[str, str, _Signature, tuple[int, ...], int], _Calls] = field(default_factory=dict)

    def note(self, name: str, segment: _Segment | None, run: Callable[..., Any], inputs: Sequence[Any]) -> None:
        first: dict[int, int] = {}
        same = tuple(first.setdefault(id(value), number) for number, value in enumerate(inputs))
        key = (name, events.current_phase(), tuple(map(runtime.aval_of, inputs)), same, id(run))
        found = self.calls.get(key)
        if found is None:
            found = self.calls[key] = _Calls(segment, run, same)
        found.count += 1


class _Counted:
    """A program that is counted as it is called. Inputs are looked at before the call, which may consume them."""

    __slots__ = ("counting", "name", "run", "segment")

    def __init__(self, counting: _Counting, name: str, segment: _Segment | None, run: Callable[..., Any]) -> None:
        self.counting, self.name, self.segment, self.run = counting, name, segment, run

    def __call__(self, *inputs: Any) -> Any:
        self.counting.note(self.name, self.segment, self.run, inputs)
        return self.run(*inputs)


@contextmanager
def counted() -> Iterator[list[dict[str, Any]]]:
    """Count the programs that run inside; the list is filled when the context closes, one row for each program and phase.

    Programs that are made inside are not counted: run the step once before.
    """
    rows: list[dict[str, Any]] = []
    counting = _Counting()
    adaptive.flush("count programs")
    plans = _plans()
    for plan in plans:
        plan.run = _Counted(counting, plan.operator.name, None, plan.run)
    graphs = _graphs()
    for graph, key in graphs:
        run, *rest = graph.programs[key]
        graph.programs[key] = (_Counted(counting, graph.tally.name, None, run), *rest)
        _forget_last(graph)
    fused = _fused()
    for group, code, made in fused:
        made.run = _Counted(counting, f"adaptive::{group.name}", (made, code), made.run)
    try:
        yield rows
        adaptive.flush("count programs")
    finally:
        for holder in (*plans, *(made for _, _, made in fused)):
            if isinstance(holder.run, _Counted):
                holder.run = holder.run.run
        for graph, key in graphs:
            run, *rest = graph.programs[key]
            graph.programs[key] = (run.run if isinstance(run, _Counted) else run, *rest)
            _forget_last(graph)
    for (name, phase, signature, *_), calls in counting.calls.items():
        rows.append({"name": name, "phase": phase, "calls": calls.count} | _costs(calls, signature))


def _forget_last(graph: Any) -> None:
    """A graph calls the program of its last call again without a look at its programs."""
    if hasattr(graph, "recent"):
        graph.recent = (None, None)


def _plans() -> list[Plan]:
    from . import dispatch

    return [plan for operator in dispatch.known_operators() for plan in operator.plans.values() if type(plan) is Plan]


def _graphs() -> list[tuple[Any, Any]]:
    module = sys.modules.get(f"{__package__}.modes.compile")  # not loaded: nothing was compiled
    return [(graph, key) for graph in list(module.graphs) for key in graph.programs] if module else []


def _fused() -> list[tuple[Any, Any, Any]]:
    return [
        (group, code, made) for code, group in adaptive.segments() for made in group.programs if made.run is not None
    ]


def _costs(calls: _Calls, signature: _Signature) -> dict[str, Any]:
    """What one call costs, as plain values."""
    if calls.segment is not None:
        made, code = calls.segment
        work = _of_segment(code, signature, made.numbers)
        operators = Counter(item.operator.name for item in code if isinstance(item, Plan))
    else:
        work, operators = work_of(runtime.traced(calls.run, signature)), Counter()
    reads: dict[int, float] = {}  # a buffer that is given twice is read once
    for number, nbytes in zip(calls.same, work.reads, strict=True):
        reads[number] = max(nbytes, reads.get(number, 0.0))
    found: dict[str, Any] = {"operators": dict(operators), "reason": ""}
    try:
        found |= runtime.costs(calls.run, signature)
    except Exception as error:  # a plugin without the analysis: what it raises is its own
        names = ("flops", "transcendentals", "bytes_accessed", "argument_bytes", "output_bytes", "temp_bytes")
        found |= dict.fromkeys(names) | {"reason": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    return found | {
        "matrix_flops": dict(work.matrix_flops),
        "least_bytes": sum(reads.values()) + sum(work.writes),
        "unseen": dict(work.unseen),
    }


def _nbytes(aval: runtime.Aval) -> int:
    return math.prod(aval[0]) * aval[1].itemsize


def _of_segment(code: Sequence[Any], signature: _Signature, returned: Sequence[int]) -> Work:
    """Work of a fused program: that of its members, but bytes only of what comes from outside and of what is returned."""
    work = Work({}, Counter(), [0.0] * len(signature), [])
    avals: list[runtime.Aval] = []  # of results so far
    writes: list[float] = []
    starts = [i for i, item in enumerate(code) if isinstance(item, Plan)]
    for start, end in zip(starts, [*starts[1:], len(code)]):
        plan, inputs = code[start], code[start + 1 : end]
        given = tuple(avals[n] if n >= 0 else signature[~n] for n in inputs)
        member = work_of(runtime.traced(plan.run, given))
        add(work.matrix_flops, member.matrix_flops)
        work.unseen.update(member.unseen)
        for n, read in zip(inputs, member.reads):
            if n < 0:
                work.reads[~n] = min(work.reads[~n] + read, _nbytes(signature[~n]))
        avals += runtime.results_of(plan.run, given)[: plan.results]
        writes += member.writes[: plan.results]
    work.writes = [writes[n] for n in returned]
    return work
