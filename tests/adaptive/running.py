"""Running a program until it is fused, and running a script in a Python of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
adaptive = torch.neuron.adaptive
Program = Callable[[str], Sequence[Any]]  # (device) -> tensors, and whatever else is to be compared

_ROUNDS = 8  # two build plans and groups; each program that then compiles takes another


def operators() -> tuple[int, int]:
    """How many operators ran so far (in fused programs, one by one); neither counts those of plain eager execution."""
    found = adaptive.status().get("operators", {"fused": 0, "one_by_one": 0})
    return found["fused"], found["one_by_one"]


def flushes() -> dict[str, int]:
    return dict(adaptive.status()["flushes"])


def on_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def same(actual: Sequence[Any], expected: Sequence[Any]) -> None:
    """Equal values, dtypes, sizes and strides; floats within PyTorch's tolerance of their dtype."""
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        if isinstance(e, torch.Tensor):
            assert a.stride() == e.stride()
            torch.testing.assert_close(on_cpu(a), e.detach(), equal_nan=True)
        else:
            assert a == e


def until_fused(run: Callable[[], Any], check: Callable[[Any], None], rounds: int = _ROUNDS) -> int:
    """Call `run` over and over, `check` each result, until a round ran fused alone; returns the number of that round.

    Whatever `run` records is flushed before the result is checked, so reading it adds nothing.

    Raises:
        AssertionError: no round was fused from end to end.
    """
    for round in range(rounds):
        fused, each = operators()
        result = run()
        torch.neuron.synchronize()
        now_fused, now_each = operators()
        check(result)
        torch.neuron.synchronize()
        if now_each == each and now_fused > fused:
            return round
        assert adaptive.wait(120)
    raise AssertionError(f"never fused: {adaptive.status()}")


def same_as_cpu_in_part(program: Program) -> None:
    """As :func:`same_as_cpu`, for a program of which some operators cannot be recorded: only some of it is ever fused."""
    expected = program("cpu")
    for _ in range(5):
        same(program("neuron"), expected)
        adaptive.wait(60)
    assert operators()[0] > 0


def same_as_cpu(program: Program) -> None:
    """`program` gives the CPU's answers in each of its runs: new operators, one by one, fused."""
    expected = program("cpu")
    until_fused(lambda: program("neuron"), lambda actual: same(actual, expected))


@contextmanager
def plain_eager() -> Iterator[None]:
    """Plain eager execution on the same device, in this process: a deterministic mode turns adaptive eager off."""
    fill = torch.utils.deterministic.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.set_deterministic_debug_mode("warn")
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode("default")
            torch.utils.deterministic.fill_uninitialized_memory = fill


def environment(**variables: str | None) -> dict[str, str]:
    """This process's environment with adaptive eager on, changed as told (None: without that variable)."""
    wanted = os.environ | {"SHAKEDOWN_ADAPTIVE": "1"} | variables
    return {name: value for name, value in wanted.items() if value is not None}


def python(script: str, timeout: float = 1200, **variables: str | None) -> str:
    """What `script` prints in a Python with adaptive eager and these environment variables; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=environment(**variables),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
