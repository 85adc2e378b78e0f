"""What ``torch.compile`` really captured: a "compiled" run that silently stayed eager must not be called compiled.

Dynamo counts what it compiles, and says nothing about what it does not: a function that met the recompile limit runs
as written, without a word, for the rest of the process. :mod:`shakedown.dynamo` stands where Dynamo decides, for this
half and for the device; :class:`Watch` listens there and makes documents of what it hears.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shakedown import dynamo
from shakedown.dynamo import first_line

from ..evidence import Graphs
from ..evidence import graphs as documents
from ..evidence.graphs import FullGraph, GraphRecord
from .graph_counts import CapturedGraph, Counts, Row, Seen, document
from .regions import Observed

_watching: list[Watch] = []  # the one that watches, if any


def capture() -> Graphs:
    """Graphs, captured calls and graph breaks with their reasons, since the process began: Dynamo's own counters."""
    counters = torch._dynamo.utils.counters
    return Graphs(
        captured=int(counters["stats"].get("unique_graphs", 0)),
        calls=int(counters["stats"].get("calls_captured", 0)),
        breaks={str(reason).splitlines()[0]: int(count) for reason, count in counters["graph_break"].items()},
    )


def full_graph(
    function: Callable[..., Any], arguments: tuple[Any, ...], backend: str, roots: tuple[Path, ...] = ()
) -> FullGraph:
    """Would ``fullgraph=True`` pass? Found by asking for it, once: the last thing a process does with compiled code,
    since all that was compiled before is dropped.
    """
    torch.compiler.reset()
    splits = _Splits()
    try:
        torch.compile(function, backend=backend, dynamic=False, fullgraph=True)(*arguments)
    except Exception as error:
        # The backend's own refusals come wrapped, with one line more.
        file, line, _ = dynamo.user_line(dynamo.stack_of(error), _absolute(roots)) or _named_by_device(str(error))
        reason = first_line(str(error).replace("raised:\n", "raised: "))
        return FullGraph(passes=False, failure=type(error).__name__, reason=reason, file=file, line=line)
    finally:
        torch.compiler.reset()
    found = splits.all()
    return FullGraph(passes=True, by_operator=documents.run_by_operator(found), splits=documents.in_pieces(found))


