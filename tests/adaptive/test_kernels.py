"""Custom kernels are recorded and fused as any operator."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
import torch
from torch import Tensor
from torch.neuron import nki_op, wrap_nki

from shakedown.neuron import events
from shakedown.neuron.errors import KernelError

from .running import adaptive, operators, same, until_fused

HERE = object()  # makes a module whose functions cannot be written down


def gated(x: Any, gate: Any, power: int = 2) -> Any:
    assert HERE is not None
    return jnp.where(gate > 0, x**power, -x), jnp.sum(x)


@nki_op("adaptive_kernels::bump_", mutates_args={"x"})
def bump_(x: Tensor, y: Tensor) -> Tensor:
    more, total = wrap_nki(gated)(x, y, power=3)
    x.copy_(more)
    return total


def _example(name: str) -> Any:
    file = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_step_with_kernels_is_fused_and_is_the_cpus() -> None:
    norms = _example("kernels_rms_norm")
    torch.manual_seed(0)
    start, weight = torch.randn(6, 8), torch.rand(8)

    def on(device: str) -> list[Tensor]:
        x, w = start.t().contiguous().to(device).t().requires_grad_(), weight.clone().to(device).requires_grad_()
        normal = norms.rms_norm(x * 2, w)
        kept = normal.detach().clone()
        total = bump_(kept[1:3], normal.detach()[1:3] - 0.5)
        (normal * kept).sum().backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
        return [normal, kept, total, x.grad, w]

    expected = on("cpu")
    events.clear()
    until_fused(lambda: on("neuron"), lambda made: same(made, expected))
    groups = [g for g in adaptive.groups() if "examples::rms_norm_backward" in g["operators"]]
    assert groups
    assert all(not g["errors"] for g in groups)
    assert "adaptive_kernels::bump_" in {name for g in groups for name in g["operators"]}
    assert operators()[0] > 0
    assert not torch.neuron.get_fallback_ops()


def test_products_of_groups_of_rows_are_those_of_a_loop() -> None:
    grouped = _example("kernels_grouped_matmul")
    torch.manual_seed(0)
    rows, matrices = torch.randn(12, 4), torch.randn(3, 4, 4)

    def on(device: str) -> list[Tensor]:
        x, w = (t.clone().to(device).requires_grad_() for t in (rows, matrices))
        if device == "cpu":
            made = torch.cat([x[:5] * 2 @ w[0], x[5:] * 2 @ w[2]])
        else:
            made = grouped.grouped_matmul(x * 2, w, torch.tensor([5, 5, 12], dtype=torch.int32).to(device))
        made.square().sum().backward()
        return [made, x.grad, w.grad]

    expected = on("cpu")
    until_fused(lambda: on("neuron"), lambda made: same(made, expected))
    assert not torch.neuron.get_fallback_ops()


def test_wrapped_kernels_are_recorded_and_constants_tell_them_apart() -> None:
    kernel = wrap_nki(gated)
    x, gate = torch.arange(4.0), torch.tensor([1.0, -1.0, 1.0, -1.0])

    def on(device: str) -> list[Tensor]:
        a, b = x.to(device), gate.to(device)
        made = [kernel(a + 1, b, power)[0] * 2 for power in (2, 3, 4)]
        return [*made, kernel(made[0], b)[1]]

    until_fused(lambda: on("neuron"), lambda made: same(made, on("cpu")))
    assert "nki::gated" in torch.neuron.get_executed_ops()


def test_the_error_of_a_kernel_comes_at_the_call() -> None:
    x = torch.ones(3, device="neuron") * 2
    with pytest.raises(KernelError, match=r"kernel gated\(x=float32\[3\], gate=float32\[4\], power=2\) failed at"):
        wrap_nki(gated)(x, torch.ones(4, device="neuron"))
    assert x.tolist() == [2, 2, 2]
