"""From the lengths that a service meets to the few lengths that it pads them to.

On a target with static shapes every length is a program of its own, so lengths are padded up to the edges of buckets. More
buckets waste less and compile more. :func:`choose` finds, for a number of programs, the edges with the least expected
padding; :func:`plan` weighs padding against compilation for every number of programs, with measured costs where there are any;
:func:`extended` adds edges to those that are there. All are exact over their candidates.

The device (:mod:`shakedown.neuron.bucketed`) and the trial (the ledger of shapes, the forecast) plan with this one file, which
imports neither torch nor JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

MULTIPLE = 128  # the width of the matrix unit's tiles on Trainium, and of most tiles elsewhere
_MOST_CANDIDATES = 1024  # above it multiples are taken of 256, 512, ... instead, so that a plan takes seconds
NEAR = 0.01  # more programs have to save so much (of all time, or of all computed positions) to be recommended
Rule = Literal["refuse", "truncate", "compile"]


class BadLengths(ValueError):
    """Lengths, or a file of them, from which no buckets can be planned. The message says what is wrong with them."""


class Frozen(BaseModel):
    """A value that cannot change, and has no key that is not known; it is part of records, too."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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
    """Requests above ``maximum`` (the last bucket where none is given), and the rule for them. ``requests`` is None where only
    shares are known.
    """

    maximum: int
    rule: Rule
    share: float
    requests: int | None
    lengths: int
    text: str


class BucketPlan(Frozen):
    """How expected padding, compilation and cost depend on the number of programs. ``curve`` begins with one bucket, and
    ends where another one would not help or ``max_programs`` is reached.

    ``recommended`` is an index into ``curve``; ``reason`` says why. ``basis`` is what was weighed: costs (measured, or
    rehearsed) over ``steps`` steps, or padding alone. ``sizes`` are the batch sizes, each with programs of its own.
    """

    basis: Literal["costs", "padding only"]
    sizes: tuple[int, ...]
    steps: int
    max_programs: int
    curve: tuple[PlanPoint, ...]
    recommended: int
    reason: str
    longer: Longer

    @property
    def best(self) -> PlanPoint:
        """The recommended point."""
        return self.curve[self.recommended]


