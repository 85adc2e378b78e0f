"""When adaptive eager is on, off, and off for a while."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shakedown.neuron.errors import ConfigError

from .running import adaptive, flushes, operators, python


def test_the_setting_is_read_when_python_starts_and_changing_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert adaptive.enabled()
    assert adaptive.status()["enabled"]
    monkeypatch.setenv("SHAKEDOWN_ADAPTIVE", "0")
    with pytest.raises(ConfigError, match="SHAKEDOWN_ADAPTIVE was changed to off after Python had started"):
        adaptive.enabled()
    with pytest.raises(ConfigError):
        adaptive.status()
    monkeypatch.setenv("SHAKEDOWN_ADAPTIVE", "1")
    assert adaptive.enabled()


def test_turning_it_on_after_the_start_is_an_error_and_so_is_a_value_that_means_nothing() -> None:
    printed = python(
        """
        import os, torch
        print(torch.neuron.adaptive.enabled(), torch.neuron.adaptive.status(), torch.neuron.adaptive.groups())
        print(torch.neuron.adaptive.wait(0), torch.neuron.adaptive.reset())
        for value in ("1", "perhaps"):
            os.environ["SHAKEDOWN_ADAPTIVE"] = value
            try:
                torch.ones(3, device="neuron")
            except Exception as error:
                print(type(error).__name__, error)
        """,
        SHAKEDOWN_ADAPTIVE="0",
    ).splitlines()
    assert printed[:2] == ["False {'enabled': False} []", "True None"]
    assert printed[2].startswith("ConfigError SHAKEDOWN_ADAPTIVE was changed to on after Python had started")
    assert printed[3].startswith("ConfigError SHAKEDOWN_ADAPTIVE='perhaps' cannot be used")


def test_deterministic_algorithms_switch_it_off_and_on_in_the_middle() -> None:
    def program() -> torch.Tensor:
        x = torch.ones(4, device="neuron")
        x.mul_(3)
        x.add_(1)
        return x

    program(), program()
    torch.neuron.synchronize()
    adaptive.reset()
    x = program()
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.neuron.adaptive.status()["operators"]["waiting"] == 3
        x.mul_(2)
        assert adaptive.status()["operators"]["waiting"] == 0
        assert flushes() == {"deterministic": 1}
        y = program()
        assert adaptive.status()["operators"]["waiting"] == 0
        assert operators() == (0, 3)
    finally:
        torch.use_deterministic_algorithms(False)
    x.add_(y)
    z = program()
    assert adaptive.status()["operators"]["waiting"] >= 3
    assert torch.equal(x.cpu(), torch.full((4,), 12.0))
    assert torch.equal(z.cpu(), torch.full((4,), 4.0))


@pytest.mark.parametrize("mode", ["warn", "error"])
def test_deterministic_debug_mode_switches_it_off(mode: str) -> None:
    x = torch.ones(4, device="neuron") * 3
    torch.neuron.synchronize()
    torch.set_deterministic_debug_mode(mode)
    try:
        x.add_(1)
        assert adaptive.status()["operators"]["waiting"] == 0
    finally:
        torch.set_deterministic_debug_mode("default")
    assert torch.equal(x.cpu(), torch.full((4,), 4.0))


_SCRIPT = """import torch
adaptive = torch.neuron.adaptive
x, table = torch.ones(64, 64, device="neuron"), torch.ones(4, 2, device="neuron")
good, bad = torch.tensor([1], device="neuron"), torch.tensor([9], device="neuron")

def run(index):
    y = x
    for _ in range(9):
        y = y * 2
    return torch.nn.functional.embedding(index, table)

run(good)
torch.neuron.synchronize()
adaptive.reset()
for _ in range(4):
    run(good)
    adaptive.wait(60)
(group,) = adaptive.groups()
print(adaptive.enabled(), adaptive.status()["flushes"], group["runs_fused"], adaptive.status()["bytes_saved"])
print(sorted(set(group["lines"]), key=len))
try:
    run(bad)
except IndexError as error:
    print(error)
"""


def test_torchneurons_own_variables_count(tmp_path: Path) -> None:
    """One process: on, at most 10 operators in a segment, their lines kept (for errors too), and nothing left out."""
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    first, lines, error = python(
        f"import sys; sys.argv = ['']; import runpy; runpy.run_path({str(script)!r})",
        SHAKEDOWN_ADAPTIVE=None,
        SHAKEDOWN_ADAPTIVE_TIMEOUT="60000",
        TORCH_NEURONX_ENABLE_CONCATENATION="1",
        TORCH_NEURONX_CONCATENATION_BUFFER_SIZE_LIMIT="10",
        TORCH_NEURONX_ENABLE_STACK_TRACE="1",
        TORCH_NEURONX_APPLY_SKIP_INTERMEDIATE="0",
    ).splitlines()
    assert first == "True {'length': 4} 2 0"
    assert lines == str([f"{script}:{line} in run" for line in (9, 10)])
    where = f"(in aten::embedding, recorded by adaptive eager at {script}:10 in run)"
    assert error == f"index out of range in self {where}"
