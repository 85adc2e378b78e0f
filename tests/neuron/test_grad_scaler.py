"""``torch.amp.GradScaler("neuron")``: its decisions are those of a scaler on the CPU, and it reads one number a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from shakedown.neuron import events

pytestmark = pytest.mark.rotating(2, least=3)

OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"momentum": 0.9}),
    "SGD fused": (torch.optim.SGD, {"momentum": 0.9, "fused": True}),
    "AdamW foreach": (torch.optim.AdamW, {"foreach": True}),
    "AdamW fused": (torch.optim.AdamW, {"fused": True}),
    "Adagrad fused": (torch.optim.Adagrad, {"fused": True}),
}
BAD = {2: float("inf"), 3: float("nan")}  # step -> what its loss is multiplied by


def _parts(device: str, optimizer: str, **options: Any):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).to(device)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).to(device)
    make, settings = OPTIMIZERS[optimizer]
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2, **options)
    return model, x, make(model.parameters(), lr=0.01, **settings), scaler


def _trained(device: str, optimizer: str, *, clips: bool = False, accumulates: int = 1, steps: int = 7, **options: Any):
    model, x, opt, scaler = _parts(device, optimizer, **options)
    scales = []
    for step in range(steps):
        for _ in range(accumulates):
            loss = model(x).square().mean() / accumulates * BAD.get(step, 1.0)
            scaler.scale(loss).backward()
        if clips:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        scales.append(scaler.get_scale())
    return scales, [p.detach().cpu() for p in model.parameters()], scaler.state_dict()


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        *((name, {}) for name in OPTIMIZERS),
        ("AdamW fused", {"clips": True}),
        ("SGD", {"clips": True, "accumulates": 2}),
        ("SGD", {"growth_factor": 4.0, "backoff_factor": 0.25}),
        ("SGD fused", {"enabled": False, "steps": 2}),
    ],
    ids=str,
)
def test_steps_are_taken_skipped_and_scaled_as_on_the_cpu(optimizer, options):
    scales, weights, state = _trained("cpu", optimizer, **options)
    events.clear()
    our_scales, our_weights, our_state = _trained("neuron", optimizer, **options)
    assert not torch.neuron.get_fallback_ops()
    assert our_scales == scales
    assert our_state == state
    if options.get("enabled", True):
        assert len(set(scales)) > 2  # it grew and fell
    for ours, theirs in zip(our_weights, weights):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("fused", [False, True])
def test_one_number_is_read_in_a_step_however_many_parameters_there_are(fused):
    """A fused optimizer takes the scale and whether there is an infinity as tensors, and reads none."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8))).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **({"fused": True} if fused else {"foreach": True}))
    scaler, x = torch.amp.GradScaler("neuron"), torch.ones(2, 4, device="neuron")

    def step():
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    step()
    events.clear()
    step()
    rows = events.snapshot()
    reads = sum(row["count"] for row in rows if (row["kind"], row["name"]) == ("synchronize", "item"))
    assert reads == (0 if fused else 1)
    downloads = sum(row["count"] for row in rows if (row["kind"], row["name"]) == ("transfer", "device-to-host"))
    assert downloads <= 1


def test_a_skipped_step_changes_neither_weights_nor_the_optimizers_state():
    for name in ("AdamW foreach", "AdamW fused"):
        model, x, optimizer, scaler = _parts("neuron", name)
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        before = [p.detach().cpu() for p in model.parameters()]
        moments = [s["exp_avg"].cpu() for s in optimizer.state.values()]
        optimizer.zero_grad()
        scaler.scale(model(x).sum() * float("inf")).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 512.0
        assert all(torch.equal(a, p.detach().cpu()) for a, p in zip(before, model.parameters()))
        assert all(torch.equal(a, s["exp_avg"].cpu()) for a, s in zip(moments, optimizer.state.values()))
        assert all(float(s["step"]) == 1 for s in optimizer.state.values())


def test_optimizers_are_unscaled_and_skipped_each_for_itself():
    """An infinity in one model's gradients skips its optimizer alone; the next scale falls for all."""
    one, two = nn.Linear(3, 3).to("neuron"), nn.Linear(3, 3).to("neuron")
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (one, two)]
    scaler, x = torch.amp.GradScaler("neuron", init_scale=256.0), torch.ones(2, 3, device="neuron")
    before = [m.weight.detach().cpu() for m in (one, two)]
    scaler.scale(one(x).sum()).backward()
    scaler.scale(two(x).sum() * float("inf")).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(one.weight.detach().cpu(), before[0])
    assert torch.equal(two.weight.detach().cpu(), before[1])
    assert scaler.get_scale() == 128.0


def test_unscaled_gradients_are_the_losss_own():
    model, x, optimizer, scaler = _parts("neuron", "SGD")
    model(x).square().mean().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    optimizer.zero_grad()
    scaler.scale(model(x).square().mean()).backward()
    assert torch.equal(model[0].weight.grad, expected[0] * 1024)
    scaler.unscale_(optimizer)
    for p, grad in zip(model.parameters(), expected):
        assert torch.equal(p.grad, grad)
    with pytest.raises(RuntimeError, match="has already been called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="has already been called"):
        scaler.step(optimizer)
    scaled = scaler.scale([torch.ones(2, device="neuron"), (torch.ones(1, device="neuron"),)])
    assert torch.equal(scaled[0], torch.full((2,), 1024.0, device="neuron"))
    assert torch.equal(scaled[1][0], torch.full((1,), 1024.0, device="neuron"))


def test_its_state_is_saved_restored_and_set():
    model, x, optimizer, scaler = _parts("neuron", "SGD")
    for _ in range(3):
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    other = torch.amp.GradScaler("neuron")
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    assert other.get_scale() == 2048.0
    scaler.scale(model(x).sum()).backward()
    scaler.step(optimizer)
    scaler.update(new_scale=8.0)
    assert scaler.get_scale() == 8.0
    scaler.scale(model(x).sum()).backward()
    scaler.step(optimizer)
    scaler.update(new_scale=torch.full((), 4.0, device="neuron"))
    assert scaler.get_scale() == 4.0
    assert torch.amp.GradScaler("neuron").is_enabled()


@pytest.mark.usefixtures("fresh_dynamo")
def test_in_half_precision_with_a_compiled_model():
    """Gradients that float16 cannot hold unscaled arrive, and the scaler finds the scale that it can hold."""
    torch.manual_seed(0)
    model = nn.Linear(8, 8).to("neuron")
    x = torch.randn(4, 8, device="neuron")
    run = torch.compile(model, backend="neuron")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("neuron", init_scale=2.0**24)
    losses, scales = [], []
    for _ in range(10):
        with torch.autocast("neuron", dtype=torch.float16):
            loss = run(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    assert scales[0] == 2.0**23  # too much for float16
    assert scales[-1] == scales[-2]
    assert losses[-1] < losses[0]
    assert all(torch.isfinite(p).all() for p in model.parameters())
