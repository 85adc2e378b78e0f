"""Every operator of a region, judged from its own inputs.

A dispatch mode sees each operator with the very tensors that the device has. They are copied to the host, the operator is
run there again at the same precision and in float64, and its result on the device is judged against that: an error that
came in with the inputs is in the truth too, so only the operator that makes an error is named.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import shakedown

from ..judge import bisect as judge
from ..requirements import Numerics
from . import again, trees
from .result import NotJudged, Numbers

_OURS = Path(shakedown.__file__).parent
_WORKLOADS = str(_OURS / "readiness" / "workloads")
_PACKAGES = (str(Path(torch.__file__).parent), str(_OURS))


def user_line() -> str:
    """``file:line`` of the innermost caller that is neither torch nor this package; the built-in workloads count as a user's."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((*_PACKAGES, "<")) or name.startswith(_WORKLOADS):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


@dataclass(frozen=True)
class Place:
    """Where in the program an operator was called: the module on top, its call, and the user's line."""

    module: str | None
    call: int
    line: str


@dataclass
class Call:
    """One operator with host copies of what it was given and what it made."""

    func: Any
    args: Any
    kwargs: Any
    made: dict[str, Tensor]
    place: Place
    number: int
    phase: str
    on_host: list[bool] = field(default_factory=list)  # of each tensor argument in order: it was on the CPU
    raised: str = ""


@dataclass
class Judged:
    """The judgement of one operator: its numbers, or why there are none."""

    numbers: list[Numbers] = field(default_factory=list)
    reason: str = ""

    @property
    def wrong(self) -> bool:
        return any(n.findings for n in self.numbers)


def terms(call: Call, limit: int) -> int:
    """Terms in the operator's longest sum, at most: the workload's own number, or the elements of its largest operand."""
    sizes = [value.numel() for _, value in trees.leaves([call.args, call.kwargs])]
    return max(1, min(limit, max(sizes, default=1)))


def judge_call(call: Call, limit: int, demand: Numerics) -> Judged:
    """Run the operator again on the host and compare. What the optimizer writes is judged as an update."""
    if not call.made and not call.raised:
        return Judged()
    try:
        truth = again.run(call.func, call.args, call.kwargs, wide=True)
        cpu = again.run(call.func, call.args, call.kwargs, wide=False)
    except Exception as error:
        lines = str(error).splitlines() or [""]
        return Judged(reason=f"the CPU cannot run it alone: {type(error).__name__}: {lines[0]:.90}")
    if call.raised:
        return Judged([judge.raised(call.raised)])
    legal = again.legal_positions(call.func, call.args, call.made, cpu, call.kwargs)
    before = dict(trees.leaves(again.written(call.func, call.args, call.kwargs))) if call.phase == "optimizer" else {}
    triples = []
    for name, value in call.made.items():
        if name not in truth or name in legal:
            continue
        own, start = cpu.get(name), before.get(name)
        triples.append(
            judge.Triple(
                name=name,
                dtype=trees.dtype_name(value),
                device=trees.array(value),
                truth=trees.array(truth[name]),
                cpu=None if own is None else trees.array(own),
                start=None if start is None or not start.is_floating_point() else trees.array(start),
                exact=again.moves(call.func) and own is not None and own.dtype == value.dtype,
            )
        )
    numbers = judge.judge(triples, terms(call, limit), demand)
    if any(n.findings for n in numbers) and again.repeated_places(call.func, call.args, call.kwargs):
        return Judged(reason="order-dependent: it writes one place several times, and any of the values may stay")
    if triples and not numbers:
        return Judged(reason=f"no roundoff is known for {triples[0].dtype}")
    if legal:
        return Judged(numbers, "order-dependent: equal values were found at other positions")
    return Judged(numbers)


class Modules:
    """Which module runs now, and which of its calls that is."""

    def __init__(self, model: nn.Module) -> None:
        self.stack: list[tuple[str, int]] = []
        self.calls: Counter[str] = Counter()
        self._handles: list[Any] = []
        for name, module in model.named_modules():
            self._handles.append(module.register_forward_pre_hook(self._enter(name)))
            self._handles.append(module.register_forward_hook(self._leave))

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any) -> None:
            self.stack.append((name, self.calls[name]))
            self.calls[name] += 1

        return enter

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self.stack.pop()

    def inside(self, name: str, call: int) -> bool:
        return (name, call) in self.stack

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()


