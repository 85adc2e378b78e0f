"""An operator that has a lowering and fails: the CPU instead, the user's own error, or a refusal that says all there is."""

from __future__ import annotations

import dataclasses
import logging
import re
import traceback
import warnings

import pytest
import torch

from shakedown.neuron import events, log
from shakedown.neuron.errors import FallbackRefused, NEFFExecutionError
from shakedown.neuron.lowering import registry

from .failing import ATAN2, STRICT, declining, lower_by, on_the_way, raising

SIZE = iter(range(3, 1000))  # each call its own plan


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    n = next(SIZE)
    return torch.rand(n) + 0.5, torch.rand(n) + 0.5


def on_device(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [t.to("neuron") for t in tensors]


def reasons() -> list[str]:
    return [r["detail"] for r in events.snapshot() if r["kind"] == "fallback"]


# --- without the variables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lowering", "reason"), [(raising, "KeyError: 'no such thing'"), (declining, "not this case")])
def test_a_lowering_that_fails_is_a_fallback_with_its_reason(monkeypatch, lowering, reason):
    lower_by(monkeypatch, lowering)
    x, y = pair()
    there, other = on_device(x, y)
    for _ in range(2):
        torch.testing.assert_close(torch.atan2(there, other).cpu(), torch.atan2(x, y))
    there.atan2_(other)
    torch.testing.assert_close(there.cpu(), torch.atan2(x, y))
    assert reasons() == [reason, reason]  # of atan2, twice, and of atan2_
    assert torch.neuron.get_fallback_ops() == ["aten::atan2", "aten::atan2_"]
    assert "aten::atan2" not in torch.neuron.get_executed_ops()


def test_a_program_that_fails_when_it_is_run_is_a_fallback_once(monkeypatch):
    sick = [False]
    lower_by(monkeypatch, on_the_way(sick))
    x, y = pair()
    there, other = on_device(x, y)
    expected = torch.atan2(x, y)
    torch.testing.assert_close(torch.atan2(there, other).cpu(), expected)
    assert reasons() == []
    sick[0] = True
    torch.testing.assert_close(torch.atan2(there, other).cpu(), expected)
    (reason,) = reasons()
    assert "the core is gone" in reason or "CpuCallback error" in reason
    sick[0] = False
    events.clear()
    torch.testing.assert_close(torch.atan2(there, other).cpu(), expected)
    assert reasons() == []
    assert torch.neuron.get_executed_ops() == ["aten::atan2"]


def test_a_program_that_cannot_be_compiled_is_a_fallback(monkeypatch):
    monkeypatch.setenv("NEURON_CC_FLAGS", "--invalid-flag-of-this-test")
    x, y = pair()
    there, other = on_device(x, y)
    torch.testing.assert_close(torch.atan2(there, other).cpu(), torch.atan2(x, y))
    (reason,) = reasons()
    assert "COMPILATION FAILED: aten.atan2: NEURON_CC_FLAGS has the flag --invalid-flag-of-this-test" in reason


# --- with them ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lowering", "said"), [(raising, "KeyError: 'no such thing'"), (declining, "not this case")])
def test_strict_refuses_and_says_all(monkeypatch, lowering, said):
    lower_by(monkeypatch, lowering)
    monkeypatch.setenv(STRICT, "1")
    x, y = pair()
    there, other = on_device(x, y)
    before = there.clone()
    for call in (torch.atan2, torch.Tensor.atan2_, torch.atan2):
        with pytest.raises(RuntimeError) as caught:
            call(there, other)
        name = "aten::atan2_" if call is torch.Tensor.atan2_ else "aten::atan2"
        assert type(caught.value) is FallbackRefused
        size = len(x)
        assert str(caught.value).splitlines() == [
            f"LOWERING FAILED: {name}: {said}",
            f"  tried last: its lowering {lowering.__module__}.{lowering.__name__}",
            f"  arguments: self: float32[{size}] on neuron:0, other: float32[{size}] on neuron:0",
            f"  {STRICT}=1 keeps it from running on the CPU instead, which accepts the call",
        ]
    assert torch.equal(there, before)
    assert reasons() == []


def test_strict_refuses_what_fell_back_before_it_was_switched_on(monkeypatch):
    lower_by(monkeypatch, raising)
    there, other = on_device(*pair())
    torch.atan2(there, other)
    monkeypatch.setenv(STRICT, "1")
    with pytest.raises(FallbackRefused, match="aten::atan2: KeyError"):
        torch.atan2(there, other)
    monkeypatch.setenv(STRICT, "0")
    torch.atan2(there, other)
    assert reasons() == ["KeyError: 'no such thing'"]


def test_the_users_lines_are_named_where_stack_traces_are_on(monkeypatch):
    lower_by(monkeypatch, raising)
    monkeypatch.setenv(STRICT, "1")
    monkeypatch.setenv("TORCH_NEURONX_ENABLE_STACK_TRACE", "1")

    def inner(x, y):
        return torch.nn.functional.relu(torch.atan2(x, y))

    with pytest.raises(FallbackRefused) as caught:
        inner(*on_device(*pair()))
    last = str(caught.value).splitlines()[-1]
    lines = [code.co_firstlineno for code in (inner.__code__,)]
    assert last.startswith(f"  called at {__file__}:{lines[0] + 1} in inner < {__file__}:")


@pytest.mark.parametrize("variable", ["NEURON_FALLBACK_ENABLED=0", f"{STRICT}=1"])
def test_a_failure_of_a_program_is_refused(monkeypatch, variable):
    sick = [False]
    lower_by(monkeypatch, on_the_way(sick))
    there, other = on_device(*pair())
    torch.atan2(there, other)
    name, _, value = variable.partition("=")
    monkeypatch.setenv(name, value)
    torch.atan2(there, other)
    sick[0] = True
    with pytest.raises(FallbackRefused, match=r"EXECUTION FAILED: aten::atan2: \w+: INTERNAL") as caught:
        torch.atan2(there, other)
    assert variable in str(caught.value)
    sick[0] = False
    torch.atan2(there, other)  # the device is as usable as before
    monkeypatch.setenv("NEURON_CC_FLAGS", "--invalid")
    with pytest.raises(FallbackRefused, match=r"COMPILATION FAILED: aten::atan2: ") as caught:
        torch.atan2(*on_device(*pair()))
    assert variable in str(caught.value)


def test_fallbacks_of_lowerings_are_not_of_programs(monkeypatch):
    lower_by(monkeypatch, raising)
    monkeypatch.setenv("NEURON_FALLBACK_ENABLED", "0")
    torch.atan2(*on_device(*pair()))
    assert reasons() == ["KeyError: 'no such thing'"]


def test_operators_without_a_lowering_still_fall_back(monkeypatch):
    monkeypatch.setenv(STRICT, "1")
    monkeypatch.setenv("NEURON_FALLBACK_ENABLED", "0")
    x = torch.ones(next(SIZE), device="neuron")
    assert torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255).tolist() == x.tolist()
    assert torch.neuron.get_fallback_ops() == ["aten::fake_quantize_per_tensor_affine_cachemask"]


