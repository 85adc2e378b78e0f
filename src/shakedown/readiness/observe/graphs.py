"""What ``torch.compile`` really captured: a "compiled" run that silently stayed eager must not be called compiled.

Dynamo counts what it compiles, and says nothing about what it does not: a function that met the recompile limit runs
as written, without a word, for the rest of the process. :class:`Watch` stands where Dynamo decides. Those places are
private to PyTorch (the same in 2.13 and 2.14); each is looked up when the watch starts, and one that is missing is
named in the evidence instead of counting as nothing seen.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import shakedown

from ..evidence import Graphs
from ..evidence import graphs as documents
from ..evidence.graphs import FullGraph, GraphRecord
from .graph_counts import CapturedGraph, Counts, GivenUp, Row, Seen, document, first_line, function_name
from .regions import Observed

_BY_OPERATOR = re.compile(r"runs graph (\S+) operator by operator, because it cannot be one program: (.*)", re.DOTALL)
_TORCH = str(Path(torch.__file__).parent)
# Between two graphs Dynamo also looks at Python that a device runs for an operator. That is not the workload.
_DEVICES = (str(Path(shakedown.__file__).parent / "neuron"), "/torch_neuronx/", "/torch_xla/")

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
    said: list[documents.ByOperator] = []
    undo = _hear(said)
    try:
        torch.compile(function, backend=backend, dynamic=False, fullgraph=True)(*arguments)
    except Exception as error:
        # PyTorch adds the user's stack to what Dynamo raises; the backend's own refusals come wrapped, with one line more.
        stack = [(f.filename, int(f.lineno or 0), f.name) for f in getattr(error, "real_stack", None) or []]
        file, line, _ = _user_line(stack, _absolute(roots)) or ("", 0, "")
        reason = first_line(str(error).replace("raised:\n", "raised: "))
        return FullGraph(passes=False, failure=type(error).__name__, reason=reason, file=file, line=line)
    finally:
        undo()
        torch.compiler.reset()
    return FullGraph(passes=True, by_operator=said)


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


class Watch:
    """Sees what Dynamo captures from :meth:`start` to :meth:`stop`, or as a context manager. Starting one ends another.

    `roots` are files or folders of the user's code: the innermost line there is given as the place of a break.
    `wait` returns when the device is idle; it is called in :meth:`step` only.

    While it watches, calls of functions that Dynamo gave up are handed to Python once more, to be counted; they and what
    they call then run exactly as before. Only the stance ``fail_on_recompile`` would notice: it raises there, where
    Dynamo would have gone quiet.
    """

    def __init__(self, roots: tuple[Path, ...] = (), wait: Callable[[], None] = lambda: None) -> None:
        self._roots = _absolute(roots)
        self._wait = wait
        self._seen = Seen()
        self._base = Counts.of(self._seen)
        self._observed: Observed | None = None
        self._case_observed: Observed | None = None
        self._undo: list[Callable[[], None]] = []
        self._last_metric: Any = None
        self._exceeded: tuple[str, int] | None = None
        self._foreign = False  # Dynamo is looking at a frame of the device's
        self.unseen: list[str] = []

    # --- standing where Dynamo decides ----------------------------------------------------------------------------------

    def start(self) -> Watch:
        """Begin to watch; before the first call of a compiled function."""
        from torch._dynamo import convert_frame, symbolic_convert

        for other in tuple(_watching):
            other.stop()  # two of them would hide limits from each other
        _watching.append(self)
        # What Dynamo says about a frame that comes without valid compiled code (C calls this object's type).
        self._patch(getattr(convert_frame, "CatchErrorsWrapper", None), "__call__", self._converting, "eager calls")
        # The only place that has a graph break's reason and the user's stack as objects and not as a log line.
        translator = getattr(symbolic_convert, "InstructionTranslatorBase", None)
        self._patch(translator, "log_graph_break", self._breaking, "graph breaks")
        self._patch(convert_frame, "exceeds_recompile_limit", self._limiting, "which limit was met")
        self._forget_compilations()
        self._undo.append(_hear(self._seen.by_operator))
        return self

    def stop(self) -> None:
        """Watch no longer; what Dynamo had decided about functions holds again."""
        if self in _watching:
            _watching.remove(self)
        while self._undo:
            self._undo.pop()()
        for frame in self._seen.given_up.values():
            torch._C._dynamo.eval_frame.set_code_exec_strategy(frame.code, frame.final)
        self._seen.given_up.clear()

    __enter__ = start

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _patch(self, owner: Any, name: str, made: Callable[[Any], Any], shows: str) -> None:
        original = getattr(owner, name, None)
        if original is None:
            self.unseen.append(f"{shows}: PyTorch {torch.__version__} has no {name} where Dynamo decides")
            return
        setattr(owner, name, made(original))
        self._undo.append(lambda: setattr(owner, name, original))

    def _converting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from torch._dynamo import convert_frame
        from torch._dynamo.types import ConvertFrameReturn, FrameAction, FrameExecStrategy

        seen = self._seen

        def convert(wrapper: Any, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
            known = seen.given_up.get(id(frame.f_code))
            if known is not None:
                if frame.f_code in convert_frame.input_codes:
                    known.calls = (known.calls or 0) + 1
                    return ConvertFrameReturn(frame_exec_strategy=known.after, apply_to_code=False)
                del seen.given_up[id(frame.f_code)]  # torch.compiler.reset() gave it another chance
            self._foreign = _device_at_work()
            try:
                result = original(wrapper, frame, cache_entry, frame_state)
                if self._foreign:
                    self._forget_compilations()
                    return result
            finally:
                self._foreign = False
            if result.guarded_code is not None:
                self._note_compilations()
                return result
            strategy = result.frame_exec_strategy
            limited = strategy.cur_action == FrameAction.RUN_ONLY
            if limited or result.skip_reason == "an error was suppressed during compilation":
                metric = self._note_compilations()
                # Where nothing is compiled for this code, asking Dynamo again at each call changes nothing but the count.
                # With compiled code under a limit, valid entries are still found first, as Dynamo does it; after a skip
                # it looks for none, so there the calls stay uncounted.
                counted = result.apply_to_code and (limited or cache_entry is None)
                after = FrameExecStrategy(FrameAction.DEFAULT, strategy.recursive_action)
                made = GivenUp(frame.f_code, after, strategy, calls=1 if counted else None)
                if limited:
                    setting, value = self._exceeded or ("a limit that was not seen", 0)
                    made.limit = (setting, value, first_line(getattr(metric, "recompile_reason", None) or ""))
                else:
                    at = int(getattr(metric, "fail_user_frame_lineno", None) or frame.f_code.co_firstlineno)
                    reason = getattr(metric, "fail_reason", None) or "not said"
                    reason = first_line(reason.replace("raised:\n", "raised: "))
                    made.failure = (getattr(metric, "fail_type", None) or "not said", reason, at)
                seen.frames.append(made)
                if counted:
                    seen.given_up[id(frame.f_code)] = made
                    result = replace(result, frame_exec_strategy=after)
            return result

        return convert

    def _limiting(self, original: Callable[..., tuple[bool, str]]) -> Callable[..., tuple[bool, str]]:
        def exceeds(*arguments: Any, **named: Any) -> tuple[bool, str]:
            exceeded, setting = original(*arguments, **named)
            if exceeded:
                self._exceeded = (setting, int(getattr(torch._dynamo.config, setting)))
            return exceeded, setting

        return exceeds

    def _breaking(self, original: Callable[..., None]) -> Callable[..., None]:
        def note(translator: Any, code_options: Any, reason: str, exc: Any) -> None:
            if not exc.logged and not self._foreign:
                self._note_break(code_options, reason, exc)
            original(translator, code_options, reason, exc)

        return note

    def _note_break(self, code_options: Any, reason: str, exc: Any) -> None:
        stack = [(f.filename, int(f.lineno or 0), f.name) for f in getattr(exc, "real_stack", None) or []]
        where = _user_line(stack, self._roots) or (
            code_options["co_filename"],
            int(code_options["co_firstlineno"]),
            code_options["co_name"],
        )
        text = str(getattr(exc, "msg", exc))
        found = re.search(r"^ *Developer debug context: *(.*)$", text, re.MULTILINE)
        # A break that ends in skipping the function says first what it was, and then that it was in a loop, or the like.
        skipped = "Skipping the function" in reason or bool(getattr(exc, "skip_frame", False))
        kind, context = first_line(text), found[1].strip() if found else ""
        self._seen.breaks[kind, context, function_name(where[2]), where[0], where[1], skipped] += 1

    def _forget_compilations(self) -> None:
        records = torch._dynamo.utils.get_compilation_metrics()
        self._last_metric = records[-1] if records else None

    def _note_compilations(self) -> Any:
        """Read Dynamo's records that are new; returns the latest of them."""
        records = torch._dynamo.utils.get_compilation_metrics()
        new: list[Any] = []
        for record in reversed(records):
            if record is self._last_metric:
                break
            new.append(record)
        if new:
            self._last_metric = new[0]
        for record in reversed(new):
            if record.co_name is None or record.is_forward is False:
                continue
            place = (record.co_name, record.co_filename or "", int(record.co_firstlineno or 0))
            for graph in reversed(self._seen.graphs):
                if graph.place is not None:
                    break
                if graph.compile_id == str(record.compile_id):
                    graph.place = place
            if record.recompile_reason:
                guard = first_line(re.sub(r"^\d+/\d+: ", "", record.recompile_reason))
                self._seen.recompilations[function_name(place[0]), place[1], place[2], guard] += 1
        return new[0] if new else None

    # --- what is watched ------------------------------------------------------------------------------------------------

    def backend(self, name: str | Callable[..., Any]) -> Callable[..., Any]:
        """The ``torch.compile`` backend `name`, counting its graphs and their runs: pass it as ``backend=``."""
        real, seen = torch._dynamo.lookup_backend(name), self._seen

        def counting(module: torch.fx.GraphModule, inputs: Any, **options: Any) -> Callable[..., Any]:
            compiled = real(module, inputs, **options)
            operators = sum(n.op.startswith("call_") for n in module.graph.nodes)
            made = CapturedGraph(str(torch._guards.CompileContext.current_compile_id()), operators)
            if not self._foreign:
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
            graphs, runs, eager = len(seen.graphs), seen.graph_runs, self.ran_eager()
            try:
                return compiled(*arguments, **named)
            finally:
                row.compiled += len(seen.graphs) - graphs
                row.ran_eager += self.ran_eager() > eager
                row.without_graph += seen.graph_runs == runs

        return call

    def ran_eager(self) -> int:
        """Calls, so far, of functions that Dynamo had given up; those that cannot be counted are not among them."""
        return sum(frame.calls or 0 for frame in self._seen.frames)

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
        return document(self._seen, base, observed.regions() if observed else None, self.unseen)


