"""Errors of recorded operators: kept for the next synchronisation, the first of several; programs that fail; blocking."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from shakedown.neuron import events
from shakedown.neuron.errors import FallbackRefused

from ..neuron.failing import STRICT, lower_by, on_the_way
from .running import adaptive, flushes, python

neuron = torch.neuron


def _on_device(*tensors: torch.Tensor) -> list[torch.Tensor]:
    made = [t.to("neuron") for t in tensors]
    neuron.synchronize()
    return made


def _fallbacks() -> list[dict[str, Any]]:
    return [r for r in events.snapshot() if r["kind"] == "fallback"]


# --- an event is no synchronisation -------------------------------------------------------------------------------------


def test_an_event_marks_what_was_recorded_and_keeps_its_error() -> None:
    """An event runs the recording. What fails there is raised when somebody waits, as both kinds of error."""
    table, good, bad = _on_device(torch.ones(4, 3), torch.tensor([1]), torch.tensor([9]))
    F.embedding(good, table)  # known, so that it is recorded below
    waits = (neuron.synchronize, neuron.Event.synchronize, neuron.Stream().synchronize, torch.accelerator.synchronize)
    for wait in waits:
        F.embedding(bad, table)
        event = neuron.Event()
        event.record()
        assert flushes()["event"] >= 1
        assert adaptive.status()["operators"]["waiting"] == 0
        with pytest.raises(IndexError, match=r"index out of range in self \(in aten::embedding") as caught:
            wait(event) if wait is neuron.Event.synchronize else wait()
        assert isinstance(caught.value, RuntimeError)
        neuron.synchronize()  # once
        assert event.query()


def test_times_are_those_of_the_work_and_not_of_recording_it() -> None:
    (x,) = _on_device(torch.rand(600, 600))
    for _ in range(2):
        y = x @ x
    neuron.synchronize()
    start, recorded, end = (neuron.Event(enable_timing=True) for _ in range(3))
    start.record()
    for _ in range(5):
        y = x @ y
    assert adaptive.status()["operators"]["waiting"] == 5
    end.record()
    assert adaptive.status()["operators"]["waiting"] == 0
    recorded.record()
    assert start.elapsed_time(end) > 10 * end.elapsed_time(recorded)


def test_a_stream_that_is_asked_runs_what_is_recorded() -> None:
    (x,) = _on_device(torch.ones(3))
    x + 1
    neuron.synchronize()
    with neuron.stream(neuron.Stream()):
        y = x + 1
        assert adaptive.status()["operators"]["waiting"] == 1
        assert neuron.query()
        assert adaptive.status()["operators"]["waiting"] == 0
    assert y.tolist() == [2, 2, 2]


# --- the first of several -----------------------------------------------------------------------------------------------


def test_the_first_error_is_kept_and_the_device_is_usable_afterwards() -> None:
    table, good, bad, worse = _on_device(torch.ones(4, 3), *map(torch.tensor, ([[1]], [[9]], [[-7]])))
    F.embedding(good, table), table.gather(0, good) + 1
    neuron.synchronize()
    counter = torch.zeros(3, device="neuron")
    lost = F.embedding(bad, table)
    neuron.record_event()
    also_lost = table.gather(0, worse)
    neuron.record_event()
    untouched = counter + 1
    with pytest.raises(IndexError, match="aten::embedding"):
        neuron.synchronize()
    neuron.synchronize()  # the second is dropped
    assert untouched.tolist() == [1, 1, 1]
    for tensor, words in ((lost, "index out of range in self"), (also_lost, "index -7 is out of bounds")):
        for read in (tensor.cpu, tensor.tolist, lambda t=tensor: (t + 1).cpu()):
            with pytest.raises(RuntimeError, match=words):
                read()
    assert F.embedding(good, table).tolist() == [[[1, 1, 1]]]


def test_reading_any_value_tells_of_an_error_that_is_kept() -> None:
    """Else a tensor that an operator after the error was to write would be read with its old value, and nobody told."""
    table, bad, counter = _on_device(torch.ones(4, 3), torch.tensor([9]), torch.zeros(3))
    F.embedding(torch.tensor([0], device="neuron"), table), counter.add_(1)
    neuron.synchronize()
    F.embedding(bad, table)
    counter.add_(1)
    neuron.record_event()
    with pytest.raises(IndexError):
        counter.cpu()
    assert counter.tolist() == [1, 1, 1]  # as if the program had stopped at the error


# --- programs that cannot be run ----------------------------------------------------------------------------------------


def _sick_operator(monkeypatch: pytest.MonkeyPatch) -> tuple[list[bool], torch.Tensor, torch.Tensor]:
    sick = [False]
    lower_by(monkeypatch, on_the_way(sick))
    x, y = _on_device(torch.rand(2, 3) + 1, torch.rand(2, 3) + 1)
    torch.atan2(x, y)
    x.clone().atan2_(y), x.t().clone() * 2
    neuron.synchronize()
    events.clear()
    return sick, x, y


def test_a_recorded_operator_whose_program_fails_is_computed_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Into the tensors that were promised: a new one, one that was written in place, one with other strides."""
    sick, x, y = _sick_operator(monkeypatch)
    expected = torch.atan2(x.cpu(), y.cpu())
    torch.atan2(x.t(), y.t())
    neuron.synchronize()
    events.clear()
    sick[0] = True
    made = torch.atan2(x, y)
    written = x.clone()
    view = written[0]
    written.atan2_(y)
    turned = torch.atan2(x.t(), y.t())
    after = made * 2
    neuron.synchronize()
    torch.testing.assert_close(made.cpu(), expected)
    torch.testing.assert_close(written.cpu(), expected)
    torch.testing.assert_close(view.cpu(), expected[0])
    torch.testing.assert_close(turned.cpu(), expected.t())
    assert turned.stride() == torch.atan2(x.cpu().t(), y.cpu().t()).stride()
    torch.testing.assert_close(after.cpu(), expected * 2)
    assert sum(r["count"] for r in _fallbacks()) == 3
    assert {r["name"] for r in _fallbacks()} == {"aten::atan2", "aten::atan2_"}
    assert not {"aten::atan2", "aten::atan2_"} & set(neuron.get_executed_ops())