def candidates(lengths: Iterable[int], maximum: int = 0) -> list[int]:
    """Edges that are worth considering: of each length the next power of two and the next multiple of 128 (of 256, 512, ...
    where there would be over a thousand), none of them above `maximum` (0: no maximum).
    """
    lengths = set(lengths)
    multiple = MULTIPLE
    while True:
        found = {1 << (length - 1).bit_length() for length in lengths}
        found |= {-(-length // multiple) * multiple for length in lengths if length > multiple}
        if len(found) <= _MOST_CANDIDATES:
            return sorted({min(edge, maximum) for edge in found} if maximum else found)
        multiple *= 2


def choose(shares: Mapping[int, float], programs: int, edges: Iterable[int] | None = None) -> Buckets:
    """The at most `programs` edges that pad least, by dynamic programming over all candidates.

    `shares` gives each length's share of the requests (they need not add up to 1; where all are 0 the lengths count
    alike). `edges` are the candidates, by default :func:`candidates`. Of equally good choices the one with fewer edges is
    taken.

    Raises:
        BadLengths: no length, a length below 1, a negative share, no program, or no candidate as long as the longest length.
    """
    if not shares or min(shares) < 1 or min(shares.values()) < 0 or programs < 1:
        raise BadLengths("buckets need at least one length and one program; lengths start at 1, shares at 0")
    lengths = sorted(shares)
    total = sum(shares.values())
    weights = {n: shares[n] / total if total else 1 / len(lengths) for n in lengths}
    allowed = sorted(set(candidates(lengths) if edges is None else edges))
    if not allowed or allowed[-1] < lengths[-1]:
        raise BadLengths(f"no bucket is as long as the longest length, {lengths[-1]}")
    table = _Table({(1, n): w for n, w in weights.items()}, allowed)
    chosen = table.best(programs, _positions)[-1]
    made: list[Bucket] = []
    start = 0
    for edge in chosen:
        inside = tuple(n for n in lengths if start < n <= edge)
        made.append(Bucket(edge=edge, lengths=inside, share=round(sum(weights[n] for n in inside), 12)))
        start = edge
    return Buckets(buckets=tuple(made), waste=table.waste(chosen))


def extended(shares: Mapping[int, float], given: Iterable[int], more: int) -> tuple[int, ...]:
    """Edges beside those `given`, which cost nothing any more: the at most `more` that pad least, in ascending order.

    Fewer are taken where they come within :data:`NEAR` of all computed positions. Lengths above the last given edge do not
    count. `shares` as for :func:`choose`.
    """
    given = sorted(set(given))
    # Of each number of new edges: the positions computed, and the edges. Between two given edges it is a plan of its own.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for start, edge in zip([0, *given], given):
        inside = {(1, n): weight for n, weight in shares.items() if start < n <= edge}
        if not inside:
            continue
        allowed = {one for one in candidates((n for _, n in inside), edge) if one > start}
        table = _Table({(1, edge): 0.0} | inside, sorted(allowed | {edge}))
        reached: dict[int, tuple[float, tuple[int, ...]]] = {}
        for chosen in table.best(more + 1, _positions):
            positions = sum(weight * end for (_, end), weight in table.shares(chosen).items())
            for many, (before, others) in best.items():
                count = many + len(chosen) - 1
                if count <= more and before + positions < reached.get(count, (math.inf,))[0]:
                    reached[count] = before + positions, others + chosen[:-1]
        best = reached
    least = min(positions for positions, _ in best.values())
    return next(found for _, (positions, found) in sorted(best.items()) if positions * (1 - NEAR) <= least)


class _Table:
    """The traffic by batch size and the smallest candidate that holds it: all that a choice of edges depends on."""

    def __init__(self, traffic: Mapping[tuple[int, int], float], edges: list[int]) -> None:
        self.sizes = sorted({size for size, _ in traffic})
        self.edges = np.asarray(edges)
        self.held = np.zeros((len(self.sizes), len(edges)))
        shapes, weights = np.array(list(traffic)), np.array(list(traffic.values()))
        rows, columns = np.searchsorted(self.sizes, shapes[:, 0]), np.searchsorted(self.edges, shapes[:, 1])
        np.add.at(self.held, (rows, columns), weights)
        self.needed = float((weights * shapes[:, 0] * shapes[:, 1]).sum())
        self.last = int(columns.max())  # edges from here hold every length

    def best(self, count: int, cost: Callable[[int, int], float]) -> list[tuple[int, ...]]:
        """The cheapest edges with at most 1, 2, ... `count` of them, without those that another edge does not help.

        With the last edge j and the one before it i, whatever lies between them is computed at j, whatever `cost` (of one
        step of a size and an edge) is like; so the best that ends at j needs the best that ends at i, and no more.
        """
        edges = self.edges.tolist()
        price = np.array([[cost(size, edge) for edge in edges] for size in self.sizes])
        below = self.held.cumsum(axis=1)  # weight of the lengths up to each edge
        alone = (price * below).sum(axis=0)
        # between[j, i]: the cost of everything above edge i and up to edge j, computed at j; only for i below j.
        between = alone[:, None] - price.T @ below
        between[np.triu_indices(len(edges))] = np.inf
        best, before = alone, []
        found: list[tuple[int, ...]] = []
        cheapest = np.inf
        for number in range(min(count, len(edges))):
            if number:
                reached = best[None, :] + between
                before.append(reached.argmin(axis=1))
                best = np.take_along_axis(reached, before[-1][:, None], axis=1)[:, 0]
            end = self.last + int(best[self.last :].argmin())
            if not found or best[end] < cheapest - 1e-12 * abs(cheapest):
                cheapest = best[end]
                chosen = [end]
                for step in reversed(before):
                    chosen.append(int(step[chosen[-1]]))
                found.append(tuple(edges[i] for i in reversed(chosen)))
        return found

    def shares(self, chosen: tuple[int, ...]) -> dict[tuple[int, int], float]:
        """Weight of each batch size and chosen edge."""
        ends = np.searchsorted(self.edges, chosen) + 1
        return {
            (size, edge): float(self.held[row, start:end].sum())
            for row, size in enumerate(self.sizes)
            for edge, start, end in zip(chosen, [0, *ends], ends)
        }

    def waste(self, chosen: tuple[int, ...]) -> float:
        """Share of computed positions that are padding; 0 where nothing is computed."""
        computed = sum(weight * size * edge for (size, edge), weight in self.shares(chosen).items())
        return max(0.0, 1 - self.needed / computed) if computed else 0.0

    def step(self, chosen: tuple[int, ...], cost: Callable[[int, int], float]) -> float:
        """Expected cost of a step."""
        shares = self.shares(chosen)
        return sum(weight * cost(*shape) for shape, weight in shares.items() if weight) / sum(shares.values())


def plan(
    traffic: Mapping[tuple[int, int], float],
    *,
    max_programs: int,
    steps: int,
    expected: int = 0,
    maximum: int = 0,
    rule: Rule = "refuse",
    requests: int | None = None,
    cost: Callable[[int, int], float] | None = None,
    compile_seconds: float | None = None,
) -> BucketPlan:
    """Buckets for every number of programs up to `max_programs`, and which of them to take.

    Args:
        traffic: weights by batch size and length; a weight counts steps of that shape.
        max_programs: programs that may be compiled, over all batch sizes.
        steps: steps over which compilation is spread: those that one cold start serves.
        expected: programs that the service is planned with; no more are recommended. 0: no expectation.
        maximum: the longest length that is served; 0: whatever the last bucket holds.
        rule: what becomes of longer requests.
        requests: how many requests the weights stand for, None: not known.
        cost: seconds of one step of a batch size and a padded length; None: not measured.
        compile_seconds: seconds that each program costs once; None: not measured.

    Raises:
        BadLengths: no traffic, no request within `maximum`, or no program for each batch size.
    """
    total = sum(traffic.values())
    sizes = tuple(sorted({size for size, _ in traffic}))
    if not total or max_programs < len(sizes):
        raise BadLengths(
            f"a plan needs traffic, and a program for each of the batch sizes {', '.join(map(str, sizes))}"
        )
    above = {shape: weight for shape, weight in traffic.items() if 0 < maximum < shape[1]}
    served = {shape: weight / total for shape, weight in traffic.items() if shape not in above}
    if rule == "truncate":
        for (size, _), weight in above.items():
            served[size, maximum] = served.get((size, maximum), 0.0) + weight / total
    if not served:
        raise BadLengths(f"no request is as short as the maximum, {maximum}")
    weighed = cost is not None and compile_seconds is not None
    edges = candidates((length for _, length in served), maximum)
    table = _Table(served, edges)
    found = table.best(max_programs // len(sizes), cost if cost and weighed else _positions)
    curve = tuple(_point(table, chosen, steps, cost, compile_seconds) for chosen in found)
    index, reason = _recommended(curve, expected, weighed, steps)
    return BucketPlan(
        basis="costs" if weighed else "padding only",
        sizes=sizes,
        steps=steps,
        max_programs=max_programs,
        curve=curve,
        recommended=index,
        reason=reason,
        longer=_longer(above, total, maximum or curve[index].edges[-1], rule, requests, compile_seconds),
    )


def _positions(size: int, edge: int) -> float:
    return float(size * edge)


def _point(
    table: _Table,
    edges: tuple[int, ...],
    steps: int,
    cost: Callable[[int, int], float] | None,
    compile_seconds: float | None,
) -> PlanPoint:
    programs = len(edges) * len(table.sizes)
    compiling = None if compile_seconds is None else programs * compile_seconds
    step = None if cost is None else table.step(edges, cost)
    return PlanPoint(
        programs=programs,
        edges=edges,
        waste=table.waste(edges),
        compile_seconds=compiling,
        step_seconds=step,
        total_seconds=None if compiling is None or step is None else compiling + steps * step,
    )


def _recommended(curve: tuple[PlanPoint, ...], expected: int, weighed: bool, steps: int) -> tuple[int, str]:
    """Index of the point with the fewest programs that is as good as any within :data:`NEAR`, and why."""
    allowed = [i for i, one in enumerate(curve) if not expected or one.programs <= expected] or [0]
    kept = f" of at most {expected} expected programs" if expected and len(allowed) < len(curve) else ""
    if weighed:
        totals = [one.total_seconds or 0.0 for one in curve]
        least = min(allowed, key=lambda i: totals[i])
        index = next(i for i in allowed if totals[i] <= totals[least] * (1 + NEAR))
        reason = (
            f"the fewest programs{kept} within {NEAR:.0%} of the least total, {totals[least]:.4g} s over {steps:,} steps with "
            f"{curve[least].programs}: compiling {curve[index].compile_seconds:.4g} s, a step {curve[index].step_seconds:.4g} s"
        )
    else:
        least = min(allowed, key=lambda i: curve[i].waste)
        index = next(i for i in allowed if curve[i].waste <= curve[least].waste + NEAR)
        reason = (
            f"the fewest programs{kept} within {NEAR:.0%} of all computed positions of the least padding, "
            f"{curve[least].waste:.1%} with {curve[least].programs}; "
            "costs are not weighed, since those of steps or of compiling are not known"
        )
    if expected and curve[index].programs > expected:
        reason += f"; {expected} programs are expected, and there is no plan with so few"
    return index, reason


def _longer(
    above: Mapping[tuple[int, int], float],
    total: float,
    maximum: int,
    rule: Rule,
    requests: int | None,
    compile_seconds: float | None,
) -> Longer:
    share = sum(above.values()) / total
    lengths = len({length for _, length in above})
    count = None if requests is None else round(share * requests)
    who = f"{share:.2%} of the requests are" if above else "no request of this traffic is"
    if count is not None and above:
        who = f"{count:,} of {requests:,} requests ({share:.2%}) are"
    each = "" if compile_seconds is None else f", about {compile_seconds:.3g} s"
    what = {
        "refuse": "such a request is refused with an error: its shape is a program that nobody has measured",
        "truncate": f"such a request is cut to {maximum}, and what is cut is not computed",
        "compile": f"each new length compiles a program of its own{each}, in the middle of service"
        + (f": {lengths} in this traffic" if above else ""),
    }[rule]
    return Longer(
        maximum=maximum,
        rule=rule,
        share=share,
        requests=count,
        lengths=lengths,
        text=f"{who} longer than {maximum}; {what}",
    )
