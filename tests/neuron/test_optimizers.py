"""Every optimizer of ``torch.optim`` gives the CPU's weights on the device, without touching the CPU or recompiling."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from shakedown.neuron import events

pytestmark = pytest.mark.rotating(2, least=3)

STEPS = 5
# (optimizer, arguments). `foreach` and `fused` are crossed in where the optimizer has them.
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    ("AdamW", {"lr": 0.01}),
    ("AdamW", {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    ("NAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.01}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1}),
    ("Adadelta", {}),
    ("Adamax", {"lr": 0.01}),
    ("RMSprop", {"lr": 0.01, "centered": True, "momentum": 0.9}),
    ("Rprop", {}),
    ("ASGD", {"lr": 0.1}),
    ("Adafactor", {}),
    ("Muon", {"lr": 0.01}),
]


def _cases() -> Iterator[Any]:
    for name, arguments in SETTINGS:
        if not hasattr(torch.optim, name):  # Muon is younger than the oldest PyTorch we support
            continue
        known = inspect.signature(getattr(torch.optim, name)).parameters
        modes: list[dict[str, bool]] = [{"foreach": False}, {"foreach": True}] if "foreach" in known else [{}]
        if "fused" in known:
            modes.append({"fused": True})
        for mode in modes:
            shown = ",".join(f"{k}={v}" for k, v in {**arguments, **mode}.items())
            yield pytest.param(name, arguments, mode, id=f"{name}-{shown}")


def _model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def _batches(count: int, dtype: torch.dtype = torch.float32) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(4, 6, dtype=dtype), torch.randn(4, 3, dtype=dtype)) for _ in range(count)]


def _gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    device = next(model.parameters()).device
    model.zero_grad()
    loss = ((model(x.to(device)) - y.to(device)) ** 2).mean()
    loss.backward()
    return loss


def _trained(
    device: str, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    model = _model(dtype).to(device)
    optimizer = make(list(model.parameters()))
    for x, y in _batches(STEPS, dtype):
        _gradients(model, x, y)
        optimizer.step()
    return [p.detach().cpu() for p in model.parameters()]


def _assert_close(got: list[torch.Tensor], want: list[torch.Tensor], **tolerance: float) -> None:
    start = [p.detach() for p in _model(want[0].dtype).parameters()]
    assert any((w - s).abs().max() > 1e-4 for w, s in zip(want, start)), "the optimizer did not move the weights"
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, **tolerance)


def _matrices_if_muon(name: str, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    return [p for p in parameters if p.ndim == 2] if name == "Muon" else parameters


@pytest.mark.rotating(3)
@pytest.mark.parametrize(("name", "arguments", "mode"), list(_cases()))
def test_weights_are_those_of_the_cpu(name: str, arguments: dict[str, Any], mode: dict[str, bool]) -> None:
    cls = getattr(torch.optim, name)
    single = {"foreach": False} if mode else {}
    want = _trained("cpu", lambda ps: cls(_matrices_if_muon(name, ps), **arguments, **single))
    events.clear()
    got = _trained("neuron", lambda ps: cls(_matrices_if_muon(name, ps), **arguments, **mode))
    assert events.names("fallback") == []
    _assert_close(got, want, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs(search: str | None) -> None:
    """In float64: the cubic interpolation of the line search turns last bits of float32 into other step lengths."""
    double = torch.float64
    (batch,) = _batches(1, double)

    def run(device: str) -> list[torch.Tensor]:
        model = _model(double).to(device)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, line_search_fn=search)
        for _ in range(2):
            optimizer.step(lambda: _gradients(model, *batch))  # type: ignore[arg-type, return-value]
        return [p.detach().cpu() for p in model.parameters()]

    want = run("cpu")
    events.clear()
    got = run("neuron")
    assert events.names("fallback") == []
    _assert_close(got, want, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_fused_with_a_tensor_as_learning_rate(name: str) -> None:
    cls = getattr(torch.optim, name)
    arguments = {"momentum": 0.9} if name == "SGD" else {}
    want = _trained("cpu", lambda ps: cls(ps, lr=torch.tensor(0.05), fused=True, **arguments))
    events.clear()
    got = _trained("neuron", lambda ps: cls(ps, lr=torch.tensor(0.05, device="neuron"), fused=True, **arguments))
    assert events.names("fallback") == []
    _assert_close(got, want, rtol=1e-4, atol=2e-6)


def _fused_step(name: str, tensors: list[torch.Tensor], **scaler: torch.Tensor) -> list[torch.Tensor]:
    """One call of the fused kernel on [parameter, gradient, first state, second state, step], which it changes."""
    p, g, m, v, step = tensors
    hyper: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.1, "maximize": False}
    op = getattr(torch, f"_fused_{name}_")
    if name == "sgd":
        op([p], [g], [m], momentum=0.9, dampening=0.2, nesterov=True, is_first_step=False, **hyper, **scaler)
    elif name == "adagrad":
        op([p], [g], [m], [step], lr_decay=0.1, eps=1e-8, **hyper, **scaler)
    else:
        op([p], [g], [m], [v], [], [step], beta1=0.9, beta2=0.99, eps=1e-8, amsgrad=False, **hyper, **scaler)
    return [t.cpu() for t in tensors]


def _state(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [*(torch.rand(5, 2).to(dtype) for _ in range(4)), torch.tensor(3.0)]


FUSED = ["sgd", "adam", "adamw", "adagrad"]


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("found", [0.0, 1.0])
def test_fused_kernels_unscale_gradients_and_skip_overflows(name: str, found: float) -> None:
    scaler = {"grad_scale": torch.tensor(8.0), "found_inf": torch.tensor(found)}
    want = _fused_step(name, _state(), **scaler)
    assert torch.equal(want[0], _state()[0]) == bool(found)
    events.clear()
    got = _fused_step(name, [t.to("neuron") for t in _state()], **{n: t.to("neuron") for n, t in scaler.items()})
    assert events.names("fallback") == []
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)


@pytest.mark.covering
@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_fused_kernels_compute_half_types_in_float32(name: str, dtype: torch.dtype) -> None:
    """Against the CPU's float32 kernel, since its half-precision SGD kernel leaves parameters as they were (2.13)."""
    wide = _fused_step(name, [t.float() for t in _state(dtype)])
    got = _fused_step(name, [t.to("neuron") for t in _state(dtype)])
    for g, w, start in zip(got, wide, _state(dtype), strict=True):
        torch.testing.assert_close(g, w.to(start.dtype))


