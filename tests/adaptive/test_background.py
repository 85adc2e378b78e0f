"""The compiling process: what it cannot do is remembered, what it need not do is dropped, and it never outlives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from shakedown.neuron import events
from shakedown.neuron.lowering import registry
from shakedown.neuron.lowering.registry import Lowering
from shakedown.neuron.modes import adaptive as mode

from ..processes import alive, ends
from .running import ROOT, adaptive, environment, operators, python, until_fused


@pytest.fixture(autouse=True)
def nothing_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier run has left would leave the compiling process nothing to do."""
    monkeypatch.setenv("SHAKEDOWN_CACHE", "0")


def _compiler() -> Any:
    assert mode._recorder is not None
    return mode._recorder.compiler


# --- a compile that fails -----------------------------------------------------------------------------------------------

_library = torch.library.Library("shakedown_background", "FRAGMENT")
_library.define("fragile(Tensor x) -> Tensor")
_library.impl("fragile", torch.empty_like, "Meta")
_library.impl("fragile", lambda x: x * 3, "CPU")


def _fragile(x: Any) -> Any:
    main = sys.modules["__main__"].__spec__
    if main is not None and main.name.endswith("adaptive.worker"):
        raise ValueError("not in this process")
    return x * 3


@pytest.fixture
def fragile() -> Callable[[torch.Tensor], torch.Tensor]:
    """An operator that runs by itself, and whose tracing fails in the compiling process."""
    op = torch.ops.shakedown_background.fragile.default
    registry._lowerings.setdefault(op, Lowering(op, _fragile, {}))
    return op


def test_a_compile_that_failed_is_remembered_and_results_stay_right(fragile: Any) -> None:
    def run() -> torch.Tensor:
        x = torch.full((3, 5), 2.0, device="neuron")
        y = fragile(x + 1) * 2
        torch.neuron.synchronize()
        return y

    for _ in range(6):
        assert torch.equal(run().cpu(), torch.full((3, 5), 18.0))
        assert adaptive.wait(60)
    (group,) = [g for g in adaptive.groups() if "shakedown_background::fragile" in g["operators"]]
    (error,) = group["errors"]
    assert "ValueError" in error
    assert "not in this process" in error
    assert group["runs_fused"] == 0
    assert adaptive.status()["programs"] == {"ready": 0, "compiling": 0, "failed": 1}
    (row,) = [r for r in events.snapshot() if r["kind"] == "compile" and r["name"] == f"adaptive::{group['name']}"]
    assert row["count"] == 1  # never again
    assert row["detail"] == error
    assert events.total("fallback") == 0


def test_after_a_compile_that_failed_others_succeed(fragile: Any) -> None:
    for _ in range(4):
        (fragile(torch.full((3, 5), 2.0, device="neuron")) * 2).cpu()
        adaptive.wait(60)
    assert adaptive.status()["programs"]["failed"] == 1

    def run() -> torch.Tensor:
        return torch.full((3, 5), 2.0, device="neuron") * 2 + 1

    until_fused(run, lambda y: None)


# --- a process that is in trouble ---------------------------------------------------------------------------------------


