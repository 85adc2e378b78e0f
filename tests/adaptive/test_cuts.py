"""A program is cut at the same places whatever goes before it, so that what was compiled once serves ever after."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shakedown.neuron import events
from shakedown.neuron.modes.adaptive import cuts

from .running import adaptive, flushes, operators

# --- the rule itself ----------------------------------------------------------------------------------------------------


def _cut(marks: list[int], known: cuts.Cuts | None = None, limit: int = 1024) -> list[int]:
    """The positions in `marks` after which it is cut."""
    state = cuts.Cuts(limit) if known is None else known
    found, length = [], 0
    for position, mark in enumerate(marks):
        length += 1
        if state.roll(mark, length):
            found.append(position)
            state.learn()
            state.restart()
            length = 0
    return found


_MARKS = st.lists(st.integers(0, 40).map(lambda n: cuts.mark_of("op", (n,))), min_size=200, max_size=600)


@settings(max_examples=30, deadline=None)
@given(_MARKS)
def test_a_segment_is_neither_too_short_nor_too_long(marks: list[int]) -> None:
    bounds = [-1, *_cut(marks, limit=300)]
    lengths = [b - a for a, b in itertools.pairwise(bounds)]
    assert all(cuts.LEAST <= n <= 300 for n in lengths)


@pytest.mark.parametrize("length", [90, 250, 700, 1500])
def test_a_repeated_step_is_cut_alike_in_the_end_whatever_precedes_it(length: int) -> None:
    for seed in range(5):
        chosen = random.Random(seed)
        vocabulary = [cuts.mark_of("op", (n,)) for n in range(60)]
        step = chosen.choices(vocabulary, k=length)
        seen = cuts.Cuts(1024)
        later = []
        for before in (0, 5, 33, 150) * 2:  # places that are new the first time are known the second
            rest = random.Random(before).choices(vocabulary, k=before)
            positions = _cut(rest + step * 10, seen)
            # By the last of ten steps; at the very end of the recording there is no next step to look at.
            later.append([p - before - 8 * length for p in positions if 8 <= (p - before) / length < 9])
        assert later[4:] == [later[4]] * 4


def test_a_run_of_equal_operators_is_cut_by_its_length_alone() -> None:
    mark = cuts.mark_of("op", ())
    assert _cut([mark] * 3000, limit=1000) == [999, 1999, 2999]


def test_a_limit_below_the_least_length_is_kept() -> None:
    assert _cut(list(range(20)), limit=6) == [5, 11, 17]


def test_a_mark_says_the_same_in_every_process() -> None:
    key = (torch.float32, torch.Size([2, 3]), (3, 1), 0, float, None, "dim")
    assert cuts.mark_of("aten::add.Tensor", key) == 880731792


# --- programs -----------------------------------------------------------------------------------------------------------


class _Training:
    """A small model, its optimizer and a batch, on the device."""

    def __init__(self, layers: int = 4) -> None:
        generator = torch.Generator().manual_seed(0)
        self.weights = [
            (torch.randn(8, 8, generator=generator) * 0.3).to("neuron").requires_grad_() for _ in range(layers)
        ]
        self.x = torch.randn(4, 8, generator=generator).to("neuron")
        self.optimizer = torch.optim.SGD(self.weights, lr=0.05, momentum=0.9, foreach=False)

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        y = self.x
        for w in self.weights:
            y = torch.nn.functional.gelu(y @ w) + y
        loss = (y * y).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def _unrelated(amount: int) -> torch.Tensor:
    x = torch.ones(5, device="neuron")
    for n in range(amount):
        x = (x * 1.5, x + 1, x.abs(), x.neg())[n * 7 % 4]
    return x


def _names() -> dict[str, int]:
    return {g["name"]: g["runs_fused"] + g["runs_one_by_one"] for g in adaptive.groups()}


def _ran(work: Callable[[], Any]) -> dict[str, int]:
    """Names of the groups that ran in `work`, and how often each did."""
    before = _names()
    work()
    torch.neuron.synchronize()
    return {name: n - before.get(name, 0) for name, n in _names().items() if n > before.get(name, 0)}


def _settle(work: Callable[[], Any], rounds: int = 5) -> None:
    for _ in range(rounds):
        work()
    torch.neuron.synchronize()


def test_a_step_runs_the_same_groups_with_and_without_reading_its_loss() -> None:
    training = _Training()
    _settle(lambda: training.step().item())
    reading = set(_ran(lambda: [training.step().item() for _ in range(3)]))
    silent = set(_ran(lambda: [training.step() for _ in range(3)]))
    # The last step's end is flushed by the synchronisation, the first step begins where it does with a read.
    assert reading == silent


def test_a_step_runs_the_same_groups_after_unrelated_work() -> None:
    training = _Training()
    _settle(lambda: training.step().item())
    wanted = set(_ran(lambda: training.step().item()))

    for amount in (1, 3, 17, 40):
        _settle(lambda amount=amount: _unrelated(amount), 2)

        def both(amount: int = amount) -> None:
            _unrelated(amount)
            torch.neuron.synchronize()
            training.step().item()

        assert wanted <= set(_ran(both)), amount


def test_work_recorded_before_a_step_changes_its_groups_only_at_the_beginning() -> None:
    training = _Training()
    _settle(lambda: training.step().item())
    adaptive.wait(120)
    _settle(lambda: training.step().item(), 2)

    def both() -> None:
        _unrelated(9)
        training.step().item()

    _settle(both, 2)
    steps = _ran(both)
    rest = set(_ran(lambda: training.step().item()))
    assert len(set(steps) - rest) <= 2


def test_a_loop_without_any_read_ends_up_with_a_fixed_set_of_groups_all_fused() -> None:
    training = _Training(layers=6)

    def steps(count: int) -> None:
        for _ in range(count):
            training.step()

    steps(12)
    adaptive.wait(120)
    steps(8)
    adaptive.wait(120)
    steps(4)
    known = set(_names())
    fused, each = operators()
    compiles = events.total("compile")
    steps(20)
    assert set(_names()) == known
    assert events.total("compile") == compiles
    assert operators()[1] == each
    assert operators()[0] > fused
    assert set(flushes()) <= {"content", "new operator"}


def test_the_losses_of_fused_steps_are_those_of_plain_eager() -> None:
    """Deterministic mode is plain eager."""
    training = _Training()
    actual = []
    for _ in range(12):
        actual.append(training.step().item())
        adaptive.wait(60)
    assert operators()[0] > 0
    torch.use_deterministic_algorithms(True)
    try:
        reference = _Training()
        expected = [reference.step().item() for _ in range(12)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert actual == pytest.approx(expected, rel=1e-5)


# --- numbers ------------------------------------------------------------------------------------------------------------


def _update(w: torch.Tensor, rate: float, decay: float) -> torch.Tensor:
    w = w * decay
    w = w.add(w, alpha=rate)
    return w + decay


def test_numbers_that_change_compile_nothing_new_and_are_right() -> None:
    w = torch.arange(4.0).to("neuron")
    host = torch.arange(4.0)

    def run(rate: float, decay: float) -> None:
        made = _update(w, rate, decay)
        torch.neuron.synchronize()
        torch.testing.assert_close(made.cpu(), _update(host, rate, decay))

    for n in range(6):
        run(0.1 * n, 0.5)
        adaptive.wait(60)
    compiles = events.total("compile")
    fused, each = operators()
    for n in range(10):
        run(0.01 * n, 1.0 - 0.01 * n)
    assert events.total("compile") == compiles
    assert operators() == (fused + 30, each)
    assert len(adaptive.groups()) == 1


def test_numbers_that_were_equal_once_may_differ_later() -> None:
    w = torch.arange(4.0).to("neuron")
    host = torch.arange(4.0)
    for _ in range(6):
        _update(w, 0.25, 0.25).cpu()
        adaptive.wait(60)
    fused, _ = operators()
    torch.testing.assert_close(_update(w, 3.0, 0.5).cpu(), _update(host, 3.0, 0.5))
    torch.testing.assert_close(_update(w, 0.5, 3.0).cpu(), _update(host, 0.5, 3.0))
    assert operators()[0] == fused + 6


def test_the_two_zeros_are_told_apart() -> None:
    x = torch.tensor([1.0, -2.0]).to("neuron")
    host = torch.tensor([1.0, -2.0])

    def program(t: torch.Tensor, zero: float) -> torch.Tensor:
        return 1.0 / ((t * zero).abs() * zero + zero)

    for n in range(10):
        zero = (0.0, -0.0)[n % 2] if n > 4 else 0.0
        assert torch.equal(program(x, zero).cpu(), program(host, zero))
        adaptive.wait(60)
    assert operators()[0] > 0


def test_whole_numbers_truths_and_fractions_are_told_apart() -> None:
    x = torch.arange(4).to("neuron")
    host = torch.arange(4)
    for _ in range(5):
        for number in (2, True, 2.0, 0.5, 2**40, -7):
            actual, expected = (x * number + number).cpu(), host * number + number
            assert actual.dtype is expected.dtype
            assert torch.equal(actual, expected)
        adaptive.wait(60)
    assert operators()[0] > 0
