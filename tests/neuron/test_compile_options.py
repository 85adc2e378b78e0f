"""What ``torch.compile(backend="neuron")`` may be asked for: parameters, options, variables, and the default backend."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

from shakedown.neuron import events
from shakedown.neuron.errors import GraphNotLowered, UnsupportedCompileOption
from shakedown.neuron.modes.compile import options

from .twins import compiled

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def ones(*size: int) -> torch.Tensor:
    return torch.ones(*size, device="neuron")


def refusal(call) -> Exception:
    """What the backend said, which Dynamo wraps."""
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        call()
    return caught.value.inner_exception


def quantised(x: torch.Tensor) -> torch.Tensor:
    return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)


# --- sizes --------------------------------------------------------------------------------------------------------------


def test_dynamic_sizes_are_refused_with_what_to_do():
    def function(a, b):
        return a.sum() + b.sum()

    error = refusal(lambda: compiled(function, dynamic=True)(ones(5, 6), ones(7, 8)))
    assert isinstance(error, UnsupportedCompileOption)
    assert isinstance(error, RuntimeError)
    text = str(error)
    assert "4 dynamic dimensions were asked for" in text
    assert text.count("(now ") == 3  # three of them are named
    assert "and 1 more" in text
    assert f"{__file__}:{function.__code__.co_firstlineno + 1}" in text
    assert text.count("Hint:") == 2
    assert "dynamic=False" in text


def test_a_dimension_marked_dynamic_is_refused_and_a_static_one_is_not():
    x = ones(5, 6)
    torch._dynamo.mark_dynamic(x, 0)
    assert "1 dynamic dimension was asked for" in str(refusal(lambda: compiled(lambda x: x + 1)(x)))


def test_a_jagged_input_is_refused_by_name():
    ragged = torch.nested.nested_tensor([ones(2, 3), ones(4, 3)], layout=torch.jagged)
    error = refusal(lambda: compiled(lambda t: t.sin())(ragged))
    assert isinstance(error, UnsupportedCompileOption)
    assert "jagged nested tensor" in str(error)
    assert ".values()" in str(error)


# --- modes and options --------------------------------------------------------------------------------------------------


def test_another_mode_warns_once_and_behaves_as_default():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in (1, 2):
            assert compiled(lambda x, step=step: x + step, mode="max-autotune")(ones(2)).tolist() == [step + 1] * 2
            torch._dynamo.reset()
    assert [str(w.message) for w in said if "mode" in str(w.message)] == [
        "backend \"neuron\" has only the default mode: mode='max-autotune' behaves as default"
    ]


def test_foreign_options_warn_once_and_are_ignored():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in (1, 2):
            run = compiled(lambda x, step=step: x + step, options={"max_autotune": True, "retain_devise": True})
            assert run(ones(2)).tolist() == [step + 1] * 2
            torch._dynamo.reset()
    (message,) = [str(w.message) for w in said if "options" in str(w.message)]
    assert "ignores these options: max_autotune, retain_devise" in message
    assert "did you mean retain_device by retain_devise?" in message


def test_own_options_do_not_warn_and_the_model_has_its_name():
    events.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        compiled(lambda x: x + 3, options={"model_name": "Tiny"})(ones(2))
    assert any(name.startswith("graph::tiny_") for name in events.names("execute"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fallback_execution": 1}, "fallback_execution .* is 1: it must be True or False"),
        ({"one_program": None}, "one_program .* is None: it must be True or False"),
        ({"retain_device": "yes"}, "retain_device .* is 'yes': it must be True or False"),
        ({"model_name": 3}, "model_name .* is 3: .* must be a string"),
        ({"model_name": "../up"}, r"model_name .* is '\.\./up'"),
    ],
)
def test_a_value_of_another_type_is_an_error(given, said):
    with pytest.raises(UnsupportedCompileOption, match=said):
        options.read(None, given, set())


def test_a_variable_of_a_wrong_value_is_an_error(monkeypatch):
    monkeypatch.setenv("SHAKEDOWN_RETAIN_DEVICE", "perhaps")
    assert "SHAKEDOWN_RETAIN_DEVICE='perhaps'" in str(refusal(lambda: compiled(lambda x: x + 1)(ones(2))))


def test_with_one_program_what_cannot_be_lowered_is_an_error():
    run = compiled(quantised, options={"one_program": True})
    error = refusal(lambda: run(ones(4)))
    assert isinstance(error, GraphNotLowered)
    assert "fake_quantize_per_tensor_affine" in str(error)
    assert "no lowering" in str(error)


@pytest.mark.parametrize("variable", [None, "1"])
def test_a_graph_that_the_compiler_refuses_is_an_error_unless_variable_or_option_says_otherwise(monkeypatch, variable):
    def function(x):
        return torch.erfinv(x) * 3

    if variable is not None:
        monkeypatch.setenv("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", variable)
    x = ones(5) / 2
    run = compiled(function)
    with monkeypatch.context() as broken:
        broken.setenv("NEURON_CC_FLAGS", f"--invalid-options-{variable}")
        with pytest.raises(
            GraphNotLowered, match=r"COMPILATION FAILED: .*model_default(?s:.*)DISABLE_FALLBACK_EXECUTION=0"
        ):
            run(x)
        for option, off in (({"fallback_execution": True}, variable), (None, "0")):
            torch._dynamo.reset()
            if off is not None:
                broken.setenv("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", off)
            with pytest.warns(UserWarning, match="operator by operator"):
                result = compiled(function, options=option)(x)
            torch.testing.assert_close(result.cpu(), function(x.cpu()))
    torch.testing.assert_close(run(x).cpu(), function(x.cpu()))  # what failed is tried again


def test_without_fallback_execution_a_graph_is_split_all_the_same(monkeypatch):
    monkeypatch.setenv("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "1")
    with pytest.warns(UserWarning, match="fake_quantize"):
        result = compiled(lambda x: quantised(x) * 2, options={"fallback_execution": False})(ones(4))
    assert torch.equal(result.cpu(), quantised(torch.ones(4)) * 2)


# --- devices of inputs and results --------------------------------------------------------------------------------------


def test_cpu_tensors_are_copied_over_and_what_is_written_is_copied_back():
    def function(x, state):
        state.add_(x)
        return state * 2

    x, state = torch.ones(3), torch.zeros(3)
    run = compiled(function)
    run(x, state)
    events.clear()
    result = run(x, state)
    assert result.device.type == "neuron"
    assert result.tolist() == [4, 4, 4]
    assert state.tolist() == [2, 2, 2]
    moved = {r["name"]: r["count"] for r in events.snapshot() if r["kind"] == "transfer"}
    assert moved["host-to-device"] == 2
    assert moved["device-to-host"] == 2  # the state, and `tolist`


def test_gradients_of_cpu_tensors_are_on_the_cpu():
    x = torch.ones(3, requires_grad=True)
    loss = compiled(lambda x: x.square().sum())(x)
    assert loss.device.type == "neuron"
    loss.backward()
    assert x.grad.device.type == "cpu"
    assert x.grad.tolist() == [2, 2, 2]


def test_the_variable_refuses_cpu_tensors_but_not_numbers(monkeypatch):
    monkeypatch.setenv("TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY", "1")
    text = str(refusal(lambda: compiled(lambda tokens: tokens + 1)(torch.ones(3))))
    assert "input tensor 0 (l_tokens_)" in text
    assert "is on the CPU" in text
    assert "TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY" in text
    assert compiled(lambda x, s: x * s)(ones(2), torch.tensor(3.0)).tolist() == [3, 3]


def test_retain_device_returns_results_to_the_inputs(monkeypatch):
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    x = torch.randn(4, 2)
    mean = module[1].running_mean.clone()
    result = compiled(module, options={"retain_device": True})(x)
    assert result.device.type == "cpu"
    assert not torch.equal(module[1].running_mean, mean)
    result.sum().backward()
    assert {p.grad.device.type for p in module.parameters()} == {"cpu"}
    torch._dynamo.reset()
    monkeypatch.setenv("TORCH_NEURONX_RETAIN_DEVICE_MODE", "1")
    assert compiled(lambda x: x + 1)(torch.ones(2)).device.type == "cpu"
    assert compiled(lambda x: x + 2)(ones(2)).device.type == "neuron"


def test_retain_device_refuses_inputs_on_several_devices():
    error = refusal(
        lambda: compiled(lambda a, b: (a + 1, b + 1), options={"retain_device": True})(torch.ones(2), ones(2))
    )
    assert isinstance(error, UnsupportedCompileOption)
    for word in ("cpu and neuron:0", "SHAKEDOWN_RETAIN_DEVICE", "TORCH_NEURONX_RETAIN_DEVICE_MODE"):
        assert word in str(error)


def test_results_made_on_the_cpu_stay_there():
    results = compiled(lambda x: (x + 1, x.cpu() * 2, torch.ones(2)))(ones(2))
    assert [r.device.type for r in results] == ["neuron", "cpu", "cpu"]
    assert [r.tolist() for r in results] == [[2, 2], [2, 2], [1, 1]]


# --- the default backend ------------------------------------------------------------------------------------------------


def test_neuron_can_be_made_the_default_backend():
    before = torch.compiler.get_default_backend()
    torch.compiler.set_default_backend("neuron")
    try:
        events.clear()
        assert torch.compile(lambda x: x + 1)(ones(2)).tolist() == [2, 2]
        assert any(name.startswith("graph::") for name in events.names("execute"))
    finally:
        torch.compiler.set_default_backend(before)


def test_the_variable_makes_neuron_the_default_without_loading_dynamo():
    code = (
        "import sys, torch; assert 'torch._dynamo' not in sys.modules\n"
        "assert torch.compiler.get_default_backend() == 'neuron'\n"
        "assert torch.compile(lambda x: x + 1)(torch.ones(2)).device.type == 'neuron'\n"
        "torch.compiler.set_default_backend(None); assert torch.compiler.get_default_backend() == 'inductor'\n"
    )
    environment = {**os.environ, "SHAKEDOWN_DEFAULT_BACKEND": "neuron"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_without_a_backend_a_graph_is_compiled_for_where_its_tensors_are():
    torch.neuron.reset_compile_report()
    module = nn.Linear(4, 3).to("neuron")
    x = torch.randn(2, 4, device="neuron")
    torch.compile(module, fullgraph=True)(x).sum().backward()
    assert module.weight.grad.device.type == "neuron"

    @torch.compile
    def function(a, scale):
        b = a.sin()
        torch._dynamo.graph_break()
        return b * scale + ones(4)

    for scale in (1.0, 2.0, 3.0):
        torch.testing.assert_close(function(x, scale).cpu(), x.cpu().sin() * scale + 1)
    assert torch.compile(lambda: ones(3) * 2, fullgraph=True)().tolist() == [2, 2, 2]
    report = torch.neuron.compile_report()
    assert [g["function"] for g in report["graphs"]].count("<lambda>") == 1
    assert torch.neuron.get_fallback_ops() == []


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_without_a_backend_graphs_of_other_tensors_stay_inductors():
    torch.neuron.reset_compile_report()
    x = torch.randn(3)
    result = torch.compile(lambda a: a.sin() + 1)(x)
    torch.testing.assert_close(result, x.sin() + 1)
    assert torch._dynamo.utils.counters["inductor"]
    assert torch.neuron.compile_report()["graphs"] == []


def test_inductors_options_are_ignored_with_a_warning_on_the_device():
    with pytest.warns(UserWarning, match=r"ignores these options: .*max_autotune"):
        assert torch.compile(lambda a: a + 1, mode="max-autotune-no-cudagraphs")(ones(2)).tolist() == [2, 2]