def shapes_of(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """Shapes of the tensors among the arguments, one level deep; modules and numbers have none."""
    found: list[Any] = []
    for value in (*arguments, *named.values()):
        if isinstance(value, Tensor):
            found.append(value.shape)
        elif isinstance(value, dict):
            found += [(key, inner.shape) for key, inner in value.items() if isinstance(inner, Tensor)]
        elif isinstance(value, (list, tuple)):
            found += [inner.shape for inner in value if isinstance(inner, Tensor)]
    return tuple(found)


class Watch(dynamo.Listener):
    """Sees what Dynamo captures from :meth:`start` to :meth:`stop`, or as a context manager. Starting one ends another.

    `roots` are files or folders of the user's code: the innermost line there is given as the place of a break.
    `wait` returns when the device is idle; it is called in :meth:`step` only. What watching does to calls of functions that
    Dynamo gave up is said in :mod:`shakedown.dynamo`.
    """

    def __init__(
        self,
        roots: tuple[Path, ...] = (),
        wait: Callable[[], None] = lambda: None,
        observer: dynamo.Observer = dynamo.observer,
    ) -> None:
        self._roots = _absolute(roots)
        self._wait, self._observer = wait, observer
        self._seen, self._splits = Seen(), _Splits()
        self._base = Counts.of(self._seen)
        self._observed: Observed | None = None
        self._case_observed: Observed | None = None
        self._undo: list[Callable[[], None]] = []

    # --- listening ------------------------------------------------------------------------------------------------------

    def start(self) -> Watch:
        """Begin to watch; before the first call of a compiled function."""
        for other in tuple(_watching):
            other.stop()
        _watching.append(self)
        self._undo.append(self._observer.listen(self))
        self._splits = _Splits()
        return self

    def stop(self) -> None:
        """Watch no longer."""
        if self in _watching:
            _watching.remove(self)
        while self._undo:
            self._undo.pop()()

    __enter__ = start

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def broke(self, seen: dynamo.Break) -> None:
        where = dynamo.user_line(seen.stack, self._roots) or seen.begins
        key = (seen.kind, seen.context, dynamo.function_name(where[2]), where[0], where[1], seen.skipped)
        self._seen.breaks[key] += 1

    def compiled(self, seen: dynamo.Compiled) -> None:
        for graph in reversed(self._seen.graphs):
            if graph.place is not None:
                break
            if graph.compile_id == seen.compile_id:
                graph.place = (seen.function, seen.file, seen.line)
        if seen.guard:
            self._seen.recompilations[dynamo.function_name(seen.function), seen.file, seen.line, seen.guard] += 1

    def gave_up(self, seen: dynamo.GivenUp) -> None:
        self._seen.frames[seen] = 1 if seen.counted else None

    def ran_eager(self, seen: dynamo.GivenUp) -> None:
        # One that was given up before this watch began comes without having been announced.
        self._seen.frames[seen] = (self._seen.frames.get(seen) or 0) + 1

    # --- what is watched ------------------------------------------------------------------------------------------------

    def backend(self, name: str | Callable[..., Any]) -> Callable[..., Any]:
        """The ``torch.compile`` backend `name`, counting its graphs and their runs: pass it as ``backend=``."""
        real, seen = torch._dynamo.lookup_backend(name), self._seen

        def counting(module: torch.fx.GraphModule, inputs: Any, **options: Any) -> Callable[..., Any]:
            compiled = real(module, inputs, **options)
            operators = sum(n.op.startswith("call_") for n in module.graph.nodes)
            made = CapturedGraph(str(torch._guards.CompileContext.current_compile_id()), operators)
            if not self._observer.at_work_for_a_device:
                seen.graphs.append(made)

            def run(*arguments: Any) -> Any:
                made.runs += 1
                seen.graph_runs += 1
                if self._observed is None:
                    return compiled(*arguments)
                return self._observed.run(compiled, arguments)

            run.__dict__.update(getattr(compiled, "__dict__", {}))
            return run

        counting.__name__ = name if isinstance(name, str) else getattr(name, "__name__", "backend")
        return counting

    def calls(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """`compiled`, a function with a backend from :meth:`backend`, with each call entered into the ledger of shapes.

        It takes a few microseconds a call.
        """
        seen = self._seen

        def call(*arguments: Any, **named: Any) -> Any:
            shapes = shapes_of(arguments, named)
            row = seen.rows.get(shapes)
            if row is None:
                row = seen.rows[shapes] = Row()
            row.calls += 1
            graphs, runs, eager = len(seen.graphs), seen.graph_runs, self.eager_calls()
            try:
                return compiled(*arguments, **named)
            finally:
                row.compiled += len(seen.graphs) - graphs
                row.ran_eager += self.eager_calls() > eager
                row.without_graph += seen.graph_runs == runs

        return call

    def eager_calls(self) -> int:
        """Calls, so far, of functions that Dynamo had given up; those that cannot be counted are not among them."""
        return sum(calls or 0 for calls in self._seen.frames.values())

    @contextmanager
    def step(self) -> Iterator[Observed]:
        """Observe one step, apart from timed ones: open its forward and backward pass in ``observed.span(phase)``.

        What ran inside and outside graphs is then part of the next :meth:`case`, all observed steps of a case together.
        The first one of a process pays for looking, so a few of them tell more than one.
        """
        observed = self._case_observed = self._case_observed or Observed(self._wait)
        observed.begin()
        self._observed = observed
        try:
            with observed:
                yield observed
        finally:
            self._observed = None

    # --- documents ------------------------------------------------------------------------------------------------------

    def capture(self) -> GraphRecord:
        """Everything since the start."""
        return self._document(Counts())

    def case(self) -> GraphRecord:
        """What came since the last call of this method, or since the start: the document of one case."""
        made = self._document(self._base)
        self._base, self._case_observed = Counts.of(self._seen), None
        return made

    def _document(self, base: Counts) -> GraphRecord:
        observed = self._case_observed
        self._seen.splits = self._splits.all() or self._seen.splits
        return document(
            self._seen, base, observed.regions() if observed else None, [*self._observer.unseen, *_unseen()]
        )


class _Splits:
    """Graphs that the device could not make one program of, from now on: the embedded device tells."""

    def __init__(self) -> None:
        self._first = len(_told())

    def all(self) -> list[documents.SplitGraph]:
        return [documents.SplitGraph.model_validate(one) for one in _told()[self._first :]]


def _told() -> list[dict[str, Any]]:
    device = getattr(torch, "neuron", None)
    if device is None or not hasattr(device, "compile_report") or not device.is_initialized():
        return []  # nothing was compiled for it
    return device.compile_report()["splits"]


def _unseen() -> list[str]:
    device = getattr(torch, "neuron", None)
    if device is None or hasattr(device, "compile_report"):
        return []
    return ["operators that a graph is split around: this package of the device does not tell"]


def _named_by_device(text: str) -> dynamo.Place:
    """The line that the embedded device names in a refusal, where PyTorch's stack does not come along."""
    found = re.search(r"called at (\S+):(\d+)", text)
    return (found[1], int(found[2]), "") if found else ("", 0, "")


def _absolute(roots: tuple[Path, ...]) -> tuple[str, ...]:
    return tuple(str(Path(root).absolute()) for root in roots)
