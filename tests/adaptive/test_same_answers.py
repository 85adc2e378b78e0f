"""Adaptive eager gives the answers of plain eager execution on the same device, bit for bit, one by one as well as fused.

The reference is the same process under a deterministic mode, which turns adaptive eager off. At length:
``SHAKEDOWN_ADAPTIVE=1 python -m tests.adaptive.same_answers``.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from . import database, programs, running, same_answers
from .bits import difference, ulps


@pytest.mark.parametrize(("seed", "policies"), [(2, ["few", "all"]), (1003, ["others"])])
def test_random_programs(seed: int, policies: list[str]) -> None:
    found = same_answers.replay(seed, 40, policies)
    assert not found.differences
    assert found.fused > found.one_by_one, found
    assert not found.failed_compiles


def test_samples_of_the_operator_database() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the operators under test
        calls = next(database.groups(seed=12, size=16))
        found = database.compare(calls, rounds=6)
    assert not [(str(call), d.problem) for call, d in found.differences]
    assert found.fused > 8, found
    assert len(found.calls) > 12, found.skipped


@pytest.mark.parametrize(
    ("model", "optimizer", "dtype", "read"),
    [("decoder", "AdamW", torch.float32, 0), ("convolutions", "SGD", torch.bfloat16, 1)],
)
def test_training(model: str, optimizer: str, dtype: torch.dtype, read: int) -> None:
    found = same_answers.compare_training(model, optimizer, dtype, 24, read)
    assert found.first_other_loss is None, found
    assert not found.differences
    assert found.fused > found.one_by_one


def _noticed(program: programs.Program, outcome: programs.Outcome) -> list[str]:
    return [where for where, _ in program.differences(outcome)]


def test_one_wrong_bit_is_noticed() -> None:
    program = programs.write(5, 20)
    outcome = program.replay(lambda slot, round: True)
    assert not _noticed(program, outcome)
    slot = next(i for i, t in outcome.slots.items() if t.dtype is torch.float32 and t.is_contiguous() and t.is_leaf)
    host = outcome.slots[slot].detach().cpu()
    host.view(torch.int32).view(-1)[0] ^= 1
    outcome.slots[slot].detach().copy_(host)
    assert f"s{slot}, made by" in " ".join(_noticed(program, outcome))


def test_a_missing_alias_and_a_missing_gradient_are_noticed() -> None:
    writer = programs.Writer(0)
    with running.plain_eager():
        writer.outcome.slots[0] = torch.ones(2, 3, device="neuron")
        writer.count = 1
        writer.emit("leaf", lambda x: x.clone().requires_grad_(), 0)
        writer.emit("view", lambda x: x[1], 0)
        writer.emit("backward", lambda x: x.square().sum().backward(), 1)
    program = programs.Program(0, writer.steps, [torch.ones(2, 3)], writer.outcome)
    assert not _noticed(program, program.replay(lambda slot, round: True))
    outcome = program.replay(lambda slot, round: True)
    outcome.slots[2] = torch.ones(2, 3, device="neuron")[1]
    assert _noticed(program, outcome) == ["storages"]
    outcome = program.replay(lambda slot, round: True)
    outcome.slots[1].grad = None
    assert _noticed(program, outcome) == ["gradient of s1"]


@pytest.mark.parametrize(
    ("actual", "expected", "far"),
    [
        ([1.0], [1.0], 0),
        ([float("nan")], [float("nan")], 0),
        ([float("nan")], [1.0], 1 << 62),
        ([0.0], [-0.0], 1),
        ([1.0], [1.0 + 2**-23], 1),
        ([2.0**-149], [-(2.0**-149)], 2),
        ([1.0, 3.0], [1.0, 3.0 + 2**-20], 4),
    ],
)
def test_distance_in_units_in_the_last_place(actual: list[float], expected: list[float], far: int) -> None:
    assert ulps(torch.tensor(actual), torch.tensor(expected)) == far


def test_differences_of_plain_values() -> None:
    nan: Any = float("nan")
    assert difference(nan, nan) is None
    assert difference(0.0, -0.0) is not None
    assert difference(1, 1) is None
    assert difference(1, 1.0) is not None
