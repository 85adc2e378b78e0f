"""A limit on what the device may hold: a request above it is refused before anything is changed.

Who allocates asks :func:`make_room` first: a plan knows the bytes of its results, and so does a compiled program. Storages
are counted in :mod:`.ledger`. Imported by ``import torch``, and as light as that.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from . import config, core_memory
from .ledger import ledger, note_peak, now
from .sizes import readable

if TYPE_CHECKING:
    from .operators import Operator
    from .plan import Plan
    from .program import Program

_limit: int | None = None  # bytes, as set; a fraction of it may be all that this process takes
_limit_name = ""
_fraction = 1.0
_chosen = False  # whether the variable has had its say: the device has started, or somebody has set a limit


def check_device(device: Any) -> None:
    from .device import _index

    _index(device)


def machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def set_memory_limit(limit: int | str | None) -> None:
    """Refuse whatever would make the device hold more than `limit`; None: no limit (ours; TorchNeuron has no such function).

    `limit` is in bytes, or a text as ``SHAKEDOWN_MEMORY_LIMIT`` has it: ``"24GiB"``, ``"trn2"``, ``"trn2:lnc1"``.

    Raises:
        ValueError: `limit` is not a whole number above zero, and no such text.
    """
    global _chosen
    name = "torch.neuron.set_memory_limit"
    if isinstance(limit, str):
        try:
            nbytes = core_memory.memory_of(limit)
        except ValueError as allowed:
            raise ValueError(f"a memory limit of {limit!r} cannot be used: it must be {allowed}") from None
        _set(nbytes, f"{name}({limit!r})")
    elif limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit > 0):
        _set(limit, name)
    else:
        raise ValueError(
            f'a memory limit is a whole number of bytes above zero, a text such as "24GiB", or None; got {limit!r}'
        )
    _chosen = True


def memory_limit() -> int | None:
    """The bytes that this process may hold: the limit, or the fraction of it that was asked for. None: as many as there are.

    Before the device's first use too: what the variable says will count then.

    Raises:
        ConfigError: the variable is no size, and nobody has set another limit.
    """
    if not _chosen:
        nbytes = config.MEMORY_LIMIT()
        if nbytes is not None:
            return _part_of(nbytes)
    return ledger.limit


def _part_of(nbytes: int) -> int:
    return int(nbytes * _fraction) if _fraction < 1 else nbytes


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Let this process hold `fraction` of the limit, or of the machine's memory where none is set.

    Raises:
        TypeError, ValueError: `fraction` is no number between 0 and 1, or `device` no device of this process.
    """
    global _fraction
    check_device(device)
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _fraction = float(fraction)
    _set(_limit, _limit_name)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """What :func:`set_per_process_memory_fraction` was given; 1.0 before."""
    check_device(device)
    return _fraction


def limit_by_variable() -> None:
    """Take the limit of ``SHAKEDOWN_MEMORY_LIMIT``. Called once, when the device starts.

    Raises:
        ConfigError: it is no size.
    """
    global _chosen
    if _chosen:
        return
    nbytes = config.MEMORY_LIMIT()
    if nbytes is not None:
        text = config.text_of(config.MEMORY_LIMIT.name)
        _set(nbytes, config.MEMORY_LIMIT.name + (f"={text}" if core_memory.is_name(text) else ""))
    _chosen = True


def _set(nbytes: int | None, name: str) -> None:
    global _limit, _limit_name
    _limit, _limit_name = nbytes, "" if nbytes is None else name
    if nbytes is None:
        nbytes = machine_memory() if _fraction < 1 else None
    ledger.limit = None if nbytes is None else _part_of(nbytes)


def make_room(nbytes: int) -> None:
    """Before `nbytes` more are allocated: see that the limit allows it. What Python's collector holds on to is freed first.

    Raises:
        torch.OutOfMemoryError: it does not. Nothing has been allocated.
    """
    limit = ledger.limit
    if limit is None or nbytes <= 0 or now() + nbytes <= limit or getattr(_here, "reads", False):
        return
    ledger.retries += 1
    gc.collect()
    if now() + nbytes > limit:
        refuse(nbytes)


_here = threading.local()


