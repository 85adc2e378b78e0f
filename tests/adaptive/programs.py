"""Random programs over a pool of live tensors, written once under plain eager execution and then replayed.

A program is a list of steps over numbered slots. Writing it runs it: what a step may take depends on the sizes and dtypes
that the steps before it gave. A replay takes the same steps, and a :data:`Policy` says which slots are kept to the end
although no step takes them any more, so that liveness differs between replays of the same operators.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .bits import Difference, difference
from .running import plain_eager

Policy = Callable[[int, int], bool]  # (slot, round) -> whether it is kept


@dataclass(frozen=True)
class Step:
    """``gives = run(*takes)``. `error` is the type of what it raises; `dead` are the slots that no later step takes."""

    name: str
    run: Callable[..., Any]
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    error: type[Exception] | None
    dead: tuple[int, ...] = ()

    def __str__(self) -> str:
        given = ", ".join(f"s{i}" for i in self.gives)
        head = f"{given} = " if given else ""
        tail = "" if self.error is None else f"  # raises {self.error.__name__}"
        return f"{head}{self.name}({', '.join(f's{i}' for i in self.takes)}){tail}"


@dataclass
class Outcome:
    """What a run left: the slots that were kept, and what was read or raised on the way, by number of the step."""

    slots: dict[int, torch.Tensor] = field(default_factory=dict)
    read: dict[int, Any] = field(default_factory=dict)
    raised: dict[int, Exception] = field(default_factory=dict)

    def grads(self) -> dict[int, torch.Tensor]:
        found = {}
        for number, tensor in self.slots.items():
            if tensor.is_leaf and tensor.requires_grad and tensor.grad is not None:
                found[number] = tensor.grad
        return found

    def aliases(self, among: Sequence[int]) -> list[int]:
        """For each slot, the first one that shares its storage."""
        first: dict[int, int] = {}
        return [first.setdefault(self.slots[i].untyped_storage()._cdata, i) for i in among]


@dataclass
class Program:
    seed: int
    steps: list[Step]
    start: list[torch.Tensor]  # of the first slots, on the CPU
    expected: Outcome  # of plain eager execution; every slot is kept

    def __str__(self) -> str:
        head = [f"s{i} = {str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for i, t in enumerate(self.start)]
        return "\n".join([*head, *map(str, self.steps)])

    def replay(self, keep: Policy, round: int = 0) -> Outcome:
        """Run the steps. Slots that no later step takes are dropped at once unless `keep` says otherwise."""
        torch.manual_seed(self.seed)
        slots: dict[int, Any] = {i: t.to("neuron") for i, t in enumerate(self.start)}
        outcome = Outcome(slots)
        for number, step in enumerate(self.steps):
            _take(number, step, outcome)
            for slot in step.dead:
                if not keep(slot, round):
                    slots.pop(slot, None)
        return outcome

    def differences(self, actual: Outcome) -> Iterator[tuple[str, Difference]]:
        """(where, what) for all that is not as expected, bit by bit (any NaN is as good as any other)."""
        expected, kept = self.expected, sorted(actual.slots)
        named = {i: str(step) for step in self.steps for i in step.gives}
        for i in kept:
            found = difference(actual.slots[i], expected.slots[i])
            if found is not None:
                yield f"s{i}, made by {named.get(i, 'the start')}", found
        wanted, got = expected.grads(), actual.grads()
        for i in kept:
            if (i in wanted) is not (i in got):
                yield f"gradient of s{i}", Difference("only one of them has one")
            elif i in got:
                found = difference(got[i], wanted[i])
                if found is not None:
                    yield f"gradient of s{i}", found
        if actual.aliases(kept) != expected.aliases(kept):
            yield "storages", Difference("other slots share one")
        for number, value in expected.read.items():
            found = difference(actual.read[number], value)
            if found is not None:
                yield f"read by step {number}: {self.steps[number]}", found
        for number, error in expected.raised.items():
            got_error = actual.raised.get(number)
            if type(got_error) is not type(error) or not str(got_error).startswith(str(error)):
                yield f"raised by step {number}", Difference(f"{got_error!r}, expected {error!r}")


class Unexpected(Exception):
    """A step raised that did not when the program was written, or the other way round."""


def _take(number: int, step: Step, outcome: Outcome) -> None:
    slots = outcome.slots
    if step.error is None:
        try:
            made = step.run(*[slots[i] for i in step.takes])
        except Exception as error:
            raise Unexpected(f"step {number}, {step}: {type(error).__name__}: {error}") from error
        _put(number, step.gives, made, outcome)
        return
    try:
        step.run(*[slots[i] for i in step.takes])
        torch.neuron.synchronize()  # an error that the data cause comes when the operator runs
    except Exception as error:
        outcome.raised[number] = error.with_traceback(None)
        return
    raise Unexpected(f"step {number}, {step}: nothing was raised")


def _put(number: int, gives: tuple[int, ...], made: Any, outcome: Outcome) -> None:
    if isinstance(made, (list, tuple)) and gives:
        outcome.slots.update(zip(gives, made))
    elif gives:
        outcome.slots[gives[0]] = made
    elif made is not None:
        outcome.read[number] = made


class Nothing(Exception):
    """The pool has nothing that an operator could take."""


class Writer:
    """Writes a program by running it. Families of operators (:mod:`.operators`) call :meth:`pick` and :meth:`emit`."""

    def __init__(self, seed: int, room: int = 14) -> None:
        self.random = random.Random(seed)
        self.seed, self.room = seed, room
        self.steps: list[Step] = []
        self.outcome = Outcome()
        self.pool: list[int] = []
        self.count = 0

    def of(self, slot: int) -> torch.Tensor:
        return self.outcome.slots[slot]

    def pick(self, want: Callable[[torch.Tensor], bool] = lambda t: True) -> int:
        """A slot of the pool whose tensor is as wanted; new ones are likelier.

        Raises:
            Nothing: there is none.
        """
        found = [i for i in self.pool if want(self.of(i))]
        if not found:
            raise Nothing
        return self.random.choice(found[-4:] if self.chance(0.4) else found)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def emit(self, name: str, run: Callable[..., Any], *takes: int) -> None:
        """Run one step and note it. Tensors that it returns and that are no slot yet get one."""
        error = made = None
        try:
            made = run(*[self.of(i) for i in takes])
        except Exception as problem:
            error = problem.with_traceback(None)
        number = len(self.steps)
        tensors = [made] if isinstance(made, torch.Tensor) else list(made) if isinstance(made, (list, tuple)) else []
        device_tensors = bool(tensors) and all(
            isinstance(t, torch.Tensor) and t.device.type == "neuron" for t in tensors
        )
        gives: tuple[int, ...] = ()
        if device_tensors:
            gives = tuple(range(self.count, self.count + len(tensors)))
            self.count += len(tensors)
        self.steps.append(Step(name, run, takes, gives, None if error is None else type(error)))
        if error is not None:
            self.outcome.raised[number] = error
            return
        _put(number, gives, made, self.outcome)
        for slot in gives:
            self._admit(slot)

    def _admit(self, slot: int) -> None:
        """Let later steps take `slot`, unless it tells little: too many elements, or values that are not finite."""
        tensor = self.of(slot)
        if not 0 < tensor.numel() <= 4096:
            return
        floating = tensor.is_floating_point() or tensor.is_complex()
        if floating and not bool(torch.isfinite(tensor.detach()).all()) and self.chance(0.9):
            return
        self.pool.append(slot)
        while len(self.pool) > self.room:
            self.pool.pop(self.random.randrange(len(self.pool)))


_START = (
    *((torch.float32, s) for s in ((4, 6), (6, 4), (3, 4, 6), (2, 3, 8, 8), (6,), ())),
    *((torch.bfloat16, s) for s in ((4, 6), (6, 4), (6,))),
    *((torch.float16, s) for s in ((4, 6), (4, 1))),
    *((torch.float64, s) for s in ((4, 6), (6, 6))),
    *((d, (4, 6)) for d in (torch.int64, torch.int32, torch.bool, torch.complex64)),
)


def _start(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for dtype, shape in _START:
        if dtype.is_floating_point or dtype.is_complex:
            wide = torch.complex64 if dtype.is_complex else torch.float32
            made.append(torch.randn(shape, dtype=wide, generator=generator).to(dtype))
        else:
            made.append(torch.randint(0, 2 if dtype is torch.bool else 9, shape, generator=generator).to(dtype))
    return made


def write(seed: int, length: int | None = None) -> Program:
    """The program of `seed`, with `length` steps (20 to 200 when None), and what plain eager execution makes of it."""
    from .operators import FAMILIES

    writer = Writer(seed)
    if length is None:
        length = writer.random.randint(20, 200)
    torch.manual_seed(seed)
    with plain_eager():
        before = _recorded()
        start = _start(seed)
        for i, tensor in enumerate(start):
            writer.outcome.slots[i] = tensor.to("neuron")
            writer.pool.append(i)
        writer.count = len(start)
        while len(writer.steps) < length:
            family = writer.random.choices(list(FAMILIES), list(FAMILIES.values()))[0]
            try:
                family(writer)
            except Nothing:
                continue
        torch.neuron.synchronize()
        assert _recorded() == before, "plain eager execution was recorded"
    return Program(seed, _with_ends(writer.steps, writer.count), start, writer.outcome)


def _recorded() -> Any:
    found = torch.neuron.adaptive.status().get("operators")
    return None if found is None else (found["fused"], found["one_by_one"])


def _with_ends(steps: list[Step], count: int) -> list[Step]:
    """The steps, each knowing which slots end with it."""
    last = dict.fromkeys(range(count), 0)
    for number, step in enumerate(steps):
        last.update(dict.fromkeys((*step.takes, *step.gives), number))
    ends: list[list[int]] = [[] for _ in steps]
    for slot, number in last.items():
        ends[number].append(slot)
    return [Step(s.name, s.run, s.takes, s.gives, s.error, tuple(e)) for s, e in zip(steps, ends)]