MISTAKES = {
    "sizes": lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    "a dimension": lambda d: torch.ones(2, device=d).sum(3),
    "an index": lambda d: torch.nn.functional.embedding(torch.tensor([7], device=d), torch.ones(2, 2, device=d)),
    "a position": lambda d: torch.ones(3, device=d)[torch.tensor([5], device=d)],
    "a dtype": lambda d: torch.ones(2, device=d).bitwise_and(1),
    "an argument": lambda d: torch.ones(2, device=d).sum("no dimension"),
    "a class": lambda d: torch.nn.functional.nll_loss(torch.ones(1, 2, device=d), torch.tensor([5], device=d)),
    "overlapping memory": lambda d: torch.ones(4, device=d)[1:].add_(torch.ones(1, device=d).expand(4)[1:], out=3),
    "an expanded result": lambda d: torch.ones(1, device=d).expand(3).add_(1),
    "a wrong reduction": lambda d: torch.ones(2, device=d).scatter_reduce(
        0, torch.tensor([0], device=d), torch.ones(1, device=d), reduce="nothing"
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_of_the_user_are_the_cpus_errors(monkeypatch, mistake):
    monkeypatch.setenv(STRICT, "1")
    monkeypatch.setenv("NEURON_FALLBACK_ENABLED", "0")
    with pytest.raises(Exception) as wanted:
        mistake("cpu")
    with pytest.raises(Exception) as found:
        mistake("neuron")
    assert type(found.value) is type(wanted.value)
    assert str(found.value) == str(wanted.value)


def test_what_neither_can_do_says_why_for_both():
    x = torch.ones(next(SIZE), device="neuron")
    with pytest.raises(NotImplementedError) as caught:
        x.bitwise_and(1)
    text = "".join(traceback.format_exception(caught.value))
    assert "device 'neuron' has no program for aten::bitwise_and.Scalar either: " in text


# --- graphs -------------------------------------------------------------------------------------------------------------


def test_a_graph_that_cannot_be_compiled_runs_operator_by_operator_or_is_refused(monkeypatch, fresh_dynamo):
    def function(x, y):
        return (torch.atan2(x, y) * 3 + 1).sum()

    x, y = pair()
    monkeypatch.setenv("NEURON_CC_FLAGS", "--invalid-in-graphs")
    monkeypatch.setenv("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "0")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = torch.compile(function, backend="neuron")(*on_device(x, y))
    torch.testing.assert_close(result.cpu(), function(x, y))
    assert any("runs graph" in str(w.message) and "COMPILATION FAILED" in str(w.message) for w in said)
    assert "aten::atan2" in torch.neuron.get_fallback_ops()
    for variable, value in ((STRICT, "1"), ("NEURON_FALLBACK_ENABLED", "0")):
        torch._dynamo.reset()
        with monkeypatch.context() as more:
            more.setenv(variable, value)
            with pytest.raises(RuntimeError, match="COMPILATION FAILED"):
                torch.compile(function, backend="neuron")(*on_device(x, y))


def test_a_graph_whose_program_breaks_runs_operator_by_operator_or_is_refused(monkeypatch, fresh_dynamo):
    sick = [False]
    torch.neuron.init()
    broken = dataclasses.replace(registry.lowering_of(ATAN2), fn=on_the_way(sick))
    monkeypatch.setitem(registry._lowerings, ATAN2, broken)  # eager execution keeps the one that it has

    def function(x, y):
        return torch.atan2(x, y) * 3

    x, y = pair()
    there = on_device(x, y)
    for variable, value, runs in (
        (STRICT, "1", True),
        ("NEURON_FALLBACK_ENABLED", "0", True),
        (STRICT, "0", None),
        (STRICT, "0", True),
    ):
        torch._dynamo.reset()
        sick[0] = False
        options = None if runs is None else {"fallback_execution": runs}
        compiled = torch.compile(function, backend="neuron", options=options)
        torch.testing.assert_close(compiled(*there).cpu(), function(x, y))
        sick[0] = True
        with monkeypatch.context() as more, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            more.setenv(variable, value)
            if value == "0" and variable == STRICT and runs:
                torch.testing.assert_close(compiled(*there).cpu(), function(x, y))
                assert any("operator by operator" in str(w.message) for w in said)
                continue
            with pytest.raises(NEFFExecutionError, match="EXECUTION FAILED: graph::model_default"):
                compiled(*there)
        sick[0] = False
        torch.testing.assert_close(compiled(*there).cpu(), function(x, y))


def test_the_users_line_is_named_in_errors_of_graphs(monkeypatch, fresh_dynamo):
    def function(table, index):
        return torch.nn.functional.embedding(index, table) * 2  # here

    monkeypatch.setenv("SHAKEDOWN_STACK_TRACE", "1")
    there = on_device(torch.ones(2, 2), torch.tensor([5]))
    with pytest.raises(IndexError, match="index out of range in self") as caught:
        torch.compile(function, backend="neuron")(*there)
    assert f"called at {__file__}:{function.__code__.co_firstlineno + 1} (return torch.nn" in str(caught.value)


# --- logging ------------------------------------------------------------------------------------------------------------


def test_each_fallback_is_a_notice_once(monkeypatch, tmp_path, caplog):
    file = tmp_path / "device.log"
    monkeypatch.setenv("TORCH_NEURONX_LOG_FILE", str(file))
    monkeypatch.setenv("TORCH_NEURONX_LOG_LEVEL", "2")
    for _ in range(2):
        for _ in range(2):
            torch.fake_quantize_per_tensor_affine(torch.ones(next(SIZE), device="neuron"), 0.1, 0, 0, 255)
        (line,) = file.read_text().splitlines()
        name = "aten::fake_quantize_per_tensor_affine_cachemask"
        assert re.search(rf" INFO shakedown.neuron.fallback\[\d+\]: {name} runs on the CPU: no lowering$", line)
    log.forget()
    monkeypatch.setenv("TORCH_NEURONX_LOG_LEVEL", "1")
    torch.fake_quantize_per_tensor_affine(torch.ones(next(SIZE), device="neuron"), 0.1, 0, 0, 255)
    assert len(file.read_text().splitlines()) == 1
    log.forget()
    monkeypatch.delenv("TORCH_NEURONX_LOG_FILE")
    monkeypatch.delenv("TORCH_NEURONX_LOG_LEVEL")
    with caplog.at_level(logging.INFO, logger="shakedown.neuron"):  # the program's own logging
        torch.fake_quantize_per_tensor_affine(torch.ones(next(SIZE), device="neuron"), 0.1, 0, 0, 255)
    assert [r.name for r in caplog.records] == ["shakedown.neuron.fallback"]
    assert len(file.read_text().splitlines()) == 1


def test_a_level_that_is_none_is_one_clear_error(monkeypatch):
    monkeypatch.setenv("TORCH_NEURONX_LOG_LEVEL", "verbose")
    with pytest.raises(ValueError, match="TORCH_NEURONX_LOG_LEVEL='verbose' cannot be used: it must be 0"):
        log.logger()