def _hear(said: list[documents.ByOperator]) -> Callable[[], None]:
    """Note which graphs the backend cannot make one program of: it says so in a warning, the only place there is.

    Returns what puts things back. Whoever silences warnings, or records them, hides them from here too.
    """
    shown = warnings.showwarning

    def show(message: Any, category: Any, filename: str, lineno: int, *more: Any, **named: Any) -> None:
        found = _BY_OPERATOR.search(str(message))
        if found:
            said.append(documents.ByOperator(graph=found[1], reason=first_line(found[2])))
        shown(message, category, filename, lineno, *more, **named)

    def put_back() -> None:
        warnings.showwarning = shown

    warnings.showwarning = show
    return put_back


def _device_at_work() -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None:
        if any(folder in frame.f_code.co_filename for folder in _DEVICES):
            return True
        frame = frame.f_back
    return False


def _absolute(roots: tuple[Path, ...]) -> tuple[str, ...]:
    return tuple(str(Path(root).absolute()) for root in roots)


def _user_line(stack: list[tuple[str, int, str]], roots: tuple[str, ...]) -> tuple[str, int, str] | None:
    """The innermost line of the user's own files; of anything but PyTorch where the stack has none; or the innermost."""
    for wanted in (lambda file: file.startswith(roots) if roots else False, lambda file: not file.startswith(_TORCH)):
        for entry in reversed(stack):
            if wanted(entry[0]):
                return entry
    return stack[-1] if stack else None
