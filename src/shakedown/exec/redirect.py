"""``--redirect-cuda``: where a program names CUDA, it gets the device. Nothing of this exists unless the option is given.

PyTorch offers one place that sees every device before C++ does, the constructor of ``torch.device`` included: a
``TorchFunctionMode``. Dynamo traces it, so that captured code is redirected as well. Modes belong to threads, so each thread
that Python starts enters it first; autograd's own threads inherit it. What PyTorch's Python functions decide before any such call
(``torch.cuda``, autocast, ``torch.load``, ...) is replaced by name, in :mod:`.redirect_module` and below.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from . import places

DEVICE = "neuron"
_Tensor = torch.Tensor
_DEVICE, _TO, _PARSE_TO = torch.device, _Tensor.to, torch._C._nn._parse_to
_CUDA, _TYPE = _Tensor.cuda, _Tensor.type
_PIN, _IS_PINNED, _RECORD_STREAM = _Tensor.pin_memory, _Tensor.is_pinned, _Tensor.record_stream
_IS_CUDA = _Tensor.is_cuda.__get__


def is_cuda(value: Any) -> bool:
    """Whether `value` names a CUDA device: ``"cuda"``, ``"cuda:N"``, or a ``torch.device`` of that type."""
    if isinstance(value, str):
        return value == "cuda" or value.startswith("cuda:")
    return isinstance(value, torch.device) and value.type == "cuda"


def ours(value: Any) -> Any:
    """The same device by our name; anything else as it is."""
    if not is_cuda(value):
        return value
    if isinstance(value, str):
        return DEVICE + value[4:]
    return torch.device(DEVICE) if value.index is None else torch.device(DEVICE, value.index)


def _note(call: str, value: Any) -> None:
    rule = "cuda-method" if call.startswith(".cuda") else "cuda-device"
    places.note(call, str(ours(value)), "redirected", rule)


def _note_captured(call: str, value: str) -> None:
    _note(call, value)


# Dynamo calls a function that is marked so, while it captures, instead of reading it; `torch.compiler.assume_constant_result`
# sets the same mark, but imports Dynamo for it.
_note_captured._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _moved(name: str, value: Any, keyword: str = "") -> Any:
    """`value`, on the device where it names CUDA; which is noted as a call of `name`."""
    if not is_cuda(value):
        return value
    if torch.compiler.is_compiling():
        _note_captured(name, str(value))
    else:
        _note(f"{name}({keyword}{str(value)!r})", value)
    return ours(value)


class Redirection(TorchFunctionMode):
    """Every call of PyTorch's C++ functions, while it is entered. Dynamo reads this, so it is kept to plain statements."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs is None:
            kwargs = {}
        device = kwargs.get("device")
        if device is not None and is_cuda(device):
            kwargs = {**kwargs, "device": _moved(_name(func), device, "device=")}
        # Compared one by one: Dynamo cannot look every function up in a set.
        if func is _TO or func is _DEVICE or func is _PARSE_TO:
            args = tuple([_moved(_name(func), a) for a in args])
            if "type" in kwargs:
                kwargs = {**kwargs, "type": _moved(_name(func), kwargs["type"])}
        elif func is _CUDA:
            return _cuda(*args, **kwargs)
        elif not torch.compiler.is_compiling() and func in _SPECIAL:
            return _SPECIAL[func](self, func, args, kwargs)
        return func(*args, **kwargs)


def _name(func: Any) -> str:
    """How a script writes a call of `func`, up to the parenthesis."""
    if torch.compiler.is_compiling():
        return "(in torch.compile)"
    if func is _DEVICE:
        return "torch.device"
    name = getattr(func, "__name__", "?")
    if func is _PARSE_TO:
        return ".to"
    return f".{name}" if hasattr(_Tensor, name) and not hasattr(torch, name) else f"torch.{name}"


def _index(device: Any) -> str:
    """The device meant by the argument of ``.cuda()``."""
    if device is None:
        return DEVICE
    if isinstance(device, int):
        return f"{DEVICE}:{device}"
    return str(ours(torch.device(device)))


