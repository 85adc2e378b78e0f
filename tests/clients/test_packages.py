"""Packages that train, decode, adapt and place models: a sample of ``python -m tests.clients``, another one every day.

Transformers and Accelerate find the device by themselves, as where TorchNeuron is installed; docs/clients.md has the rest.
"""

from __future__ import annotations

import importlib.util

import pytest
import torch

from . import packages, rows
from .table import problem_of


@pytest.mark.rotating(2)
@pytest.mark.parametrize("file", packages.FILES)
def test_what_packages_do(file, pytestconfig):
    """One row of a file, or all of them with ``--sweep all``: collecting the rows would import every package."""
    if reason := packages.usable(packages.FILES[file][0]):
        pytest.skip(reason)
    seed = None if pytestconfig.option.sweep == "all" else pytestconfig.option.sweep_seed
    cases = packages.sample(file, ("eager", "compile"), seed)
    assert {row.name(mode): problem for row, mode in cases if (problem := problem_of(rows.run(row, mode)))} == {}


@pytest.fixture
def transformers():
    if reason := packages.usable("transformers") or packages.usable("accelerate"):
        pytest.skip(reason)


def test_packages_find_the_device_as_torch_neuronx(transformers):
    assert importlib.util.find_spec("torch_neuronx") is not None
    from accelerate.utils import is_neuron_available
    from transformers.utils import is_torch_bf16_gpu_available, is_torch_neuron_available

    assert is_neuron_available()
    assert is_torch_neuron_available(check_device=True)
    assert is_torch_bf16_gpu_available()


def test_the_trainer_takes_the_device_unless_the_cpu_is_asked_for(transformers, tmp_path):
    from accelerate.state import AcceleratorState, PartialState
    from transformers import TrainingArguments

    for asked, device in ((False, "neuron:0"), (True, "cpu")):
        AcceleratorState._reset_state(True)
        PartialState._reset_state()
        arguments = TrainingArguments(str(tmp_path), use_cpu=asked, torch_compile=True, bf16=not asked)
        assert str(arguments.device) == device
        assert arguments.torch_compile_backend == ("inductor" if asked else "neuron")


def test_a_wrong_row_of_a_package_is_named():
    right = {"package": "p", "mode": "eager", "error": 0.5, "worst": "loss", "fallbacks": [], "expected_fallbacks": []}
    right |= {"executed": 3, "graphs": 0, "breaks": 0}
    assert problem_of(right) == ""
    assert problem_of({**right, "error": 2.0}) == "loss is 2.00 times as far off as it may be"
    assert problem_of({**right, "fallbacks": ["x::y"]}) == "falls back: x::y"
    assert problem_of({**right, "expected_fallbacks": ["x::y"]}) == "falls back: nothing"
    assert problem_of({**right, "executed": 0}) == "nothing ran on the device"
    assert problem_of({**right, "mode": "compile"}) == "0 graphs, 0 breaks"
    assert problem_of({**right, "mode": "compile", "graphs": 2}) == ""
    assert problem_of({**right, "problem": "ValueError: no"}) == "ValueError: no"


def test_an_error_is_measured_in_what_is_allowed():
    from .comparing import errors_of

    e = {"loss": torch.tensor(2.0), "change of w": torch.ones(4, dtype=torch.float64), "tokens": torch.tensor([1, 2])}
    a = {"loss": torch.tensor(2.0002), "change of w": e["change of w"] * 1.0002, "tokens": torch.tensor([1, 2])}
    found = errors_of(a, e, 1e-4)
    assert found["loss"] == pytest.approx(1, rel=0.01)
    assert found["change of w"] == pytest.approx(0.5, rel=0.01)  # behind a gradient four times as much is allowed
    assert found["tokens"] == 0
    small = {"change of v": torch.full((4,), 1e-4, dtype=torch.float64), **e}
    off = {"change of v": torch.full((4,), 2e-4, dtype=torch.float64), **a}
    assert errors_of(off, small, 1e-4)["change of v"] == pytest.approx(2500)
    assert errors_of(off, small, 1e-4, floor=0.01)["change of v"] == pytest.approx(25)  # counts as a hundredth of 2
    assert errors_of({**a, "tokens": torch.tensor([1, 3])}, e, 1e-4)["tokens"] == float("inf")
    assert errors_of({**a, "loss": torch.tensor(float("nan"))}, e, 1e-4)["loss"] == float("inf")
    with pytest.raises(AssertionError, match="expected torch.float32"):
        errors_of({**a, "loss": a["loss"].double()}, e, 1e-4)
    with pytest.raises(AssertionError, match="tokens"):
        errors_of({"loss": a["loss"], "change of w": a["change of w"]}, e, 1e-4)


def test_a_change_is_not_judged_where_the_gradient_is_nothing_but_rounding():
    from .comparing import errors_of

    def results(gradient: list[float], change: list[float]) -> dict[str, torch.Tensor]:
        return {"gradient of w": torch.tensor(gradient), "change of w": torch.tensor(change, dtype=torch.float64)}

    wide = results([1.0, 1e-5], [-1e-3, -1e-3])
    cpu = results([1.0, -1e-5], [-1e-3, 1e-3])  # off by 2e-5: the second element's sign is rounding
    assert errors_of(wide, cpu, 1e-4, lambda: wide)["change of w"] == 0
    assert errors_of(results([1.0, 1e-5], [-1e-3, 5e-3]), cpu, 1e-4, lambda: wide)["change of w"] == 0
    assert errors_of(results([1.0, 1e-5], [1e-3, -1e-3]), cpu, 1e-4, lambda: wide)["change of w"] > 1000
    sure = results([1.0, 0.9e-5], [-1e-3, -1e-3])  # the CPU's gradient is right to 1e-6: the sign is known
    assert errors_of(results([1.0, 1e-5], [-1e-3, 1e-3]), sure, 1e-4, lambda: wide)["change of w"] > 1000