class Walk(TorchDispatchMode):
    """Judges the operators of one phase until the first wrong one.

    ``region`` limits the forward pass to one call of one module; None takes all. With ``keep_on_device`` nothing is read
    while the phase runs (reading would end what adaptive eager records); :meth:`finish` judges everything afterwards.
    """

    def __init__(
        self, device: torch.device, modules: Modules, limit: int, demand: Numerics, keep_on_device: bool = False
    ) -> None:
        super().__init__()
        self.device, self.modules, self.limit, self.demand = device, modules, limit, demand
        self.keep_on_device = keep_on_device
        self.phase = "forward"
        self.region: tuple[str, int] | None = None
        self.judging = False
        self.found: tuple[Call, Judged] | None = None
        self.judged = self.counted = 0
        self.not_judged: Counter[tuple[str, str]] = Counter()
        self._forward: dict[int, Place] = {}  # autograd's number of a node -> where its operator was called
        self._pending: list[Call] = []
        self._held: dict[int, list[tuple[Any, Any, Tensor]]] = {}  # storage -> places that refer to it
        # A thread of its own: inside a dispatch mode autograd is off, and some operators are judged through it.
        self._thread = ThreadPoolExecutor(1)

    def begin(self, phase: str, judging: bool, region: tuple[str, int] | None = None) -> None:
        """The operators that come now belong to `phase`."""
        self.phase, self.judging, self.region = phase, judging, region
        if judging:
            self.counted = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        place = self._place()
        self.counted += self.judging
        if not self._wanted(func, args, kwargs):
            return func(*args, **kwargs)
        if self.keep_on_device:
            return self._keep(func, args, kwargs, place)
        on_host = [value.device.type == "cpu" for _, value in trees.leaves([args, kwargs])]
        given = trees.mapped([args, kwargs], trees.host)
        call = Call(func, given[0], given[1], {}, place, self.counted, self.phase, on_host)
        try:
            result = func(*args, **kwargs)
            call.made = {n: trees.host(v) for n, v in again.outputs(func, args, kwargs, result).items()}
        except Exception as error:
            call.raised = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]:.200}"
            self._settle(call)
            raise
        self._settle(call)
        return result

    def _wanted(self, func: Any, args: Any, kwargs: Any) -> bool:
        if not self.judging or self.found is not None or not isinstance(func, torch._ops.OpOverload):
            return False
        if self.region is not None and not self.modules.inside(*self.region):
            return False
        reason = again.why_not(func, args, kwargs)
        if reason:
            self.not_judged[again.full_name(func), reason] += 1
        if reason is not None or not (func._schema.returns or again.written(func, args, kwargs)):
            return False
        wanted = kwargs.get("device")
        return any(v.device.type == self.device.type for _, v in trees.leaves([args, kwargs])) or (
            wanted is not None and torch.device(wanted).type == self.device.type
        )

    def _place(self) -> Place:
        """In the forward pass where we are; in the backward pass, where the operator was that this is the gradient of."""
        node = torch._C._current_autograd_node()
        if node is not None:
            return self._forward.get(node._sequence_nr(), Place(None, 0, ""))
        module, call = self.modules.stack[-1] if self.modules.stack else (None, 0)
        place = Place(module, call, user_line())
        if self.phase == "forward":
            self._forward.setdefault(torch.autograd._get_sequence_nr() - 1, place)
        return place

    def _settle(self, call: Call) -> None:
        self._note(call, self._thread.submit(judge_call, call, self.limit, self.demand).result())

    def _note(self, call: Call, judged: Judged) -> None:
        if judged.reason:
            self.not_judged[again.full_name(call.func), judged.reason] += 1
        if judged.numbers:
            self.judged += 1
        if judged.wrong and self.found is None:
            self.found = call, judged

    def _keep(self, func: Any, args: Any, kwargs: Any, place: Place) -> Any:
        """Hold the device's tensors. What is about to be written is copied first, for all who refer to it."""
        for _, value in trees.leaves(again.written(func, args, kwargs)):
            for holder, key, _ in self._held.pop(value.untyped_storage()._cdata, []):
                holder[key] = holder[key].clone()
        before: dict[int, Tensor] = {}
        for _, value in trees.leaves(again.written(func, args, kwargs)):
            before[id(value)] = value.clone()
        given = trees.mapped([args, kwargs], lambda t: before.get(id(t), t))
        result = func(*args, **kwargs)
        made = again.outputs(func, args, kwargs, result)
        on_host = [value.device.type == "cpu" for _, value in trees.leaves([args, kwargs])]
        call = Call(func, given[0], given[1], dict(made), place, self.counted, self.phase, on_host)
        self._hold(call.args)
        self._hold(call.kwargs)
        self._hold(call.made)
        self._pending.append(call)
        return result

    def _hold(self, holder: Any) -> None:
        items = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, value in items:
            if isinstance(value, Tensor):
                self._held.setdefault(value.untyped_storage()._cdata, []).append((holder, key, value))
            elif isinstance(value, (list, dict)):
                self._hold(value)

    def finish(self) -> None:
        """Judge what was held, in order, and stop the judging thread."""
        self._held.clear()
        for call in self._pending:
            if self.found is None:
                given = trees.mapped([call.args, call.kwargs], trees.host)
                call.args, call.kwargs = given[0], given[1]
                call.made = {name: trees.host(value) for name, value in call.made.items()}
                self._settle(call)
        self.discard()

    def discard(self) -> None:
        """Let go of what was held, and stop the judging thread."""
        self._held.clear()
        self._pending.clear()
        self._thread.shutdown()

    def left_out(self) -> tuple[NotJudged, ...]:
        """Operators that could not be judged, with the reason."""
        return tuple(NotJudged(operator=o, reason=r, count=n) for (o, r), n in sorted(self.not_judged.items()))
