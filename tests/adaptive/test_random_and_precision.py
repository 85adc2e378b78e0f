"""Generators, autocast's casts, gradient scaling, checkpoints and errors of hooks, while operators are recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from shakedown.neuron import autocast
from shakedown.neuron.pending import Pending

from .running import adaptive, plain_eager, until_fused


def _plainly(fn: Any) -> Any:
    with plain_eager():
        made = fn()
        torch.neuron.synchronize()
        return made


def _same(run: Any) -> None:
    """Runs that record, and then are fused, give the bits of plain eager execution."""
    expected = [t.cpu() for t in _plainly(run)]

    def check(made: Sequence[torch.Tensor]) -> None:
        for a, e in zip(made, expected, strict=True):
            assert torch.equal(a.cpu(), e)

    until_fused(run, check)


def test_a_generator_of_the_device() -> None:
    def run() -> Sequence[torch.Tensor]:
        g = torch.Generator("neuron").manual_seed(4)
        x = torch.rand(5, device="neuron", generator=g) * 2
        y = torch.poisson(x, generator=g) + x
        return x, y, torch.randn(5, device="neuron", generator=g), g.get_state()

    _same(run)


def test_the_state_after_recorded_draws_is_that_of_plain_eager_execution() -> None:
    def run() -> Sequence[torch.Tensor]:
        torch.manual_seed(5)
        x = F.dropout(torch.rand(6, device="neuron"), 0.5)
        with torch.random.fork_rng(devices=[0], device_type="neuron"):
            y = x + torch.randn(6, device="neuron")
        return x, y, torch.randn(6, device="neuron"), torch.neuron.get_rng_state()

    _same(run)


def test_casts_are_shared_and_never_stale() -> None:
    torch.manual_seed(0)
    start = nn.Linear(4, 4).state_dict()

    def run() -> Sequence[torch.Tensor]:
        model = nn.Linear(4, 4)
        model.load_state_dict(start)
        model = model.to("neuron")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(2, 4, device="neuron")
        with torch.autocast("neuron", dtype=torch.bfloat16):
            for _ in range(2):  # the optimizer writes within the region
                loss = model(model(x)).float().square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            last = model(x)
        assert not autocast._casts._kept
        return loss.detach(), last.detach(), *(p.detach() for p in model.parameters())

    _same(run)


def test_a_scaler_skips_and_steps() -> None:
    def run() -> Sequence[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(3, 3).to("neuron")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        scaler = torch.amp.GradScaler("neuron", init_scale=64.0, growth_interval=1)
        for factor in (1.0, float("inf"), 1.0):
            scaler.scale(model(torch.ones(2, 3, device="neuron")).sum() * factor).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return *(p.detach() for p in model.parameters()), torch.tensor(scaler.get_scale())

    expected = [t.cpu() for t in _plainly(run)]
    assert expected[-1] == 128.0
    for _ in range(4):
        assert all(torch.equal(a.cpu(), e) for a, e in zip(run(), expected))
        adaptive.wait(60)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_draws_the_same_masks_again(reentrant: bool) -> None:
    def run() -> Sequence[torch.Tensor]:
        torch.manual_seed(2)
        x = torch.ones(16, device="neuron", requires_grad=True)
        y = checkpoint(_dropped, x, use_reentrant=reentrant)
        y.sum().backward()
        return y.detach(), x.grad, torch.neuron.get_rng_state()

    _same(run)
    y, grad, _ = run()
    assert torch.equal(grad, 2 * y)


def _dropped(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x * 1.0, 0.5) * x


def test_deterministic_mode_records_nothing_and_marks_new_memory() -> None:
    torch.ones(3, device="neuron") + 1
    torch.use_deterministic_algorithms(True)
    try:
        x = torch.ones(3, device="neuron") + 1
        assert type(x.untyped_storage().buffer) is not Pending
        assert torch.empty(3, device="neuron").isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)
    assert type((x + 1).untyped_storage().buffer) is Pending
    assert not torch.empty(3, device="neuron").isnan().any()


def test_an_error_in_a_hook_reaches_the_caller() -> None:
    def failing(grad: torch.Tensor) -> None:
        raise KeyError("mine")

    for _ in range(3):
        x = torch.ones(3, device="neuron", requires_grad=True)
        y = x.sin()
        y.register_hook(failing)
        with pytest.raises(KeyError, match="mine"):
            y.sum().backward()
        assert torch.equal((x * 2).detach().cpu(), torch.full((3,), 2.0))