@pytest.mark.parametrize("variable", ["NEURON_FALLBACK_ENABLED=0", f"{STRICT}=1"])
def test_or_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    sick, x, y = _sick_operator(monkeypatch)
    name, _, value = variable.partition("=")
    monkeypatch.setenv(name, value)
    for _ in range(2):
        sick[0] = True
        fine = x * 2
        lost = torch.atan2(x, y)
        with pytest.raises(FallbackRefused, match="EXECUTION FAILED: aten::atan2: ") as caught:
            neuron.synchronize()
        assert variable in str(caught.value)
        assert "arguments: self: float32[2, 3] on neuron:0, other: float32[2, 3] on neuron:0" in str(caught.value)
        with pytest.raises(RuntimeError, match="EXECUTION FAILED"):
            lost.cpu()
        torch.testing.assert_close(fine.cpu(), x.cpu() * 2)
        sick[0] = False
        torch.testing.assert_close(torch.atan2(x, y).cpu(), torch.atan2(x.cpu(), y.cpu()))
    assert _fallbacks() == []


# --- processes of their own ---------------------------------------------------------------------------------------------

STACKS = """
import traceback, torch
import torch.nn.functional as F

table, bad = torch.ones(4, 3, device="neuron"), torch.tensor([9], device="neuron")

def look_up(index):
    return F.embedding(index, table)

def model(index):
    return look_up(index)

model(torch.tensor([1], device="neuron"))
torch.neuron.synchronize()
model(bad)
try:
    torch.neuron.synchronize()
except IndexError as error:
    print("".join(traceback.format_exception_only(error)).strip())
"""


def test_the_python_stack_of_a_recorded_operator_comes_with_its_error() -> None:
    text, notes = python(STACKS, TORCH_NEURONX_ENABLE_STACK_TRACE="1").splitlines()
    assert text.endswith(
        "index out of range in self (in aten::embedding, recorded by adaptive eager at <string>:8 in look_up)"
    )
    assert notes == "recorded at <string>:8 in look_up < <string>:11 in model < <string>:15 in <module>"


BLOCKING = """
import torch
import torch.nn.functional as F

x, table, bad = torch.ones(3, device="neuron"), torch.ones(4, 3, device="neuron"), torch.tensor([9], device="neuron")
for _ in range(3):
    y = x + 1
print(torch.neuron.adaptive.enabled(), torch.neuron.adaptive.status())
try:
    F.embedding(bad, table)
except IndexError as error:
    print(error)
print(torch.neuron.get_executed_ops())
"""


def test_blocking_records_nothing_and_raises_at_the_call() -> None:
    said = python(BLOCKING, NEURON_LAUNCH_BLOCKING="1").splitlines()
    assert said[0] == "False {'enabled': False}"
    assert said[1] == "index out of range in self"
    assert "aten::add.Tensor" in said[2]