def _cuda(tensor: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
    if torch.compiler.is_compiling():
        _note_captured(".cuda()", "cuda")
    else:
        _note(".cuda()" if device is None else f".cuda({device!s})", "cuda")
    if memory_format is None:
        return tensor.to(_index(device), non_blocking=non_blocking)
    return tensor.to(_index(device), non_blocking=non_blocking, memory_format=memory_format)


def _type(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """``x.type("torch.cuda.FloatTensor")``, or the class itself."""
    from .redirect_types import old_type

    wanted = old_type(args[1] if len(args) > 1 else kwargs.get("dtype"))
    if wanted is None:
        return func(*args, **kwargs)
    places.note(f".type({wanted.name})", f"{DEVICE}, {wanted.dtype}", rule="cuda-device")
    return args[0].to(device=DEVICE, dtype=wanted.dtype)


def _pin(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Pinned memory is for CUDA's copies. Where the device has none, a tensor of the host is as good as it is."""
    keep = {name: value for name, value in kwargs.items() if name != "device"}
    rest = [value for value in args[1:] if not is_cuda(value)]
    try:
        return func(args[0], *rest, **keep)
    except NotImplementedError:
        if args[0].device.type != "cpu":
            raise
        places.note(".pin_memory()" if func is _PIN else ".is_pinned()", "nothing", "ignored", "pin-memory")
        return args[0] if func is _PIN else False


def _no_stream(mode: Any, func: Any, args: Any, kwargs: Any) -> None:
    """A value is kept as long as a program reads it, whatever stream that runs on."""
    places.note(".record_stream()", "not needed", "ignored")


def _is_cuda(mode: Any, func: Any, args: Any, kwargs: Any) -> bool:
    """The truth for PyTorch's own code and for libraries, which choose CUDA's kernels by it; the script means "moved"."""
    frame = sys._getframe(2)
    if places.is_script(frame.f_code.co_filename) and args[0].device.type == DEVICE:
        places.note(".is_cuda", "True", "answered", "cuda-attribute")
        return True
    return func(*args, **kwargs)


_SPECIAL: dict[Any, Callable[[Any, Any, Any, Any], Any]] = {
    _TYPE: _type,
    _PIN: _pin,
    _IS_PINNED: _pin,
    _RECORD_STREAM: _no_stream,
    _IS_CUDA: _is_cuda,
}


def begin() -> None:
    """Redirect from now on, in this thread and all that are started from it."""
    from . import redirect_functions, redirect_module, redirect_types

    redirect_module.begin()
    redirect_types.begin()
    redirect_functions.begin()
    _enter_in_threads()
    _stay_in_backward()
    _hide_from_tracebacks()
    Redirection().__enter__()


def _enter_in_threads() -> None:
    start = threading.Thread.start

    @functools.wraps(start)
    def start_redirected(self: threading.Thread) -> None:
        run = self.run

        def run_redirected() -> None:
            with Redirection():
                run()

        self.run = run_redirected  # type: ignore[method-assign]
        start(self)

    threading.Thread.start = start_redirected  # type: ignore[method-assign]


def _stay_in_backward() -> None:
    """PyTorch leaves a mode while it handles a call, and ``loss.backward()`` is one. But the backward pass calls what the script
    wrote: hooks, functions of its own, blocks that are computed again.

    The function that both ``backward`` and ``grad`` start the engine with is private; without it those are not redirected, and
    say so.
    """
    original = getattr(torch.autograd.graph, "_engine_run_backward", None)
    if original is None:
        return

    @functools.wraps(original)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(mode, Redirection) for mode in _get_current_function_mode_stack()):
            return original(*args, **kwargs)
        with Redirection():
            return original(*args, **kwargs)

    for module in (torch.autograd.graph, torch.autograd):
        if vars(module).get("_engine_run_backward") is original:
            module._engine_run_backward = run_backward


def _hide_from_tracebacks() -> None:
    """A traceback shows the script's frames and PyTorch's, as it would without the option."""
    shown, shown_in_thread = sys.excepthook, threading.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        shown(kind, error, _bare(error, set(), trace))

    def show_in_thread(told: Any) -> None:
        if told.exc_value is not None:
            bare = _bare(told.exc_value, set(), told.exc_traceback)
            told = threading.ExceptHookArgs((told.exc_type, told.exc_value, bare, told.thread))
        shown_in_thread(told)

    sys.excepthook, threading.excepthook = show, show_in_thread


def _bare(error: BaseException, seen: set[int], trace: TracebackType | None) -> TracebackType | None:
    """Take frames of this package out of the tracebacks of `error` and of what it came from; returns its own."""
    seen.add(id(error))
    for other in (error.__cause__, error.__context__):
        if other is not None and id(other) not in seen:
            _bare(other, seen, other.__traceback__)
    first: TracebackType | None = None
    last: TracebackType | None = None
    here = trace
    while here is not None:
        if not places.is_ours(here.tb_frame.f_code.co_filename):
            if last is None:
                first = here
            else:
                last.tb_next = here
            last = here
        here = here.tb_next
    if last is None:
        return trace  # nothing but ours: that is for us to see
    last.tb_next = None
    error.__traceback__ = first
    return first
