"""One sample on the CPU and on the device: forward, gradients, the in-place and ``out=`` forms, other layouts, errors."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from shakedown.neuron import events

from . import databases
from .compare import (
    GRADIENT_SCALE,
    TIES,
    UP_TO_SIGNS,
    VALUES_ARE_FREE,
    Difference,
    compare,
    draws,
    structure,
    widened,
)
from .databases import Entry, mapped, tensors
from .results import Check, Row, Status

BY_OPERATOR = "a graph ran operator by operator"
_NOT_CAPTURED = "Dynamo and AOTAutograd do not capture it as one graph on the CPU"
_Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Ran:
    """Names of the operators of a check: on the CPU, through PyTorch's decompositions, on the device in any way."""

    fallbacks: list[str]
    decomposed: list[str]
    executed: list[str]


class Bench:
    """Runs the checks of one entry in one dtype and mode."""

    def __init__(self, entry: Entry, dtype: torch.dtype, mode: str) -> None:
        self.entry, self.dtype, self.mode = entry, dtype, mode
        self.info = entry.info
        self._process: Callable[[Any], Any] = lambda x: x  # of the sample at hand: what of its results is unique

    # --- rows -----------------------------------------------------------------------------------------------------

    def row(self, check: Check, sample: int, status: Status, call: _Call | None, **more: Any) -> Row:
        dtype = str(self.dtype).removeprefix("torch.")
        shapes = " ".join(str(tuple(t.shape)).replace(" ", "") for t in tensors(list(call)))[:200] if call else ""
        return Row(self.entry.suite, self.entry.name, dtype, self.mode, check, sample, status, shapes, **more)

    def judged(self, check: Check, sample: int, call: _Call, difference: Difference, path: Ran) -> Row:
        """The row of a check that ran: right (by which path) or wrong."""
        status: Status
        message = difference.problem
        if self.mode == "compile" and not message and path.executed and path.executed[0].startswith("aten::"):
            message = BY_OPERATOR
        if difference.problem:
            status = "wrong-gradient" if check == "gradient" else "wrong"
        else:
            status = "fallback" if path.fallbacks else "decomposed" if path.decomposed else "native"
        return self.row(
            check,
            sample,
            status,
            call,
            absolute_error=difference.absolute,
            relative_error=difference.relative,
            judged_by_float64=difference.judged_by_float64,
            message=message,
            **asdict(path),
        )

    def raised(self, check: Check, sample: int, call: _Call, error: Exception) -> Row:
        """The row of a check that raised on the device although the CPU did not."""
        return self.judged(check, sample, call, Difference(described(error)), ran())

    # --- samples --------------------------------------------------------------------------------------------------

    def sample(self, number: int, sample: Any, *, gradients: bool, variants: bool) -> Iterator[Row]:
        """All checks of one sample."""
        host: _Call = (sample.input, sample.args, sample.kwargs)
        there = databases.arguments(self.entry, host)  # before the CPU runs: some entries write into their input
        pristine: _Call = host if gradients else copy.deepcopy(host)
        process = self._process = sample.output_process_fn_grad or (lambda x: x)
        try:
            databases.seed()
            expected = self.info.op(host[0], *host[1], **host[2])
        except Exception as error:
            yield self.row("forward", number, "skipped", host, message=f"the CPU raises {described(error)}")
            return
        free = self.info.name in VALUES_ARE_FREE or draws(sample)
        op = self._operator()
        events.clear()
        try:
            databases.seed()
            actual = op(there[0], *there[1], **there[2])
        except Exception as error:
            if self.mode == "compile" and not self._captures(pristine):
                yield self.row("forward", number, "skipped", host, message=_NOT_CAPTURED)
                return
            yield self.raised("forward", number, host, error)
            return
        yield self._judge_values("forward", number, pristine, actual, expected, free)
        if gradients:
            yield from self._gradient(number, host, there, process, actual, expected, free)
        if variants and self.mode == "eager":
            yield from self._inplace(number, pristine, free)
            yield from self._out(number, pristine, expected, free)
            yield from self._layout("noncontiguous", number, pristine, _noncontiguous, free)
            yield from self._layout("view", number, pristine, databases.set_aside, free)

    def _operator(self) -> Callable[..., Any]:
        if self.mode == "eager":
            return self.info.op
        torch._dynamo.reset()
        # A function of its own: PyTorch refuses to compile its own entry points directly.
        return torch.compile(lambda *a, **k: self.info.op(*a, **k), backend="neuron", fullgraph=True, dynamic=False)

    def _captures(self, call: _Call, *, gradients: bool = False) -> bool:
        """Whether Dynamo and AOTAutograd capture the sample on the CPU as one graph, with nothing of ours involved."""
        torch._dynamo.reset()
        op = self.info.op
        compiled = torch.compile(lambda *a, **k: op(*a, **k), backend="aot_eager", fullgraph=True, dynamic=False)
        call = mapped(call, lambda t: t.detach().clone().requires_grad_(t.requires_grad))
        try:
            outs = [t for t in tensors(compiled(call[0], *call[1], **call[2])) if t.requires_grad]
            if gradients:
                ins = [t for t in tensors(list(call)) if t.requires_grad]
                torch.autograd.grad(outs, ins, [torch.ones_like(t) for t in outs], allow_unused=True)
        except Exception:
            return False
        return True

    def _judge_values(self, check: Check, number: int, call: _Call, actual: Any, expected: Any, free: bool) -> Row:
        path = ran()
        if free:
            return self.judged(check, number, call, Difference(structure(actual, expected)), path)
        found = compare(actual, expected, **self._ties(call))
        if found.problem and not structure(actual, expected):
            if self.info.name in UP_TO_SIGNS:
                found = compare(self._process(actual), self._process(expected))
            else:
                found = compare(actual, expected, truth=self._truth(call), **self._ties(call))
        return self.judged(check, number, call, found, path)

    def _ties(self, call: _Call) -> dict[str, Any]:
        if self.info.name not in TIES:
            return {}
        dims = [a for a in call[1] if type(a) is int]
        place = 1 if self.info.name in ("topk", "kthvalue") else 0
        dim = call[2].get("dim", dims[place] if len(dims) > place else -1)
        return {"tie_source": call[0], "dim": dim}

    def _truth(self, call: _Call) -> Any:
        """The CPU's result in float64, or None where the operator has none for these arguments."""
        try:
            wide = widened(list(call))
            databases.seed()
            return self.info.op(wide[0], *wide[1], **wide[2])
        except Exception:
            return None

    def _gradient(
        self, number: int, host: _Call, there: _Call, process: Any, actual: Any, expected: Any, free: bool
    ) -> Iterator[Row]:
        if self.info.name in TIES and _other_indices(actual, expected):
            yield self.row(
                "gradient", number, "skipped", host, message="another one of several equal elements was chosen"
            )
            return
        try:
            outs = [t for t in tensors(process(expected)) if t.requires_grad]
            ins = [t for t in tensors(list(host)) if t.requires_grad]
            if not outs or not ins:
                return
            seeds = [torch.randn_like(t.detach()) for t in outs]
            wanted = torch.autograd.grad(outs, ins, seeds, allow_unused=True)
        except Exception as error:
            yield self.row("gradient", number, "skipped", host, message=f"the CPU raises {described(error)}")
            return
        events.clear()
        try:
            outs_there = [t for t in tensors(process(actual)) if t.requires_grad]
            ins_there = [t for t in tensors(list(there)) if t.requires_grad]
            if len(outs) != len(outs_there) or len(ins) != len(ins_there):
                yield self.judged("gradient", number, host, Difference("other outputs require a gradient"), ran())
                return
            got = torch.autograd.grad(outs_there, ins_there, databases.moved(seeds), allow_unused=True)
        except Exception as error:
            if self.mode == "compile" and not self._captures(host, gradients=True):
                yield self.row("gradient", number, "skipped", host, message=_NOT_CAPTURED)
                return
            yield self.raised("gradient", number, host, error)
            return
        path = ran()
        if [g is None for g in got] != [g is None for g in wanted]:
            found = Difference("a gradient is missing on one side")
        elif free:
            found = Difference(structure(got, wanted))
        else:
            found = compare(got, wanted, scale=GRADIENT_SCALE)
            if found.problem and not structure(got, wanted):
                truth = self._true_gradient(host, process, seeds)
                found = compare(got, wanted, scale=GRADIENT_SCALE, truth=truth)
        yield self.judged("gradient", number, host, found, path)

    def _true_gradient(self, host: _Call, process: Any, seeds: list[torch.Tensor]) -> Any:
        try:
            wide = widened(list(host))
            databases.seed()
            outs = [t for t in tensors(process(self.info.op(wide[0], *wide[1], **wide[2]))) if t.requires_grad]
            ins = [t for t in tensors(wide) if t.requires_grad]
            return torch.autograd.grad(outs, ins, [s.to(o.dtype) for s, o in zip(seeds, outs)], allow_unused=True)
        except Exception:
            return None

    # --- other forms of the same call -------------------------------------------------------------------------------

    def _inplace(self, number: int, call: _Call, free: bool) -> Iterator[Row]:
        form = self.info.inplace_variant
        if form is None or not isinstance(call[0], torch.Tensor):
            return
        here = copy.deepcopy(mapped(call, torch.Tensor.detach))
        there = databases.arguments(self.entry, here)
        try:
            databases.seed()
            expected = form(here[0], *here[1], **here[2])
        except Exception:
            return  # the CPU has no such form for these arguments (the result does not fit the input)
        yield from self._run(
            "inplace", number, call, expected, free, lambda: form(there[0], *there[1], **there[2]), lambda: there[0]
        )

    def _out(self, number: int, call: _Call, expected: Any, free: bool) -> Iterator[Row]:
        if not self.info.supports_out or "out" in call[2]:
            return
        here = mapped(call, torch.Tensor.detach)
        plain = isinstance(expected, torch.Tensor)
        if not plain and not (
            isinstance(expected, (tuple, list)) and all(isinstance(t, torch.Tensor) for t in expected)
        ):
            return

        def room(device: str) -> Any:
            # Of zeros: for some empty transforms nobody writes into `out`.
            made = [torch.zeros_like(t.detach(), device=device) for t in tensors(expected)]
            return made[0] if plain else tuple(made)

        try:
            databases.seed()
            wanted = self.info.op(here[0], *here[1], **here[2], out=room("cpu"))
        except Exception:
            return
        there = databases.arguments(self.entry, here)
        yield from self._run(
            "out",
            number,
            call,
            wanted,
            free,
            lambda: self.info.op(there[0], *there[1], **there[2], out=room("neuron")),
        )

    def _layout(
        self, check: Check, number: int, call: _Call, relaid: Callable[[torch.Tensor], torch.Tensor], free: bool
    ) -> Iterator[Row]:
        try:
            here = mapped(call, lambda t: relaid(t.detach()))
            there = databases.arguments(self.entry, here)
            databases.seed()
            expected = self.info.op(here[0], *here[1], **here[2])
        except Exception:
            return  # some operators want contiguous arguments, on the CPU too
        yield from self._run(check, number, call, expected, free, lambda: self.info.op(there[0], *there[1], **there[2]))

    def _run(
        self,
        check: Check,
        number: int,
        call: _Call,
        expected: Any,
        free: bool,
        act: Callable[[], Any],
        result: Callable[[], Any] | None = None,
    ) -> Iterator[Row]:
        events.clear()
        try:
            databases.seed()
            returned = act()
            actual = result() if result is not None else returned
        except Exception as error:
            yield self.raised(check, number, call, error)
            return
        yield self._judge_values(check, number, call, actual, expected, free)

    # --- errors -----------------------------------------------------------------------------------------------------

    def error(self, number: int, given: Any) -> Row:
        """One of the entry's error inputs: the device must raise an exception of the CPU's type."""
        sample = given.sample_input
        host: _Call = (sample.input, sample.args, sample.kwargs)
        there = databases.arguments(self.entry, host)
        expected = _raised(lambda: self.info.op(host[0], *host[1], **host[2]))
        if expected is None:
            return self.row("error", number, "skipped", host, message="the CPU accepts it")
        actual = _raised(lambda: self.info.op(there[0], *there[1], **there[2]))
        if actual is None:
            return self.row("error", number, "error-differs", host, message=f"accepted; the CPU: {described(expected)}")
        if type(actual) is not type(expected):
            message = f"{described(actual)}; the CPU: {described(expected)}"
            return self.row("error", number, "error-differs", host, message=message)
        return self.row("error", number, "same-error", host)


def _raised(act: Callable[[], Any]) -> Exception | None:
    try:
        act()
    except Exception as error:
        return error
    return None


def described(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _other_indices(actual: Any, expected: Any) -> bool:
    pairs = zip(tensors(actual), tensors(expected))
    return any(e.dtype is torch.int64 and not torch.equal(a.cpu(), e) for a, e in pairs)


def _noncontiguous(tensor: torch.Tensor) -> torch.Tensor:
    from torch.testing._internal.common_utils import noncontiguous_like

    return noncontiguous_like(tensor) if tensor.layout is torch.strided else tensor


def ran() -> Ran:
    """The operators that ran since the events were cleared, by the way they took."""
    rows = events.snapshot()
    executed = [r for r in rows if r["kind"] == "execute"]
    return Ran(
        fallbacks=sorted({r["name"] for r in rows if r["kind"] == "fallback"}),
        decomposed=sorted({r["name"] for r in executed if r["detail"] == events.DECOMPOSED}),
        executed=sorted({r["name"] for r in executed}),
    )


def quiet() -> None:
    """Warnings of the operators under test say nothing about the device."""
    warnings.simplefilter("ignore")
