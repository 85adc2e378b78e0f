"""From the lengths that a service meets to the few lengths that it pads them to.

On a target with static shapes every length is a program of its own, so lengths are padded up to the edges of buckets. More
buckets waste less and compile more. :func:`choose` finds, for a number of programs, the edges with the least expected
padding, exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from ..errors import BadInput
from ..evidence import Frozen

MULTIPLE = 128  # the width of the matrix unit's tiles on Trainium, and of most tiles elsewhere


class Bucket(Frozen):
    """One padded length. ``share`` is the share of requests that land here, ``lengths`` are the distinct ones."""

    edge: int
    lengths: tuple[int, ...]
    share: float


class Buckets(Frozen):
    """Edges in ascending order. ``waste`` is the expected share of computed elements that are padding, 0 to below 1."""

    buckets: tuple[Bucket, ...]
    waste: float

    @property
    def edges(self) -> tuple[int, ...]:
        return tuple(bucket.edge for bucket in self.buckets)

    def edge_of(self, length: int) -> int | None:
        """What `length` is padded to; None above the last edge."""
        return next((edge for edge in self.edges if edge >= length), None)


class PlanPoint(Frozen):
    """The best buckets with so many of them. ``programs`` counts one for each bucket and batch size.

    ``waste`` is the share of computed positions that are padding. Seconds, None where costs are not measured: ``compile`` of
    all programs once, ``step`` expected over the traffic, ``total`` of both over the plan's steps.
    """

    programs: int
    edges: tuple[int, ...]
    waste: float
    compile_seconds: float | None
    step_seconds: float | None
    total_seconds: float | None


class Longer(Frozen):
    """Requests above the plan's maximum, and the rule for them."""

    maximum: int
    rule: Literal["refuse", "truncate", "compile"]
    share: float
    requests: int | None
    lengths: int
    text: str


class BucketPlan(Frozen):
    """How expected padding, compilation and cost depend on the number of programs. ``curve`` begins with one bucket.

    ``recommended`` is an index into ``curve``; ``reason`` says why. ``basis`` is what was weighed: measured (or rehearsed)
    costs over ``steps`` steps, or padding alone. ``sizes`` are the batch sizes, each with programs of its own.
    """

    basis: Literal["costs", "padding only"]
    sizes: tuple[int, ...]
    steps: int
    max_programs: int
    curve: tuple[PlanPoint, ...]
    recommended: int
    reason: str
    longer: Longer


def candidates(lengths: Iterable[int]) -> list[int]:
    """Edges that are worth considering: of each length the next power of two and the next multiple of 128."""
    found: set[int] = set()
    for length in lengths:
        found.add(1 << (length - 1).bit_length())
        if length > MULTIPLE:
            found.add(-(-length // MULTIPLE) * MULTIPLE)
    return sorted(found)


def choose(shares: Mapping[int, float], programs: int, edges: Iterable[int] | None = None) -> Buckets:
    """The at most `programs` edges that pad least, by dynamic programming over all candidates.

    `shares` gives each length's share of the requests (they need not add up to 1; where all are 0 the lengths count
    alike). `edges` are the candidates, by default :func:`candidates`. Of equally good choices the one with fewer edges is
    taken.

    Raises:
        BadInput: no length, a length below 1, a negative share, no program, or no candidate as long as the longest length.
    """
    if not shares or min(shares) < 1 or min(shares.values()) < 0 or programs < 1:
        raise BadInput("buckets need at least one length and one program; lengths start at 1, shares at 0")
    lengths = sorted(shares)
    total = sum(shares.values())
    weights = [shares[n] / total if total else 1 / len(lengths) for n in lengths]
    allowed = sorted(set(candidates(lengths) if edges is None else edges))
    if not allowed or allowed[-1] < lengths[-1]:
        raise BadInput(f"no bucket is as long as the longest length, {lengths[-1]}")
    # The smallest candidate that holds the lengths up to the i-th; a larger one in its place would pad more.
    fitting = [next(edge for edge in allowed if edge >= length) for length in lengths]
    sums = [0.0]
    for weight in weights:
        sums.append(sums[-1] + weight)
    # best[i]: cheapest cover of the first i lengths with exactly the buckets of this round (cost: computed elements).
    count = len(lengths)
    best: list[tuple[float, list[int]] | None] = [(0.0, [])] + [None] * count
    chosen: tuple[float, list[int]] | None = None
    for _ in range(min(programs, count)):
        following: list[tuple[float, list[int]] | None] = [None] * (count + 1)
        for end in range(1, count + 1):
            for start in range(end):
                before = best[start]
                if before is None:
                    continue
                cost = before[0] + fitting[end - 1] * (sums[end] - sums[start])
                held = following[end]
                if held is None or cost < held[0]:
                    following[end] = (cost, [*before[1], end])
        best = following
        whole = best[count]
        if whole is not None and (chosen is None or whole[0] < chosen[0] - 1e-12):
            chosen = whole
    assert chosen is not None
    return _buckets(lengths, weights, fitting, chosen)


def _buckets(lengths: list[int], weights: list[float], fitting: list[int], chosen: tuple[float, list[int]]) -> Buckets:
    made: list[Bucket] = []
    start = 0
    for end in chosen[1]:
        made.append(
            Bucket(edge=fitting[end - 1], lengths=tuple(lengths[start:end]), share=round(sum(weights[start:end]), 12))
        )
        start = end
    needed = sum(weight * length for weight, length in zip(weights, lengths))
    return Buckets(buckets=tuple(made), waste=max(0.0, 1 - needed / chosen[0]) if chosen[0] else 0.0)
