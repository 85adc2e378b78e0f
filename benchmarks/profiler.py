"""What profiling costs: while a profile runs, when none does, and what is always on, the tallies of operators.

A tally is one addition for each operator. What it costs is measured against a device whose kernels were built without it, and
without the question whether anybody listens, which is all that the profiler costs while it is off.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from .decoder import SMALL
from .measure import compare
from .rows import Row, compared
from .side import Child
from .works import Training, decoder, training

_TOGETHER = 5  # steps of one profile: beginning and ending it is part of the figure
# A profile with lines takes a second, its tables and the collector included.
_SHORT: dict[str, int] = {"blocks": 7, "warmup": 1, "attempts": 2}
_TRACKED = 1.03
_ON = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


class _Untracked(ast.NodeTransformer):
    """Takes tallies, and what is done for listeners, out of a function."""

    def __init__(self) -> None:
        self.removed = 0

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt | None:
        if isinstance(node.target, ast.Attribute) and node.target.attr == "runs":
            self.removed += 1
            return None
        return node

    def visit_If(self, node: ast.If) -> ast.stmt | None:
        if ast.unparse(node.test) in ("events.listening", "start_ns"):
            self.removed += 1
            return None
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        if ast.unparse(node.test) == "events.listening":
            self.removed += 1
            return node.orelse
        return node


def _rebuilt(name: str, space: dict[str, Any]) -> None:
    """Define ``dispatch.<name>`` without tracking in `space`.

    Raises:
        RuntimeError: it does nothing of that kind.
    """
    from shakedown.neuron import dispatch

    taker = _Untracked()
    tree = taker.visit(ast.parse(textwrap.dedent(inspect.getsource(getattr(dispatch, name)))))
    if taker.removed < 2:
        raise RuntimeError(f"dispatch.{name} does no tracking that could be left out")
    exec(compile(ast.fix_missing_locations(tree), dispatch.__file__, "exec"), space)


def without_tracking() -> None:
    """Have the kernels of this process, which has not used the device yet, built without tallies and listeners.

    Raises:
        RuntimeError: the device is in use, or its kernels have nothing of that kind.
    """
    if torch.neuron.is_initialized():
        raise RuntimeError("the kernels are there already")
    from shakedown.neuron import dispatch

    for name in ("kernel_of", "_finish"):
        _rebuilt(name, vars(dispatch))


def untracked() -> Callable[[], torch.Tensor]:
    """The small decoder's eager step on such a device."""
    without_tracking()
    return training(SMALL, "neuron")


def after_a_profile() -> Callable[[], torch.Tensor]:
    """The small decoder's eager step, in a process that has been profiled."""
    step = training(SMALL, "neuron")
    with profile(activities=_ON, with_stack=True, record_shapes=True, profile_memory=True) as taken:
        step()
    taken.key_averages()
    return step


def _kernels() -> tuple[Callable[[], None], Callable[[], None]]:
    """100 calls of the kernel of an addition, without PyTorch's dispatcher above it: as it is, and without tracking."""
    x = torch.ones(16, 16, device="neuron")
    from shakedown.neuron import dispatch

    space = dict(vars(dispatch))
    _rebuilt("kernel_of", space)
    operator = dispatch.operator_of(torch.ops.aten.add.Tensor)

    def calls(kernel: Callable[..., torch.Tensor]) -> Callable[[], None]:
        def work() -> None:
            for _ in range(100):
                kernel(x, x)

        return work

    return calls(dispatch.kernel_of(operator)), calls(space["kernel_of"](operator))


def tracking() -> Iterator[Row]:
    yield compared(
        "op tracking: 100 additions of 16x16, the kernel alone",
        "the same without tallies and listeners",
        _TRACKED,
        compare(*_kernels(), repeats=20, blocks=51),
    )
    with Child("small") as ours, Child("small, untracked") as peer:
        found = compare(ours, peer, repeats=20, blocks=21)
    yield compared(
        f"op tracking: eager step of the small decoder ({SMALL})",
        "the same without tallies and listeners",
        _TRACKED,
        found,
    )


def off() -> Iterator[Row]:
    with Child("small, after a profile") as ours, Child("small") as peer:
        found = compare(ours, peer, repeats=10, blocks=21, attempts=2)
    yield compared(
        f"profiler off: eager step of the small decoder ({SMALL})", "a process that was never profiled", _TRACKED, found
    )


def on() -> Iterator[Row]:
    step = Training(*decoder(SMALL), "neuron").step
    step()

    def under(how: Callable[[], AbstractContextManager[object]]) -> Callable[[], None]:
        def work() -> None:
            with how():
                for _ in range(_TOGETHER):
                    step()

        return work

    device = under(lambda: profile(activities=_ON))
    lines = under(lambda: profile(activities=_ON, with_stack=True))
    host_lines = under(lambda: profile(activities=[ProfilerActivity.CPU], with_stack=True))
    for label, ours, peer_label, peer in (
        ("CPU and device", device, "no profile", under(nullcontext)),
        (
            "CPU and device",
            device,
            "a profile of the CPU alone",
            under(lambda: profile(activities=[ProfilerActivity.CPU])),
        ),
        ("CPU and device, with_stack", lines, "a profile of the CPU alone, with_stack", host_lines),
    ):
        name = f"profiler on ({label}): {_TOGETHER} eager steps of the small decoder"
        yield compared(name, peer_label, None, compare(ours, peer, repeats=1, **_SHORT))


CASES: dict[str, Callable[[], Iterator[Row]]] = {
    "profiler-off": off,
    "profiler-on": on,
    "tracking": tracking,
}
