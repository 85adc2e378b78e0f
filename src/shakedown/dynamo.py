"""What Dynamo decides, told as it happens: graph breaks, compilations and why they came again, functions that it gave up.

Dynamo counts what it compiles, and says nothing about what it does not: a function that met the recompile limit runs as
written for the rest of the process. So :data:`observer` stands where Dynamo decides. Those places are private to PyTorch
(the same in 2.13 and 2.14): each is looked up when the first listener comes, and one that is missing is named in
``unseen`` instead of counting as nothing seen. Both halves of Shakedown listen here, the device for its own backend and a
trial for any; there is one observer in a process, since two of them would hide limits from each other.

While anybody listens, calls of functions that Dynamo gave up are handed to Python once more, to be counted; they and what
they call then run exactly as before. Only the stance ``fail_on_recompile`` would notice: it raises there, where Dynamo
would have gone quiet.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType
from typing import Any, TypeAlias

import torch

Place: TypeAlias = tuple[str, int, str]  # file, line, function

_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+$")
_TORCH = str(Path(torch.__file__).parent)
# Between two graphs Dynamo also looks at Python that a device runs for an operator. That is nobody's code.
_DEVICES = (str(Path(__file__).parent / "neuron"), "/torch_neuronx/", "/torch_xla/")


@dataclass(frozen=True)
class Break:
    """Capture stopped. ``kind`` is PyTorch's name for the reason, ``context`` what it saw there.

    ``stack`` is the user's, outermost first; ``begins`` is where the function begins. ``skipped``: capture cannot go on
    behind this place, so the whole function runs as written.
    """

    backend: str
    kind: str
    context: str
    stack: tuple[Place, ...]
    begins: Place
    skipped: bool


@dataclass(frozen=True)
class Compiled:
    """Dynamo is done with a function, and has code for it or not. ``guard`` is what did not hold, "" the first time."""

    backend: str
    compile_id: str
    function: str  # as Dynamo has it: a resumed one has a name of its own
    file: str
    line: int
    guard: str


@dataclass(eq=False)
class GivenUp:
    """A function that runs as written from now on: at a limit, or because it cannot be compiled.

    ``after`` is the strategy under which functions that it calls run, ``final`` what Dynamo itself would have set.
    ``counted``: listeners are told of each call (where nothing is compiled for it or a limit was met).
    """

    backend: str
    code: CodeType
    after: Any
    final: Any
    counted: bool
    limit: tuple[str, int, str] | None = None  # setting, value, the last guard
    failure: tuple[str, str, int] = ("", "", 0)  # exception, reason, line


class Listener:
    """Told of what Dynamo decides, in the thread that compiles. What it does not override it does not care for."""

    def wants(self, backend: str) -> bool:
        """Whether it cares for functions compiled with `backend` at all."""
        return True

    def broke(self, seen: Break) -> None: ...

    def compiled(self, seen: Compiled) -> None: ...

    def gave_up(self, seen: GivenUp) -> None:
        """A function was given up, in a call that runs as written (which is not told by :meth:`ran_eager` again)."""

    def ran_eager(self, seen: GivenUp) -> None:
        """One more call of it runs as written."""


@dataclass
class Observer:
    """See the module. :meth:`listen` is all that others call."""

    unseen: list[str] = field(default_factory=list)
    _listeners: list[Listener] = field(default_factory=list)
    _undo: list[Callable[[], None]] = field(default_factory=list)
    _given_up: dict[int, GivenUp] = field(default_factory=dict)  # by id of the code object, which GivenUp keeps alive
    _last_metric: Any = None
    _exceeded: tuple[str, int] | None = None
    _foreign: bool = False  # Dynamo is looking at a frame of a device's
    _backend: str = ""  # of what is being converted
    _untold: list[Break] = field(
        default_factory=list
    )  # in what is being converted, since nobody listens to its backend

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` from now on; returns what ends it. When nobody listens any more, Dynamo is as it was."""
        if not self._listeners:
            self._install()
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)
                self._release()
                if not self._listeners:
                    while self._undo:
                        self._undo.pop()()

        return end

    @property
    def at_work_for_a_device(self) -> bool:
        """Whether the function that is being captured is Python that a device runs for an operator."""
        return self._foreign

    def compiled_by(self, backend: str) -> None:
        """The function that is being captured for another backend has its graphs compiled by `backend`: tell its listeners."""
        self._backend = backend
        untold, self._untold = self._untold, []
        for seen in untold:
            for listener in self._tell(backend):
                listener.broke(replace(seen, backend=backend))

    def _tell(self, backend: str) -> list[Listener]:
        return [listener for listener in tuple(self._listeners) if listener.wants(backend)]

    def _release(self) -> None:
        """Let Dynamo's own decisions hold again for functions that no listener cares for any more."""
        for number, given in list(self._given_up.items()):
            if not self._tell(given.backend):
                torch._C._dynamo.eval_frame.set_code_exec_strategy(given.code, given.final)
                del self._given_up[number]

    # --- standing where Dynamo decides ----------------------------------------------------------------------------------

    def _install(self) -> None:
        from torch._dynamo import convert_frame, symbolic_convert

        self.unseen.clear()
        # What Dynamo says about a frame that comes without valid compiled code (C calls this object's type).
        self._patch(getattr(convert_frame, "CatchErrorsWrapper", None), "__call__", self._converting, "eager calls")
        # The only place that has a graph break's reason and the user's stack as objects and not as a log line.
        translator = getattr(symbolic_convert, "InstructionTranslatorBase", None)
        self._patch(translator, "log_graph_break", self._breaking, "graph breaks")
        self._patch(convert_frame, "exceeds_recompile_limit", self._limiting, "which limit was met")
        self._forget_compilations()

    def _patch(self, owner: Any, name: str, made: Callable[[Any], Any], shows: str) -> None:
        original = getattr(owner, name, None)
        if original is None:
            self.unseen.append(f"{shows}: PyTorch {torch.__version__} has no {name} where Dynamo decides")
            return
        setattr(owner, name, made(original))
        self._undo.append(lambda: setattr(owner, name, original))

    def _converting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from torch._dynamo import convert_frame
        from torch._dynamo.types import ConvertFrameReturn

        def convert(wrapper: Any, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
            known = self._given_up.get(id(frame.f_code))
            if known is not None:
                if frame.f_code in convert_frame.input_codes:
                    for listener in self._tell(known.backend):
                        listener.ran_eager(known)
                    return ConvertFrameReturn(frame_exec_strategy=known.after, apply_to_code=False)
                del self._given_up[id(frame.f_code)]  # torch.compiler.reset() gave it another chance
            before = self._foreign, self._backend, self._untold
            self._foreign, self._backend, self._untold = _device_at_work(), _backend_of(wrapper), []
            try:
                result = original(wrapper, frame, cache_entry, frame_state)
                if self._foreign:
                    self._forget_compilations()
                    return result
                metric = self._note_compilations()
                return result if result.guarded_code is not None else self._judged(frame, cache_entry, result, metric)
            finally:
                self._foreign, self._backend, self._untold = before

        return convert

    def _judged(self, frame: Any, cache_entry: Any, result: Any, metric: Any) -> Any:
        """Dynamo has no code for this frame: if it gave the function up, tell; and see to it that its calls are told."""
        from torch._dynamo.types import FrameAction, FrameExecStrategy

        strategy = result.frame_exec_strategy
        limited = strategy.cur_action == FrameAction.RUN_ONLY
        if not limited and result.skip_reason != "an error was suppressed during compilation":
            return result
        # Where nothing is compiled for this code, asking Dynamo again at each call changes nothing but the count. With
        # compiled code under a limit, valid entries are still found first, as Dynamo does it; after a skip it looks for
        # none, so there the calls stay uncounted.
        counted = result.apply_to_code and (limited or cache_entry is None)
        after = FrameExecStrategy(FrameAction.DEFAULT, strategy.recursive_action)
        made = GivenUp(self._backend, frame.f_code, after, strategy, counted)
        if limited:
            setting, value = self._exceeded or ("a limit that was not seen", 0)
            made.limit = (setting, value, guard_of(getattr(metric, "recompile_reason", None)))
        else:
            at = int(getattr(metric, "fail_user_frame_lineno", None) or frame.f_code.co_firstlineno)
            reason = (getattr(metric, "fail_reason", None) or "not said").replace("raised:\n", "raised: ")
            made.failure = (getattr(metric, "fail_type", None) or "not said", first_line(reason), at)
        concerned = self._tell(self._backend)
        for listener in concerned:
            listener.gave_up(made)
        if not counted or not concerned:
            return result
        self._given_up[id(frame.f_code)] = made
        return replace(result, frame_exec_strategy=after)

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
                seen, concerned = self._break(code_options, reason, exc), self._tell(self._backend)
                for listener in concerned:
                    listener.broke(seen)
                if not concerned:
                    self._untold.append(seen)
            original(translator, code_options, reason, exc)

        return note

    def _break(self, code_options: Any, reason: str, exc: Any) -> Break:
        text = str(getattr(exc, "msg", exc))
        found = re.search(r"^ *Developer debug context: *(.*)$", text, re.MULTILINE)
        return Break(
            backend=self._backend,
            kind=first_line(text),
            context=found[1].strip() if found else "",
            stack=stack_of(exc),
            begins=(code_options["co_filename"], int(code_options["co_firstlineno"]), code_options["co_name"]),
            # A break that ends in skipping the function says first what it was, and then that it was in a loop, or the like.
            skipped="Skipping the function" in reason or bool(getattr(exc, "skip_frame", False)),
        )

    def _forget_compilations(self) -> None:
        records = torch._dynamo.utils.get_compilation_metrics()
        self._last_metric = records[-1] if records else None

    def _note_compilations(self) -> Any:
        """Read Dynamo's records that are new; returns the latest of them."""
        new: list[Any] = []
        for record in reversed(torch._dynamo.utils.get_compilation_metrics()):
            if record is self._last_metric:
                break
            new.append(record)
        if new:
            self._last_metric = new[0]
        for record in reversed(new):
            if record.co_name is None or record.is_forward is False:
                continue
            seen = Compiled(
                backend=self._backend,
                compile_id=str(record.compile_id),
                function=record.co_name,
                file=record.co_filename or "",
                line=int(record.co_firstlineno or 0),
                guard=guard_of(record.recompile_reason),
            )
            for listener in self._tell(self._backend):
                listener.compiled(seen)
        return new[0] if new else None


observer = Observer()


def _backend_of(wrapper: Any) -> str:
    """Name of the backend that a frame is converted for; "" where this PyTorch does not say."""
    convert = getattr(wrapper, "_torchdynamo_orig_backend", None)
    backend = getattr(convert, "_torchdynamo_orig_backend", None)
    return str(getattr(backend, "_compiler_name", None) or getattr(backend, "__name__", ""))


def _device_at_work() -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None:
        if any(folder in frame.f_code.co_filename for folder in _DEVICES):
            return True
        frame = frame.f_back
    return False


# --- words ------------------------------------------------------------------------------------------------------------


def guard_of(recompile_reason: str | None) -> str:
    """The text of the guard that failed, without Dynamo's number before it."""
    return re.sub(r"^\d+/\d+: ", "", first_line(recompile_reason or ""))


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def stack_of(error: Any) -> tuple[Place, ...]:
    """The user's stack that PyTorch adds to what Dynamo raises."""
    return tuple((f.filename, int(f.lineno or 0), f.name) for f in getattr(error, "real_stack", None) or [])


def function_name(name: str) -> str:
    """The function's own name, also for one that Dynamo made to resume it behind a break."""
    found = _RESUMED.match(name)
    return found[1] if found else name


def is_resumed(name: str) -> bool:
    return _RESUMED.match(name) is not None


def user_line(stack: tuple[Place, ...], roots: tuple[str, ...] = ()) -> Place | None:
    """The innermost line of the user's own files; of anything but PyTorch where the stack has none; or the innermost."""
    for wanted in (lambda file: file.startswith(roots) if roots else False, lambda file: not file.startswith(_TORCH)):
        for entry in reversed(stack):
            if wanted(entry[0]):
                return entry
    return stack[-1] if stack else None
