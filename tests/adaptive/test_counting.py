"""``torch.neuron.count_programs`` in adaptive eager: a fused program does the work of its operators and moves less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from shakedown.neuron import events

from .running import adaptive, same, until_fused

N = 64


def _counted(run: Any) -> list[dict[str, Any]]:
    with torch.neuron.count_programs() as rows:
        run()
        torch.neuron.synchronize()
    return rows


def _sum(rows: list[dict[str, Any]], figure: str) -> float:
    return sum(row["calls"] * row[figure] for row in rows)


def _matrix(rows: list[dict[str, Any]]) -> float:
    return sum(row["calls"] * count for row in rows for count in row["matrix_flops"].values())


def test_one_by_one_and_fused_are_the_same_work() -> None:
    a, b = torch.randn(N, N, device="neuron"), torch.randn(N, N, device="neuron")
    hosts = a.cpu(), b.cpu()

    def run() -> Sequence[torch.Tensor]:
        return ((a @ b).tanh() * 2 + a,)

    first: list[list[dict[str, Any]]] = []

    def keep() -> Sequence[torch.Tensor]:
        if len(first) < 2:  # plans are made in the first round, counted one by one in the second
            made: list[torch.Tensor] = []
            first.append(_counted(lambda: made.extend(run())))
            return made
        return run()

    until_fused(keep, lambda made: same(made, [(hosts[0] @ hosts[1]).tanh() * 2 + hosts[0]]))
    each = first[1]
    assert [row["name"].partition("::")[0] for row in each] == ["aten"] * 4
    (fused,) = _counted(run)
    assert fused["name"] == f"adaptive::{adaptive.groups()[0]['name']}"
    assert Counter(fused["operators"]) == Counter(row["name"] for row in each)
    assert fused["matrix_flops"] == {"float32": 2 * N**3}
    assert _matrix(each) == 2 * N**3
    assert fused["transcendentals"] == _sum(each, "transcendentals") == N * N
    # Two matrices in, one out, and a number; one by one, three in between are written and read, and `a` is read twice.
    assert fused["least_bytes"] == 3 * 4 * N * N + 8
    assert _sum(each, "least_bytes") == 10 * 4 * N * N + 8


def test_counting_leaves_fused_programs_as_they_were() -> None:
    x = torch.randn(N, N, device="neuron")
    host = x.cpu()

    def run() -> Sequence[torch.Tensor]:
        y = torch.exp(x)  # dead after the next line, so that a program may use its memory again
        return (y * y - x,)

    def check(made: Sequence[torch.Tensor]) -> None:
        same(made, [torch.exp(host) * torch.exp(host) - host])

    until_fused(run, check)
    events.clear()
    made: list[torch.Tensor] = []
    rows = _counted(lambda: made.extend(run()))
    assert len(rows) == 1
    check(made)
    until_fused(run, check)
    assert events.total("compile") == 0