@contextmanager
def to_read() -> Iterator[None]:
    """While open, this thread is refused nothing: what is made here is read and gone, and a full device must be readable."""
    _here.reads = True
    try:
        yield
    finally:
        _here.reads = False


def refuse(nbytes: int) -> NoReturn:
    """Raise because `nbytes` more are too many: for the limit, or, where none is set, for the machine."""
    ledger.ooms += 1
    held, limit = now(), ledger.limit
    total = machine_memory() if limit is None else limit
    why = [f"set by {_limit_name}"] if _limit_name else []
    if _fraction < 1:
        why.append(f"{_fraction:.0%} of the memory by torch.neuron.set_per_process_memory_fraction")
    what = (
        "the memory of this machine, which stands in for the device's"
        if limit is None
        else f"a limit, {', '.join(why)}"
    )
    raise torch.OutOfMemoryError(
        f"Neuron out of memory. Tried to allocate {readable(nbytes)}. Device 0 has a total capacity of {readable(total)} of "
        f"which {readable(max(0, total - held))} is free. {readable(held)} is allocated by PyTorch. The capacity is {what}. "
        "torch.neuron.memory_summary() tells more."
    ) from None


def make_room_for(operator: Operator, plan: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """:func:`make_room` for a call of `operator`: its results and working memory. What is refused has drawn no random numbers.

    Raises:
        torch.OutOfMemoryError: the limit does not allow it.
    """
    try:
        make_room(getattr(plan, "needs", 0))  # what runs on the CPU asks for its results when they come
    except torch.OutOfMemoryError:
        if operator.random and (operator.draws is None or operator.draws(args, kwargs)):
            from . import rng

            rng.give_back(kwargs.get("generator"))
        raise


def prepare(
    operator: Operator, plan: Plan, inputs: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """:func:`make_room_for` a new plan, which is compiled first, since only then its working memory is known.

    Raises:
        torch.OutOfMemoryError: the limit does not allow it. Nothing has run.
        Exception: whatever compiling raises.
    """
    from . import runtime

    make_room_for(operator, plan, args, kwargs)  # before time goes into compiling what is too large anyway
    temp = runtime.prepare(plan.run, inputs)
    if temp:
        plan.temp, plan.needs = temp, plan.nbytes + temp
        plan.run = _noted(plan.run, plan.nbytes)
        make_room_for(operator, plan, args, kwargs)


def _noted(run: Any, results: int) -> Callable[..., Any]:
    """`run`, the program of a plan that needs working memory: while it runs, the peak holds that and its new results."""
    runner = run.runner

    def call(*inputs: Any) -> Any:
        if not ledger.replays:
            note_peak(results + runner.temp)
        return run(*inputs)

    call.runner = runner  # type: ignore[attr-defined]
    return call


def has_room(nbytes: int) -> bool:
    """Whether `nbytes` of working memory are there, for whoever can do with less."""
    limit = ledger.limit
    return limit is None or now() + nbytes <= limit


class Needs:
    """What one compiled program needs while it runs: its results that are new, and what XLA says that it needs besides.

    ``temp`` is 0 until the program has been compiled, or where XLA does not say.
    """

    __slots__ = ("results", "temp")

    def __init__(self, program: Program) -> None:
        from .buffer import storage_nbytes
        from .views import View

        fresh = {step.to: step.view for step in program.steps if step.kind == "pack"}
        views = [view for ref in program.results if isinstance(view := fresh.get(ref), View)]
        self.results = sum(storage_nbytes(v.dtype, v.size, v.stride) for v in views)
        self.temp = 0

    def begin(self) -> None:
        """Before the program runs, and before anything is changed for it.

        Raises:
            torch.OutOfMemoryError: the limit does not allow it.
        """
        if ledger.limit is not None:
            make_room(self.results + self.temp)
        note_peak(self.results + self.temp)

    def learn(self, run: Any, inputs: Sequence[Any]) -> None:
        """:meth:`begin` for the first run of `run`, from :func:`.runtime.compile`, which is compiled for `inputs` here.

        Raises:
            torch.OutOfMemoryError: the limit does not allow it. Nothing has run.
            Exception: whatever compiling raises.
        """
        from . import runtime

        make_room(self.results)  # before time goes into compiling what is too large anyway
        self.temp = runtime.prepare(run, inputs)
        self.begin()