@pytest.mark.parametrize("mode", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_learning_rate_schedule_compiles_nothing_new(name: str, mode: dict[str, bool]) -> None:
    model = _model().to("neuron")
    arguments = {"momentum": 0.9} if name == "SGD" else {"weight_decay": 0.1}
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **arguments, **mode)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: (n + 1) / 4 if n < 4 else 0.5 * (1 + math.cos(math.pi * (n - 4) / 8))
    )
    rates = set()
    for number, (x, y) in enumerate(_batches(12)):
        if number == 3:
            events.clear()
        _gradients(model, x, y)
        optimizer.step()
        rates.add(optimizer.param_groups[0]["lr"])
        schedule.step()
    assert len(rates) > 8, "the schedule is meant to change the rate"
    assert [n for n in events.names("compile") if not n.startswith("adaptive::")] == []
    assert events.total("execute") > 0


def test_a_fused_step_is_one_program() -> None:
    model = _model().to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    for x, y in _batches(2):
        _gradients(model, x, y)
        optimizer.step()
    _gradients(model, *_batches(1)[0])
    events.clear()
    optimizer.step()
    ran = {r["name"]: r["count"] for r in events.snapshot() if r["kind"] == "execute"}
    assert ran == {"aten::_foreach_add_.Scalar": 1, "aten::_fused_adamw_": 1}


def test_state_moves_with_a_checkpoint() -> None:
    """Five steps on the device, or two on the CPU and three on the device, give the same weights."""

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
        for x, y in batches:
            _gradients(model, x, y)
            optimizer.step()

    batches = _batches(STEPS)
    first = _model()
    optimizer = torch.optim.AdamW(first.parameters(), lr=0.01)
    steps(first, optimizer, batches[:2])
    second = _model().to("neuron")
    second.load_state_dict(first.state_dict())
    resumed = torch.optim.AdamW(second.parameters(), lr=0.01)
    resumed.load_state_dict(optimizer.state_dict())
    steps(second, resumed, batches[2:])
    want = _trained("cpu", lambda ps: torch.optim.AdamW(ps, lr=0.01))
    _assert_close([p.detach().cpu() for p in second.parameters()], want, rtol=1e-4, atol=2e-6)
