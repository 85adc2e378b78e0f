"""``torch.neuron``'s functions inside of functions that ``torch.compile`` captures: what ``torch.cuda``'s do there."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch

import torch_neuronx

STREAM = torch.neuron.Stream()
X = torch.arange(4.0)


def told(x):
    y = x * torch.neuron.device_count() + torch.neuron.current_device()
    names = torch.neuron.get_device_name(), torch.neuron.get_device_name("neuron:0")
    if torch.neuron.is_available() and torch.neuron.is_bf16_supported() and names == ("neuron:0", "neuron:0"):
        y = y + len(torch_neuronx.neuron.get_amp_supported_dtype())
    return y


def on_a_device(x):
    torch_neuronx.set_device(0)
    with torch_neuronx.device(0), torch.neuron.device("neuron"):
        return x * 2


def on_a_stream(x):
    with torch.neuron.stream(None), torch_neuronx.stream(STREAM):
        y = x * 2
    torch_neuronx.current_stream().wait_stream(STREAM)
    return y


def waiting(x):
    y = x * 2
    torch_neuronx.synchronize()
    torch.neuron.synchronize("neuron:0")
    return y + 1


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("function", [told, on_a_device, on_a_stream, waiting], ids=lambda f: f.__name__)
def test_questions_devices_streams_and_waiting_do_not_break_a_graph(function, fullgraph):
    torch._dynamo.reset()
    torch.neuron.reset_compile_report()
    x = X.to("neuron")
    before = torch.neuron.current_stream()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*splits graph.*(streams|control_deps)")
        result = torch.compile(function, backend="neuron", fullgraph=fullgraph)(x)
    assert torch.equal(result.cpu(), function(x).cpu())
    assert torch.neuron.compile_report()["breaks"] == []
    assert torch.neuron.current_stream() == before


def test_wrong_devices_are_errors_there_too():
    def function(x):
        with torch.neuron.device(1):
            return x * 2

    for run in (function, torch.compile(function, backend="neuron")):
        with pytest.raises(ValueError, match="Device index 1 is out of range"):
            run(X.to("neuron"))


def test_seeds_and_states_break_the_graph_as_cudas_do_and_hold():
    """PyTorch skips ``torch.cuda.manual_seed``, ``get_rng_state`` and ``set_rng_state`` too."""

    def function(x):
        torch.neuron.manual_seed(3)
        state = torch.neuron.get_rng_state()
        one = torch.rand_like(x)
        torch.neuron.set_rng_state(state)
        return one, torch.rand_like(x)

    torch._dynamo.reset()
    one, two = torch.compile(function, backend="neuron")(X.to("neuron"))
    assert torch.equal(one, two)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(function, backend="neuron", fullgraph=True)(X.to("neuron"))


FIRST = """
import torch

def first(x):
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2

x = torch.ones(3, device="neuron")
assert torch.compile(first)(x).tolist() == [4, 4, 4]
(one,) = torch.neuron.compile_report()["breaks"]
assert (one["function"], one["count"]) == ("first", 1), one
assert len(torch.neuron.compile_report()["graphs"]) == 2
"""


def test_breaks_of_the_first_function_that_is_compiled_without_a_backend_are_told(tmp_path):
    script = tmp_path / "first.py"
    script.write_text(FIRST)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
