"""The parts of localisation: what is no fault, what is one, and whose it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shakedown.readiness.bisect import again, modules
from shakedown.readiness.bisect.walk import Call, Judged, Modules, Place, Walk, judge_call
from shakedown.readiness.judge import bisect as judge
from shakedown.readiness.requirements import Numerics

aten = torch.ops.aten
DEMAND = Numerics()


def judged(func: Any, args: list[Any], made: dict[str, Tensor], **kwargs: Any) -> Judged:
    """What localisation says of an operator that made `made` on a device."""
    return judge_call(Call(func, args, kwargs, made, Place(None, 0, ""), 1, "forward"), 64, DEMAND)


def test_positions_of_equal_values_are_anyones_choice() -> None:
    x = torch.tensor([[3.0, 1.0, 3.0], [0.0, 2.0, 2.0]])
    values, places = aten.topk.default(x, 1)
    other = {"values": values, "indices": torch.tensor([[2], [2]])}
    tie = judged(aten.topk.default, [x, 1], other)
    assert not tie.wrong
    assert tie.reason.startswith("order-dependent")
    assert not judged(aten.topk.default, [x, 1], {"values": values, "indices": places}).reason
    assert judged(aten.topk.default, [x, 1], other | {"indices": torch.tensor([[1], [1]])}).wrong
    assert not judged(aten.argmax.default, [x, 1], {"output": torch.tensor([2, 2])}).wrong
    assert judged(aten.argmax.default, [x, 1], {"output": torch.tensor([1, 1])}).wrong


def test_several_values_for_one_place_are_order_dependent() -> None:
    x, source = torch.zeros(4), torch.tensor([1.0, 2.0])
    for index, blamed in ((torch.tensor([1, 1]), False), (torch.tensor([1, 3]), True)):
        right = aten.scatter.src(x, 0, index, source)
        assert not judged(aten.scatter.src, [x, 0, index, source], {"output": right}).wrong
        other = judged(
            aten.scatter.src, [x, 0, index, source], {"output": aten.scatter.src(x, 0, index, source.flip(0))}
        )
        assert other.wrong is blamed
        assert ("order-dependent" in other.reason) is not blamed


def test_random_operators_are_named_and_not_blamed() -> None:
    reason = again.why_not(aten.bernoulli.p, [torch.ones(3), 0.5], {})
    assert reason is not None
    assert reason.startswith("random")
    assert again.why_not(aten.native_dropout.default, [torch.ones(3), 0.0, True], {}) is None
    assert again.why_not(aten.native_dropout.default, [torch.ones(3), 0.1, True], {})
    assert again.why_not(aten.transpose.int, [torch.ones(3, 3), 0, 1], {}) == ""


def test_non_finite_values_must_be_of_one_kind() -> None:
    x = torch.tensor([1.0, 0.0, -1.0, 100.0])
    right = aten.log.default(x)
    assert not judged(aten.log.default, [x], {"output": right}).wrong
    for place, value in ((1, float("inf")), (1, float("nan")), (2, 0.0), (0, float("nan"))):
        wrong = right.clone()
        wrong[place] = value
        assert judged(aten.log.default, [x], {"output": wrong}).wrong
    big = torch.tensor([100.0, 1.0])  # overflows in float32 on every device, and not in float64
    assert not judged(aten.exp.default, [big], {"output": aten.exp.default(big)}).wrong


def test_a_move_must_keep_every_bit() -> None:
    x = torch.rand(64) + 1
    off = x.clone()
    off[5] = torch.nextafter(off[5], torch.tensor(2.0))
    assert not judged(aten.clone.default, [x], {"output": x.clone()}).wrong
    found = judged(aten.clone.default, [x], {"output": off})
    assert "1 values are not the bits that were to be moved" in found.numbers[0].findings
    cast = x.bfloat16().float()
    assert not judged(aten._to_copy.default, [x], {"output": x.bfloat16()}, dtype=torch.bfloat16).wrong
    assert judged(aten.clone.default, [x], {"output": cast}).wrong


def test_an_operator_without_a_cpu_kernel_is_judged_by_its_mathematics() -> None:
    x, grad, weight = torch.randn(2, 3, 5), torch.randn(2, 3, 4), torch.randn(4, 5)
    right = {
        "output0": grad @ weight,
        "output1": grad.reshape(6, 4).T @ x.reshape(6, 5),
        "output2": grad.sum((0, 1)),
    }
    args = [x, grad, weight, [True, True, True]]
    whole = judged(aten.linear_backward.default, args, right)
    assert len(whole.numbers) == 3
    assert not whole.wrong
    assert judged(aten.linear_backward.default, args, right | {"output2": right["output2"] * 1.01}).wrong
    q = torch.randn(1, 2, 4, 8)
    op = aten._scaled_dot_product_fused_attention_overrideable.default
    exact = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    made = {"output": exact, "logsumexp": torch.full((1, 2, 4), float("nan"))}
    assert not judged(op, [q, q, q, None, 0.0, True, True], made).wrong
    assert judged(op, [q, q, q, None, 0.0, False, True], made).wrong


def test_a_tiny_update_is_rounded_on_the_cpu_too() -> None:
    """Weight decay of 1e-5 is a few roundings of the factor itself: the share of the update made decides nothing."""
    weight = torch.randn(40, 40)
    call = Call(aten.mul_.Tensor, [weight, torch.tensor(1 - 1e-5)], {}, {}, Place(None, 0, ""), 1, "optimizer")
    call.made = {"self": weight * torch.tensor(1 - 1e-5)}
    assert not judge_call(call, 64, DEMAND).wrong
    call.made = {"self": weight.clone()}  # no decay at all
    assert judge_call(call, 64, DEMAND).wrong


@dataclasses.dataclass
class Both:
    """An output that is neither a tensor nor a tuple."""

    first: Tensor
    rest: dict[str, list[Tensor]]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Both:
        y = self.linear(x)
        return Both(y, {"more": [torch.tanh(y)]})


class Shared(nn.Module):
    """One layer under two names, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()
        self.again = self.layer

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.layer(x).first).rest["more"][0]


