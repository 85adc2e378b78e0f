"""Whole training steps of a decoder and a residual CNN: the CPU's weights, nothing on the CPU, nothing compiled twice."""

from __future__ import annotations

import copy

import pytest
import torch

from shakedown.neuron import events
from shakedown.readiness.workload import load, resolve

OPTIMIZERS = {
    "SGD": lambda p, **how: torch.optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=1e-2, **how),
    "Adam": lambda p, **how: torch.optim.Adam(p, lr=1e-3, weight_decay=1e-2, **how),
    "AdamW": lambda p, **how: torch.optim.AdamW(p, lr=1e-3, **how),
}
FORMS = {"single": {"foreach": False, "fused": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


@pytest.mark.rotating(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["decoder", "cnn"])
def test_no_operator_of_a_training_step_falls_back(name, dtype):
    workload = load(resolve(name))
    torch.manual_seed(0)
    initial = workload.build_model().to(dtype)
    batch = {k: v.to(dtype) if v.is_floating_point() else v for k, v in workload.make_batch(2, 16).items()}
    on_device = {k: v.to("neuron") for k, v in batch.items()}
    for optimizer_name, make in OPTIMIZERS.items():
        for form, how in FORMS.items():
            models = {"cpu": copy.deepcopy(initial), "neuron": copy.deepcopy(initial).to("neuron")}
            losses: dict[str, list[float]] = {}
            events.clear()
            for device, model in models.items():
                optimizer = make(model.parameters(), **(how if device == "neuron" else FORMS["single"]))
                losses[device] = []
                for _ in range(2):
                    optimizer.zero_grad()
                    _, loss = workload.forward(model, on_device if device == "neuron" else batch)
                    loss.backward()
                    optimizer.step()
                    losses[device].append(loss.item())
            label = f"{optimizer_name}, {form}"
            assert events.names("fallback") == [], label
            assert losses["neuron"] == pytest.approx(losses["cpu"], rel=1e-4 if dtype is torch.float32 else 2e-2), label


@pytest.mark.parametrize("name", ["decoder", "cnn"])
def test_a_step_gives_the_cpus_gradients_and_weights(name):
    """With SGD, whose update is proportional to the gradient: Adam would turn rounding noise into whole steps."""
    workload = load(resolve(name))
    torch.manual_seed(1)
    host = workload.build_model()
    device = copy.deepcopy(host).to("neuron")
    batch = workload.make_batch(2, 16)
    for model, data in ((host, batch), (device, {k: v.to("neuron") for k, v in batch.items()})):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            workload.forward(model, data)[1].backward()
            optimizer.step()
    for (label, ours), theirs in zip(device.named_parameters(), host.parameters()):
        scale = theirs.grad.abs().max().item()
        torch.testing.assert_close(
            ours.grad.cpu(), theirs.grad, rtol=1e-3, atol=1e-4 * scale + 1e-7, msg=lambda m, n=label: f"{n}: {m}"
        )
        torch.testing.assert_close(
            ours.detach().cpu(), theirs.detach(), rtol=1e-3, atol=1e-4, msg=lambda m, n=label: f"{n}: {m}"
        )


def test_a_schedule_with_warm_up_compiles_nothing_after_the_third_step():
    workload = load(resolve("decoder"))
    model = workload.build_model().to("neuron")
    batch = {k: v.to("neuron") for k, v in workload.make_batch(2, 16).items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], milestones=[3])
    compiled = []
    for _ in range(8):
        events.clear()
        optimizer.zero_grad()
        workload.forward(model, batch)[1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        compiled.append(events.total("compile"))
    assert compiled[0] > 0
    assert compiled[3:] == [0] * 5


def test_operators_are_tracked_under_the_names_that_users_know():
    x = torch.randn(2, 4, 8, 8).to("neuron")
    functional = torch.nn.functional
    weight = torch.ones(8, device="neuron")
    events.clear()
    functional.linear(x, torch.ones(3, 8, device="neuron"))
    functional.layer_norm(functional.softmax(x, -1), (8,), weight, weight)
    functional.scaled_dot_product_attention(x, x, x)
    names = set(events.names("execute"))
    assert {"aten::linear", "aten::softmax.int", "aten::layer_norm", "aten::scaled_dot_product_attention"} <= names
    assert not {"aten::matmul", "aten::mm", "aten::bmm", "aten::exp", "aten::mean.dim"} & names
    assert events.names("fallback") == []
