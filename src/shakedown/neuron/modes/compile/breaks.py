"""What became of the functions that ``torch.compile(backend="neuron")`` was given: for ``torch.neuron.compile_report()``.

:mod:`shakedown.dynamo` tells what Dynamo decides, :mod:`.split` what could not be one program; here both are kept as rows,
and every row is an event too. Of a function that met Dynamo's recompile limit there is one warning: from then on Dynamo says
no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from shakedown import dynamo

from ... import events
from . import split

_SHOWN = 3  # guards that the warning of a limit names


@dataclass
class Report(dynamo.Listener):
    """Everything since the process began, or since :meth:`clear`."""

    graphs: list[dict[str, Any]] = field(default_factory=list)
    breaks: Counter[tuple[str, str, str, int, str, bool]] = field(default_factory=Counter)
    recompiles: Counter[tuple[str, str, int, str]] = field(default_factory=Counter)
    given_up: dict[dynamo.GivenUp, int | None] = field(default_factory=dict)

    def wants(self, backend: str) -> bool:
        return backend == "neuron"

    def captured(self, name: str, module: torch.fx.GraphModule) -> None:
        """Dynamo handed over a graph. Its place is that of the function, not of its first operator."""
        frame = _frame_of_capture()
        self.graphs.append(
            {
                "graph": name,
                "compile_id": str(torch._guards.CompileContext.current_compile_id() or ""),
                "function": dynamo.function_name(frame[2]),
                "file": frame[0],
                "line": frame[1],
                "resumed": dynamo.is_resumed(frame[2]),
                "operators": sum(n.op.startswith("call_") for n in module.graph.nodes),
            }
        )

    def broke(self, seen: dynamo.Break) -> None:
        file, line, function = dynamo.user_line(seen.stack) or seen.begins
        function = dynamo.function_name(function)
        self.breaks[seen.kind, seen.context, file, line, function, seen.skipped] += 1
        events.record("break", f"{file}:{line}", detail=f"{seen.kind}: {seen.context}" if seen.context else seen.kind)

    def compiled(self, seen: dynamo.Compiled) -> None:
        if seen.guard:
            function = dynamo.function_name(seen.function)
            self.recompiles[function, seen.file, seen.line, seen.guard] += 1
            events.record("recompile", f"{seen.file}:{seen.line}", detail=seen.guard)

    def gave_up(self, seen: dynamo.GivenUp) -> None:
        self.given_up[seen] = 1 if seen.counted else None
        file, line, function = _place_of(seen)
        what = "not compiled" if seen.limit is None else f"{seen.limit[0]}={seen.limit[1]}"
        events.record("limit", f"{file}:{line}", detail=what)
        if seen.limit is not None:
            last = [
                guard for name, at, number, guard in self.recompiles if (name, at, number) == (function, file, line)
            ]
            last = list(dict.fromkeys([*last, seen.limit[2]]))[-_SHOWN:]
            split.warn_at(
                f'torch.compile(backend="neuron") compiles {function} ({file}:{line}) no more: it met '
                f"torch._dynamo.config.{seen.limit[0]} = {seen.limit[1]}. From now on its calls that need new code run as "
                "written, one operator at a time; torch.neuron.compile_report() counts them. The guards that failed last: "
                f"{'; '.join(last)}. Keep sizes few (shakedown.neuron.bucketed pads lengths to a fixed set), pass numbers that "
                "change as tensors, or raise the limit.",
                file,
                line,
            )

    def ran_eager(self, seen: dynamo.GivenUp) -> None:
        self.given_up[seen] = (self.given_up.get(seen) or 0) + 1
        file, line, _ = _place_of(seen)
        events.record("limit", f"{file}:{line}", detail="ran eager")

    def rows(self) -> dict[str, list[Any]]:
        """The report as plain values; ``torch.neuron.compile_report`` says what they mean."""
        given = [
            (dict(zip(("file", "line", "function"), _place_of(g))), g, calls) for g, calls in self.given_up.items()
        ]
        names = ("kind", "context", "file", "line", "function", "skipped")
        again = ("function", "file", "line", "guard")
        return {
            "graphs": [dict(graph) for graph in self.graphs],
            "breaks": [dict(zip(names, key)) | {"count": count} for key, count in self.breaks.items()],
            "recompiles": [dict(zip(again, key)) | {"count": count} for key, count in self.recompiles.items()],
            "limits": [
                place | {"limit": g.limit[0], "allowed": g.limit[1], "guard": g.limit[2], "ran_eager": calls}
                for place, g, calls in given
                if g.limit is not None
            ],
            "skipped": [
                place | {"failure": g.failure[0], "reason": g.failure[1], "at_line": g.failure[2], "ran_eager": calls}
                for place, g, calls in given
                if g.limit is None
            ],
            "splits": [asdict(one) for one in split.splits],
            "unseen": list(dynamo.observer.unseen),
        }

    def clear(self) -> None:
        for part in (self.graphs, self.breaks, self.recompiles, self.given_up, split.splits):
            part.clear()


report = Report()
_listening: list[Callable[[], None]] = []  # what ends it


def listen() -> None:
    """Hear what Dynamo decides, from now on. Called when the backend is loaded, before anything is captured for it."""
    if not _listening:
        _listening.append(dynamo.observer.listen(report))


def _place_of(given: dynamo.GivenUp) -> dynamo.Place:
    code = given.code
    return code.co_filename, code.co_firstlineno, dynamo.function_name(code.co_name)


def _frame_of_capture() -> dynamo.Place:
    """File, first line and name of the function that Dynamo captures now (private to PyTorch)."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        code = InstructionTranslator.current_tx().f_code
        return code.co_filename, code.co_firstlineno, code.co_name
    except AttributeError:  # the backend was called by hand, or another PyTorch
        return "", 0, ""


@contextmanager
def between_graphs() -> Iterator[list[dict[str, Any]]]:
    """See ``torch.neuron.operators_between_graphs``."""
    rows: list[dict[str, Any]] = []
    pending: Counter[str] = Counter()
    last = ""

    def graph_ran(name: str) -> None:
        nonlocal last
        if pending:
            found = next((r for r in rows if (r["after"], r["before"]) == (last, name)), None)
            if found is None:
                rows.append({"after": last, "before": name, "operators": dict(pending)})
            else:
                for operator, count in pending.items():
                    found["operators"][operator] = found["operators"].get(operator, 0) + count
        pending.clear()
        last = name

    def called(tally: events.Tally) -> None:
        if tally.name.startswith("graph::"):
            graph_ran(tally.name.removeprefix("graph::"))
        elif not tally.name.startswith("adaptive::"):
            pending[tally.name] += 1

    def happened(event: events.Event) -> None:
        if event.kind == "fallback":
            pending[event.name] += 1
        elif event.kind == "transfer":
            pending[f"transfer {event.name}"] += 1

    with events.watch(called), events.subscribe(happened):
        yield rows
        graph_ran("")
