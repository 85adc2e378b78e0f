"""Samples of PyTorch's operator database, joined in groups that adaptive eager records as one program."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from shakedown.conformance import databases
from shakedown.conformance.databases import Entry, tensors

from .bits import Difference, difference
from .running import plain_eager

DTYPES = (torch.float32, torch.bfloat16, torch.int64)

# Memory that nobody wrote.
_WITHOUT_VALUES = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
# PyTorch itself takes other operators for these under a deterministic mode, which the reference runs in.
_OTHERWISE_WHEN_DETERMINISTIC = {"nn.functional.interpolate", "nn.functional.upsample_bilinear"}


@dataclass(frozen=True)
class Call:
    """One sample of an entry; `results` are what plain eager execution gives, gradients last."""

    entry: Entry
    dtype: torch.dtype
    sample: int

    def __str__(self) -> str:
        return f"{self.entry.name}, {str(self.dtype).removeprefix('torch.')}, sample {self.sample}"

    def run(self) -> list[torch.Tensor]:
        """The results on the device, and the gradients of their sum.

        Raises:
            Exception: whatever the entry raises.
        """
        gradients = self.entry.differentiable(self.dtype)
        found = databases.samples(self.entry, self.dtype, gradients=gradients)[self.sample]
        given, args, kwargs = databases.arguments(self.entry, (found.input, found.args, found.kwargs))
        torch.manual_seed(self.sample)
        made = self.entry.info.op(given, *args, **kwargs)
        results = [t for t in tensors(made) if t.layout is torch.strided and not t.is_nested]
        summed = [t for t in results if t.requires_grad and not t.is_complex()]
        leaves = [t for t in tensors([given, list(args), kwargs]) if t.requires_grad and t.layout is torch.strided]
        if summed and leaves:
            ones = [torch.ones_like(t) for t in summed]
            results += [g for g in torch.autograd.grad(summed, leaves, ones, allow_unused=True) if g is not None]
        return results


def groups(seed: int, size: int = 40, samples: int = 1) -> Iterator[list[Call]]:
    """All entries in :data:`DTYPES`, `samples` samples of each, in random groups of `size` calls."""
    calls: list[tuple[Entry, torch.dtype, int]] = []
    for entry in databases.entries("op_db"):
        if entry.info.name not in _WITHOUT_VALUES | _OTHERWISE_WHEN_DETERMINISTIC:
            calls += [(entry, dtype, n) for dtype in DTYPES if dtype in entry.dtypes() for n in range(samples)]
    random.Random(seed).shuffle(calls)
    for first in range(0, len(calls), size):
        yield [Call(entry, dtype, _number(entry, dtype, n, samples)) for entry, dtype, n in calls[first : first + size]]


def _number(entry: Entry, dtype: torch.dtype, n: int, samples: int) -> int:
    """Number of the `n`-th of `samples` samples, spread evenly and starting with the second, as the first is often trivial."""
    count = len(databases.samples(entry, dtype, gradients=False))
    return (n * count // samples + 1) % count if count else 0


@dataclass
class GroupRun:
    """What became of a group: its calls that run under plain eager execution, operators of the last round, differences."""

    calls: list[Call]
    skipped: list[tuple[Call, str]]
    fused: int
    one_by_one: int
    differences: list[tuple[Call, Difference]]


def compare(calls: list[Call], rounds: int = 4, wait: float = 300) -> GroupRun:
    """Run `calls` under plain eager execution, then `rounds` times recorded, and compare each time, bit by bit."""
    kept: list[Call] = []
    expected: list[list[torch.Tensor]] = []
    skipped: list[tuple[Call, str]] = []
    with plain_eager():
        for call in calls:
            try:
                expected.append(call.run())
            except Exception as error:
                skipped.append(
                    (call, f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}")
                )
            else:
                kept.append(call)
    found: dict[str, tuple[Call, Difference]] = {}
    fused = each = 0
    for _ in range(rounds):
        before = torch.neuron.adaptive.status()["operators"]
        actual: list[Any] = [call.run() for call in kept]
        torch.neuron.synchronize()
        after = torch.neuron.adaptive.status()["operators"]
        fused, each = after["fused"] - before["fused"], after["one_by_one"] - before["one_by_one"]
        for call, got, wanted in zip(kept, actual, expected):
            if len(got) != len(wanted):
                found[str(call)] = (call, Difference(f"{len(got)} results, expected {len(wanted)}"))
                continue
            for a, e in zip(got, wanted):
                problem = difference(a, e)
                if problem is not None:
                    earlier = found.get(str(call))
                    if earlier is None or (problem.ulps or 0) > (earlier[1].ulps or 0):
                        found[str(call)] = (call, problem)
        assert torch.neuron.adaptive.wait(wait), "the background compiler takes too long"
    return GroupRun(kept, skipped, fused, each, list(found.values()))
