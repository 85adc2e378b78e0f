"""Results that nobody needs are not computed, memory that nobody needs is used again, and nothing else changes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from shakedown.neuron.pending import value_of

from .running import adaptive, operators, same, same_as_cpu, until_fused

_SIZE = 64  # a matrix of floats is 16 KiB
_NBYTES = _SIZE * _SIZE * 4


def _matrix(d: str, scale: float = 1.0) -> torch.Tensor:
    return (torch.arange(float(_SIZE * _SIZE)).reshape(_SIZE, _SIZE) * (scale / _SIZE**2)).to(d)


def _finish(d: str) -> None:
    if d != "cpu":
        torch.neuron.synchronize()


def test_a_dead_intermediate_is_not_returned() -> None:
    x = _matrix("neuron")
    before = 0

    def run() -> torch.Tensor:
        nonlocal before
        before = adaptive.status()["bytes_saved"]
        y = torch.tanh(x)
        z = y * 2
        del y
        return z + 1

    until_fused(run, lambda z: same([z], [torch.tanh(x.cpu()) * 2 + 1]))
    assert adaptive.status()["bytes_saved"] - before == 2 * _NBYTES


def test_everything_alive_is_returned() -> None:
    x = _matrix("neuron")
    host = x.cpu()

    def run() -> Sequence[torch.Tensor]:
        y = torch.tanh(x)
        return y, y * 2

    until_fused(run, lambda made: same(made, [torch.tanh(host), torch.tanh(host) * 2]))
    assert adaptive.status()["bytes_saved"] == 0


def _kept_by(keep: Callable[[torch.Tensor], Callable[[], Any]]) -> None:
    """A tensor is made, held as `keep` holds it, and asked for after the flush."""

    def program(d: str) -> Sequence[Any]:
        x = _matrix(d).requires_grad_()
        y = torch.tanh(x)
        ask = keep(y)
        del y
        z = x * 2
        _finish(d)
        return z, ask()

    expected = program("cpu")
    until_fused(lambda: program("neuron"), lambda actual: same(actual, expected), rounds=8)


def test_what_a_view_holds_is_kept() -> None:
    def keep(y: torch.Tensor) -> Callable[[], Any]:
        row = y[3].detach()
        return lambda: row

    _kept_by(keep)


def test_what_a_closure_holds_is_kept() -> None:
    _kept_by(lambda y: lambda: y)


def test_what_a_detached_tensor_holds_is_kept() -> None:
    def keep(y: torch.Tensor) -> Callable[[], Any]:
        held = y.detach()
        return lambda: held

    _kept_by(keep)


def test_what_a_storage_holds_is_kept() -> None:
    def keep(y: torch.Tensor) -> Callable[[], Any]:
        storage, device = y.untyped_storage(), y.device
        return lambda: torch.empty(0, device=device).set_(storage, 0, (_SIZE, _SIZE), (_SIZE, 1))

    _kept_by(keep)


def test_what_autograd_alone_holds_is_kept() -> None:
    def program(d: str) -> Sequence[Any]:
        x = _matrix(d).requires_grad_()
        loss = (torch.tanh(x) * x).sum()  # the tanh is saved for the backward pass
        _finish(d)
        loss.backward()
        return loss, x.grad

    same_as_cpu(program)


def test_a_program_that_left_a_result_out_does_not_serve_who_needs_it() -> None:
    x = _matrix("neuron")
    wanted = [torch.tanh(x.cpu()), torch.tanh(x.cpu()) * 2]

    def run(keep: bool) -> Sequence[torch.Tensor]:
        y = torch.tanh(x)
        z = y * 2
        return (y, z) if keep else (z,)

    until_fused(lambda: run(False), lambda made: same(made, wanted[1:]))
    fused, _ = operators()
    made = run(True)
    torch.neuron.synchronize()
    assert operators()[0] == fused
    same(made, wanted)
    until_fused(lambda: run(True), lambda made: same(made, wanted))
    assert until_fused(lambda: run(False), lambda made: same(made, wanted[1:])) == 0
    assert len(adaptive.groups()) == 1
    assert adaptive.status()["programs"]["ready"] == 2


def test_the_programs_of_a_group_are_few_and_the_last_serves_all() -> None:
    x = _matrix("neuron")
    wanted = [torch.tanh(x.cpu())]
    for n in range(3):
        wanted.append(wanted[-1] * (n + 2))

    def run(keep: int) -> Sequence[torch.Tensor]:
        made = [torch.tanh(x)]
        for n in range(3):
            made.append(made[-1] * (n + 2))
        return [made[i] for i in range(4) if keep >> i & 1]

    def check(keep: int, made: Sequence[torch.Tensor]) -> None:
        same(made, [wanted[i] for i in range(4) if keep >> i & 1])

    for keep in range(1, 16):
        until_fused(functools.partial(run, keep), functools.partial(check, keep))
    (group,) = adaptive.groups()
    assert len(group["compile_seconds"]) <= 4
    assert group["errors"] == []


def _buffer(tensor: torch.Tensor) -> Any:
    return value_of(tensor.untyped_storage(), "value read")


def _address(tensor: torch.Tensor) -> int:
    return _buffer(tensor).unsafe_buffer_pointer()


def test_memory_whose_owner_has_moved_on_is_used_again() -> None:
    w = _matrix("neuron")
    expected = w.cpu()
    used_again = False
    for _ in range(6):
        before = _address(w)
        fused, _each = operators()
        w.mul_(0.5).add_(1)
        torch.neuron.synchronize()
        expected.mul_(0.5).add_(1)
        assert torch.equal(w.cpu(), expected)
        if operators()[0] > fused:
            used_again = _address(w) == before
        adaptive.wait(60)
    assert used_again


def test_memory_that_an_alias_of_the_value_holds_is_left_alone() -> None:
    w = _matrix("neuron")
    expected = w.cpu()

    def step() -> None:
        old, taken = w.clone(), w.detach().clone().t()
        torch.neuron.synchronize()  # copies of a value may be the same array
        was = expected.clone()
        w.mul_(0.5).add_(1)
        torch.neuron.synchronize()
        expected.mul_(0.5).add_(1)
        same([old, taken, w], [was, was.t(), expected])

    for _ in range(6):
        step()
        adaptive.wait(60)
    assert operators()[0] > 0


def test_memory_held_by_a_buffer_outside_is_left_alone_and_a_second_program_serves() -> None:
    w = _matrix("neuron")
    expected = w.cpu()

    def step() -> None:
        w.mul_(0.5).add_(1)
        expected.mul_(0.5).add_(1)

    until_fused(step, lambda _: same([w], [expected]))
    held = _buffer(w)
    copy = held + 0
    until_fused(step, lambda _: same([w], [expected]), rounds=1 + 5)
    assert not held.is_deleted()
    assert (held == copy).all()


def test_a_program_that_may_have_to_run_again_consumes_nothing() -> None:
    w, table = _matrix("neuron"), _matrix("neuron", 2.0)
    index = torch.tensor([1, 5, 63], device="neuron")
    expected, host = w.cpu(), table.cpu()[[1, 5, 63]]
    for _ in range(6):
        before = _address(w)
        fused, _each = operators()
        w.mul_(0.5).add_(1)
        rows = torch.nn.functional.embedding(index, table)
        torch.neuron.synchronize()
        expected.mul_(0.5).add_(1)
        same([w, rows], [expected, host])
        if operators()[0] > fused:
            assert _address(w) != before
        adaptive.wait(60)
    assert operators()[0] > 0


def test_training_with_an_optimizer_in_place_is_right_fused() -> None:
    def program(d: str) -> Sequence[Any]:
        w = _matrix(d).requires_grad_()
        optimizer = torch.optim.Adam([w], lr=0.01, foreach=True)
        x = _matrix(d, 3.0)
        for _ in range(3):
            optimizer.zero_grad()
            ((x @ w).tanh() ** 2).mean().backward()
            optimizer.step()
            _finish(d)
        return [w, *(s for s in optimizer.state[w].values())]

    same_as_cpu(program)
