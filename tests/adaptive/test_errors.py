"""An error that only the values show comes at a later flush: as the CPU's, with everything as if execution had stopped there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from .running import adaptive, operators, same, until_fused

_GOOD, _BAD = [1, 0], [1, 9]


def _table(d: str) -> torch.Tensor:
    return (torch.arange(12.0).reshape(4, 3) + 1).to(d)


CALLS: dict[str, tuple[str, Callable[[torch.Tensor, torch.Tensor], Any]]] = {
    "embedding": ("aten::embedding", lambda t, i: F.embedding(i, t)),
    "gather": ("aten::gather", lambda t, i: t.gather(0, i[:, None])),
    "index": ("aten::index.Tensor", lambda t, i: t[i]),
    "index_select": ("aten::index_select", lambda t, i: t.index_select(0, i)),
    "scatter": ("aten::scatter.value", lambda t, i: t.scatter(0, i[:, None], 1.0)),
    "take": ("aten::take", lambda t, i: t.take(i * 2)),
    "nll_loss": ("aten::nll_loss_forward", lambda t, i: F.nll_loss(t[:2], i)),
    "floor_divide": ("aten::div.Tensor_mode", lambda t, i: torch.div(i, 9 - i, rounding_mode="floor")),
}


def _index(values: list[int], d: str) -> torch.Tensor:
    return torch.tensor(values).to(d)


def _error(fn: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as caught:  # which one it is, is the question
        fn()
    return caught.value


@pytest.mark.parametrize("name", CALLS)
def test_values_that_the_cpu_refuses_are_refused_with_its_words_at_the_flush(name: str) -> None:
    operator, call = CALLS[name]
    wanted = _error(lambda: call(_table("cpu"), _index(_BAD, "cpu")))
    table, good, bad = _table("neuron"), _index(_GOOD, "neuron"), _index(_BAD, "neuron")

    def run(index: torch.Tensor) -> tuple[Any, ...]:
        before = table * 2
        made = call(table, index)
        return before, made, before + 1

    def check(made: tuple[Any, ...]) -> None:
        same([made[1]], [call(_table("cpu"), _index(_GOOD, "cpu"))])

    def fail() -> None:
        made = run(bad)
        error = _error(torch.neuron.synchronize)
        assert isinstance(error, type(wanted))
        assert isinstance(error, RuntimeError)  # too, as TorchNeuron's late errors are
        assert str(error).startswith(str(wanted).splitlines()[0])
        assert f"(in {operator}" in str(error)
        assert "recorded by adaptive eager)" in str(error)
        assert torch.equal(made[0].cpu(), _table("cpu") * 2)
        with pytest.raises(RuntimeError, match="this tensor has no value"):
            made[2].cpu()

    check(run(good))
    fail()  # one by one
    until_fused(lambda: run(good), check)
    fused, _ = operators()
    fail()  # of a fused program
    assert operators()[0] == fused
    assert until_fused(lambda: run(good), check, rounds=1) == 0  # still good for the others


def _settled_table() -> torch.Tensor:
    table = _table("neuron")
    torch.neuron.synchronize()
    return table


def test_what_stands_after_the_failing_operator_keeps_its_old_value() -> None:
    table, good, bad = _settled_table(), _index(_GOOD, "neuron"), _index(_BAD, "neuron")
    target, counter = _table("neuron"), torch.zeros(3, device="neuron")
    rows = [torch.ones(2, device="neuron"), torch.ones(3, device="neuron")]
    host = [_table("cpu"), torch.zeros(3), torch.ones(2), torch.ones(3)]

    def step(index: torch.Tensor) -> None:
        target.mul_(2)
        target[0].add_(1)
        counter.add_(F.embedding(index, table).sum(0))
        target.sub_(3)
        torch._foreach_add_(rows, 5)
        torch.exp(table[0], out=counter)

    def expect(steps: int, failed: int) -> None:
        target, counter = host[:2]
        for i in range(steps + failed):
            target.mul_(2)
            target[0].add_(1)
            if i == steps:
                break
            target.sub_(3)
            torch._foreach_add_(host[2:], 5)
            torch.exp(_table("cpu")[0], out=counter)

    def fail() -> None:
        step(bad)
        with pytest.raises(IndexError, match="index out of range in self"):
            torch.neuron.synchronize()
        expect(0, 1)
        same([target, counter, *rows], host)

    def good_step() -> None:
        step(good)

    def check(_: None) -> None:
        expect(1, 0)
        same([target, counter, *rows], host)

    good_step()
    check(None)
    fail()
    until_fused(good_step, check)
    fail()
    assert until_fused(good_step, check, rounds=1) == 0


def test_tensors_made_from_one_without_a_value_say_so_and_others_are_right() -> None:
    torch.ones(2, 3, device="neuron") * 2  # known, so that it is recorded below
    torch.ones(4, 3, device="neuron") * 2 + 1
    torch.neuron.synchronize()
    for _ in range(3):
        table, bad = _settled_table(), _index(_BAD, "neuron")
        lost = F.embedding(bad, table)
        with pytest.raises(IndexError):
            torch.neuron.synchronize()
        fine = table * 2
        also_lost = lost * 2
        also_fine = fine + 1
        with pytest.raises(RuntimeError, match="aten::mul.Tensor"):
            torch.neuron.synchronize()
        assert torch.equal(fine.cpu(), _table("cpu") * 2)
        for tensor in (lost, also_lost, also_fine):
            with pytest.raises(RuntimeError, match="index out of range in self"):
                tensor.cpu()
        assert torch.equal((fine + 1).cpu(), _table("cpu") * 2 + 1)
        assert repr(fine).startswith("tensor(")


def test_a_value_can_be_given_to_a_tensor_that_lost_it() -> None:
    for _ in range(3):
        table, bad = _settled_table(), _index(_BAD, "neuron")
        lost = F.embedding(bad, table)
        with pytest.raises(IndexError):
            torch.neuron.synchronize()
        lost.copy_(torch.ones(2, 3))
        lost.add_(1)
        assert torch.equal(lost.cpu(), torch.full((2, 3), 2.0))


def test_an_error_that_comes_when_a_value_is_read_is_the_operators_own() -> None:
    for _ in range(3):
        table, bad = _table("neuron"), _index(_BAD, "neuron")
        made = F.embedding(bad, table)
        with pytest.raises(IndexError, match=r"index out of range in self \(in aten::embedding"):
            made.sum().item()
        made = table.gather(0, bad[:, None])
        with pytest.raises(RuntimeError, match="index 9 is out of bounds"):
            made.cpu()


MISTAKES = (
    lambda t: t @ t,
    lambda t: t + torch.ones(5, device=t.device),
    lambda t: t.bitwise_and(1),
    lambda t: t.add_(torch.ones(2, 3, 4, device=t.device)),
    lambda t: t.to(torch.int32).div_(2),
    lambda t: torch.cat([t, t[0]]),
    lambda t: t.view(5),
)


def test_wrong_shapes_and_dtypes_raise_at_the_line_itself_and_nothing_is_lost() -> None:
    for _ in range(3):
        x = torch.ones(3, 4, device="neuron")
        kept = x * 2
        for mistake in MISTAKES:
            wanted = _error(functools.partial(mistake, torch.ones(3, 4)))
            actual = _error(functools.partial(mistake, x))
            assert type(actual) is type(wanted)
            assert str(actual) == str(wanted)
        torch.neuron.synchronize()
        assert torch.equal(kept.cpu(), torch.full((3, 4), 2.0))
        assert torch.equal(x.cpu(), torch.ones(3, 4))


class _LooksUpInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, index: torch.Tensor, read: bool) -> torch.Tensor:
        ctx.save_for_backward(index)
        ctx.read = read
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (index,) = ctx.saved_tensors
        found = grad.gather(0, index) * 2
        return found * (found.sum().item() if ctx.read else 1), None, None  # (the read is on the engine's thread)


@pytest.mark.parametrize("read", [False, True])
def test_an_operator_of_the_backward_pass_that_fails_is_named(read: bool) -> None:
    def backward(index: torch.Tensor) -> torch.Tensor:
        w = torch.ones(2, device="neuron", requires_grad=True)
        _LooksUpInBackward.apply(w, index, read).sum().backward()
        torch.neuron.synchronize()
        return w.grad

    good, bad = _index(_GOOD, "neuron"), _index(_BAD, "neuron")
    for _ in range(5):
        assert torch.equal(backward(good).cpu(), torch.full((2,), 8.0 if read else 2.0))
        with pytest.raises(RuntimeError, match=r"index 9 is out of bounds .*\(in aten::gather"):
            backward(bad)
        adaptive.wait(60)
    assert operators()[0] > 0


def test_an_error_met_by_a_cut_leaves_the_call_that_caused_the_cut_undone() -> None:
    table, bad = _settled_table(), _index(_BAD, "neuron")
    target = torch.zeros(3, device="neuron")
    done = 0

    def until_cut() -> None:
        nonlocal done
        F.embedding(bad, table)
        for _ in range(3000):
            target.add_(1)
            done += 1

    for _ in range(3):
        torch.neuron.synchronize()
        with pytest.raises(IndexError, match="aten::embedding"):
            until_cut()
        assert torch.equal(target.cpu(), torch.zeros(3))
    assert 0 < done < 9000