def sides() -> tuple[SimpleNamespace, SimpleNamespace]:
    """A lab on the CPU, as far as the search for a module looks at it, and its float64 side."""
    torch.manual_seed(0)
    model, x = Shared(), torch.randn(3, 6)
    wide = Shared().double()
    wide.load_state_dict(model.state_dict())

    def side(model: nn.Module, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(model=model, batch={"x": x}, reset=lambda: model.zero_grad())

    def run(side: Any) -> tuple[dict[str, Tensor], Tensor]:
        out = side.model(side.batch["x"])
        return {"out": out}, out.square().mean()

    job = SimpleNamespace(dtype="float32")
    lab = SimpleNamespace(target_side=side(model, x), trains=True, run=run, limit=6, demand=DEMAND, job=job)
    return lab, side(wide, x.double())


@contextmanager
def hooked(handle: Any) -> Iterator[None]:
    yield
    handle.remove()


def test_the_call_of_a_shared_module_is_named() -> None:
    lab, wide = sides()
    truth, cpu = modules.look(lab, wide), modules.look(lab, lab.target_side)
    assert list(cpu.calls) == [("layer.linear", 0), ("layer", 0), ("layer.linear", 1), ("layer", 1), ("", 0)]
    assert set(cpu.calls["layer", 0].outputs) == {"first", "rest.more[0]"}
    assert modules.first_wrong_forward(lab, cpu, cpu, truth) is None
    assert modules.first_wrong_gradient(lab, cpu, cpu, truth) is None
    calls = iter(range(2))

    def second_is_off(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output * (1.001 if next(calls) else 1.0)

    with hooked(lab.target_side.model.layer.linear.register_forward_hook(second_is_off)):
        device = modules.look(lab, lab.target_side)
    found = modules.first_wrong_forward(lab, device, cpu, truth)
    assert found is not None
    assert (found.path, found.call, found.kind) == ("layer.linear", 1, "Linear")
    assert "scaled by 1.001" in found.numbers[0].findings[0]


def test_a_function_between_modules_belongs_to_the_module_that_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, wide = sides()
    truth, cpu = modules.look(lab, wide), modules.look(lab, lab.target_side)
    tanh = torch.tanh
    monkeypatch.setattr(torch, "tanh", lambda x: tanh(x) * 1.001)
    found = modules.first_wrong_forward(lab, modules.look(lab, lab.target_side), cpu, truth)
    assert found is not None
    assert (found.path, found.call, found.kind) == ("layer", 0, "Layer")


def test_a_gradient_is_wrong_where_the_forward_pass_is_right() -> None:
    lab, wide = sides()
    truth, cpu = modules.look(lab, wide), modules.look(lab, lab.target_side)
    weight = lab.target_side.model.layer.linear.weight
    with hooked(weight.register_hook(lambda gradient: gradient * 1.001)):
        device = modules.look(lab, lab.target_side)
    assert modules.first_wrong_forward(lab, device, cpu, truth) is None
    found = modules.first_wrong_gradient(lab, device, cpu, truth)
    assert found is not None
    assert (found.path, found.numbers[0].tensor) == ("layer.linear", "parameter layer.linear.weight")


def walked(model: nn.Module, x: Tensor) -> Walk:
    """All operators of a forward and backward pass on the CPU, as the device would be walked."""
    stack = Modules(model)
    walk = Walk(torch.device("cpu"), stack, 64, DEMAND)
    with walk:
        walk.begin("forward", True)
        loss = model(x).square().mean()
        walk.begin("backward", True)
        loss.backward()
    stack.close()
    walk.finish()
    return walk


@torch.library.custom_op("shakedown_test::halve", mutates_args=())
def halve(x: Tensor) -> Tensor:
    """Wrong the third time it is called, as a device may be; right when it is run again."""
    halve.calls += 1
    return x * (0.51 if halve.calls == 3 + 2 * 2 else 0.5)  # every walked call is run again twice


halve.register_autograd(lambda ctx, grad: grad.exp())


def test_the_walk_names_module_call_and_line() -> None:
    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return halve(x).relu()

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.halved = Half()

        def forward(self, x: Tensor) -> Tensor:
            return self.halved(self.halved(self.halved(x)))

    halve.calls = 0
    walk = walked(Whole(), torch.randn(4, 4, requires_grad=True))
    assert walk.found is not None
    call, judgement = walk.found
    assert again.full_name(call.func) == "shakedown_test::halve"
    assert (call.place.module, call.place.call, call.phase) == ("halved", 2, "forward")
    assert call.place.line.startswith("test_bisect_parts.py:")
    assert "scaled by 1.02" in judgement.numbers[0].findings[0]


@torch.library.custom_op("shakedown_test::refuse", mutates_args=())
def refuse(x: Tensor) -> Tensor:
    """Raises the first time, as a device may, and not when it is run again."""
    refuse.calls += 1
    if refuse.calls == 1:
        raise RuntimeError("out of order\nsecond line")
    return x.clone()


def test_an_operator_that_raises_only_on_the_device_is_found() -> None:
    refuse.calls = 0
    stack = Modules(nn.Identity())
    walk = Walk(torch.device("cpu"), stack, 64, DEMAND)
    walk.begin("forward", True)
    with walk, pytest.raises(RuntimeError, match="out of order"):
        refuse(torch.ones(3))
    walk.finish()
    assert walk.found is not None
    call, judgement = walk.found
    assert call.raised == "RuntimeError: out of order"
    assert judgement.numbers[0].findings == ["raises RuntimeError: out of order, and the CPU does not"]


def test_a_healthy_walk_blames_nobody() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.GELU(), nn.Dropout(0.5), nn.LayerNorm(6))
    walk = walked(model, torch.randn(5, 6))
    assert walk.found is None
    assert walk.judged > 8
    assert all(left.reason.startswith("random") for left in walk.left_out())
    assert walk.left_out()


def test_shapes_and_kinds_are_compared_before_numbers() -> None:
    one, two = np.ones((2, 3)), np.ones((3, 2))
    (wrong,) = judge.judge([judge.Triple("x", "float32", one, two, None)], 1, DEMAND)
    assert wrong.findings == ["shape [2, 3], not [3, 2]"]
    (wrong,) = judge.judge([judge.Triple("x", "int64", one.astype(np.int64), one, None)], 1, DEMAND)
    assert "which the CPU does not give" in wrong.findings[0]