@contextmanager
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The compiler, whose count of starts and troubles this test may spoil."""
    compiler = _compiler()
    monkeypatch.setattr(compiler, "starts", 0)
    monkeypatch.setattr(compiler, "trouble", None)
    yield compiler


def _segment(n: int) -> torch.Tensor:
    """A segment of its own for each `n`, all of known operators."""
    x = torch.full((2, 2), 2.0, device="neuron")
    for i in range(5):
        x = x * 2 if n >> i & 1 else x + 2
    torch.neuron.synchronize()
    return x


def _expected(n: int) -> torch.Tensor:
    x = torch.full((2, 2), 2.0)
    for i in range(5):
        x = x * 2 if n >> i & 1 else x + 2
    return x


def _known() -> None:
    for n in (0, 31, 21):
        _segment(n)


def _until(what: Callable[[], bool], seconds: float = 600) -> bool:
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(0.02)
    return what()


def test_a_process_that_keeps_dying_is_given_up_and_results_stay_right(monkeypatch: pytest.MonkeyPatch) -> None:
    _known()
    adaptive.wait(60)
    adaptive.reset()
    with _restored(monkeypatch) as compiler:
        killed: set[int] = set()
        before = compiler._process
        if before is not None:
            before.kill()
            before.wait()
        for n in range(8):
            for _ in range(3):
                assert torch.equal(_segment(n).cpu(), _expected(n))
                _until(lambda: not compiler.waiting or compiler._process not in (None, before), 20)
                process = compiler._process
                if process not in (None, before):
                    process.kill()
                    killed.add(process.pid)
            assert adaptive.wait(60)
        assert len(killed) == 3
        status = adaptive.status()
        assert status["compiler"]["state"] == "given up: the compiling process ended 3 times"
        assert status["compiler"]["starts"] == 3
        assert status["programs"]["ready"] == 0
        assert status["programs"]["failed"] <= 4
        for n in range(8):
            assert torch.equal(_segment(n).cpu(), _expected(n))
        assert operators()[0] == 0
    for n in range(8, 10):  # given up means that nothing is queued any more
        assert torch.equal(_segment(n).cpu(), _expected(n))
    assert adaptive.status()["compiler"]["queued"] == 0


def test_a_full_queue_drops_work_and_a_later_run_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    _known()
    until_fused(lambda: _segment(0), lambda _: None)  # the process runs
    compiler = _compiler()
    monkeypatch.setattr(compiler._jobs, "maxsize", 3)
    os.kill(compiler._process.pid, signal.SIGSTOP)
    try:
        for n in range(1, 9):
            for _ in range(3):
                assert torch.equal(_segment(n).cpu(), _expected(n))
        assert 3 <= adaptive.status()["compiler"]["queued"] <= 4
        assert not adaptive.wait(0.05)
        assert adaptive.status()["programs"]["compiling"] <= 4
    finally:
        os.kill(compiler._process.pid, signal.SIGCONT)
    assert adaptive.wait(60)
    assert 3 <= adaptive.status()["programs"]["ready"] - 1 <= 4
    until_fused(lambda: _segment(8), lambda x: None)
    assert torch.equal(_segment(8).cpu(), _expected(8))


def test_the_work_of_the_program_is_not_held_up_by_a_compiler_that_hangs() -> None:
    _known()
    until_fused(lambda: _segment(0), lambda _: None)
    compiler = _compiler()
    os.kill(compiler._process.pid, signal.SIGSTOP)
    try:
        for _ in range(5):
            assert torch.equal(_segment(3).cpu(), _expected(3))
        assert adaptive.status()["compiler"]["queued"] == 1
    finally:
        os.kill(compiler._process.pid, signal.SIGCONT)


# --- its end ------------------------------------------------------------------------------------------------------------

_WORK = """
import os, sys, time, torch
adaptive = torch.neuron.adaptive
from shakedown.neuron.modes import adaptive as mode

def work():
    x = torch.ones(4, device="neuron")
    for _ in range(5):
        x = x * 2
    torch.neuron.synchronize()
    return x

for _ in range(4):
    work()
    assert adaptive.wait(100)
work()
assert adaptive.status()["operators"]["fused"] > 0, adaptive.status()
pid = mode._recorder.compiler._process.pid
"""


def test_it_ends_with_the_program_and_with_work_still_queued() -> None:
    pid = int(
        python(
            _WORK
            + """
for n in range(30):  # leave some behind
    for _ in range(3):
        x = torch.ones(4, device="neuron")
        for i in range(5):
            x = x * 2 if n >> i & 1 else x + 1
        torch.neuron.synchronize()
x = x * 2  # and something recorded
print(pid)
"""
        )
    )
    assert ends(pid)


_FORK = """
import warnings; warnings.simplefilter("ignore")
waiting = torch.ones(4, device="neuron") * 2
child = os.fork()
if child == 0:
    said = []
    for use in (lambda: torch.ones(4, device="neuron"), lambda: waiting.cpu(), lambda: waiting * 2, work):
        try:
            use()
            said.append("nothing")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}"[:60])
    print("child", os.getpid(), *said, sep="|", flush=True)
    time.sleep(1200)
    os._exit(0)
time.sleep(1)
assert waiting.tolist() == [2.0] * 4
before = adaptive.status()["operators"]["fused"]
assert work().tolist() == [32.0] * 4
assert adaptive.status()["operators"]["fused"] > before
print("parent", pid, child, sep="|", flush=True)
time.sleep(1200)
"""


def test_a_forked_child_neither_uses_nor_holds_it_and_it_ends_when_the_program_is_killed() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_WORK + _FORK)],
        env=environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = dict(process.stdout.readline().rstrip().split("|", 1) for _ in range(2))
    child, *errors = said["child"].split("|")
    pid, child_again = map(int, said["parent"].split("|"))
    try:
        assert int(child) == child_again
        refused = "ShakedownError: Cannot re-initialize the neuron device in a forked"
        assert [e[:40] for e in errors] == [
            refused[:40],
            "RuntimeError: this tensor has no value, because an operator"[:40],
            refused[:40],
            refused[:40],
        ]
        assert alive(pid)
        process.send_signal(signal.SIGKILL)
        process.wait(300)
        assert alive(int(child))
        assert ends(pid)
    finally:
        process.kill()
        os.kill(int(child), signal.SIGKILL)
