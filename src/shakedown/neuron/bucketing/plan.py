"""Edges for a distribution of lengths, by the planner that both halves share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ... import buckets
from ... import lengths as files
from ..errors import ConfigError

Lengths: TypeAlias = "Iterable[int] | Mapping[int, float] | str | os.PathLike[str]"
REQUESTS = 10_000  # that one start serves, where nobody says


def histogram(lengths: Lengths) -> dict[int, float]:
    """How often each length comes: of a list of lengths, of counts or shares by length, or of a file of either.

    Raises:
        ConfigError: it cannot be read, is empty, or something in it is no length.
    """
    try:
        if isinstance(lengths, (str, os.PathLike)):
            return dict(files.read(Path(lengths)).weights)
        counts: dict[int, float] = {}
        rows: Iterable[tuple[Any, Any]] = lengths.items() if isinstance(lengths, Mapping) else ((n, 1) for n in lengths)
        for length, count in rows:
            if int(length) != length or length < 1 or not 0 <= count < float("inf"):
                raise ConfigError(
                    f"lengths are whole numbers from 1, and counts are not negative: {length!r}, {count!r}"
                )
            counts[int(length)] = counts.get(int(length), 0.0) + float(count)
    except buckets.BadLengths as error:
        raise ConfigError(str(error)) from None
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"lengths: {error}; give a list of lengths, counts by length, or a file") from None
    if not any(counts.values()):
        raise ConfigError("lengths: there is none")
    return {length: counts[length] for length in sorted(counts) if counts[length]}


def plan_buckets(
    lengths: Lengths,
    *,
    max_programs: int = 8,
    compile_seconds: float | None = None,
    seconds_per_element: float | None = None,
    requests: int = 0,
    longest: int = 0,
) -> buckets.BucketPlan:
    """The edges to pad to, by padding and compilation, for every number of programs up to `max_programs`.

    ``plan.best.edges`` are the recommended ones, ``plan.reason`` says why, ``plan.curve`` has the others. Exact over multiples
    of 128 and powers of two.

    Args:
        lengths: a list of lengths, counts (or shares) by length, or the path of a file (``docs/bucketing.md``).
        max_programs: programs that there may be.
        compile_seconds: what each program costs once, in seconds.
        seconds_per_element: what each element along the length costs in each request, in seconds. Without both costs the
            fewest programs are taken that come within 1 % of the least padding.
        requests: how many requests one start serves, over which compilation is spread; 0: as many as `lengths` counts, or
            10,000 where those are shares or fewer.
        longest: a length that must be served, though none of `lengths` is as long; 0: none.

    Raises:
        ConfigError: the lengths cannot be read or there are none, a cost is negative, or no program is allowed.
    """
    known = histogram(lengths)
    for name, cost in (("compile_seconds", compile_seconds), ("seconds_per_element", seconds_per_element)):
        if cost is not None and not 0 <= cost < float("inf"):
            raise ConfigError(f"plan_buckets: {name}={cost!r} is no cost; give seconds, from 0")
    if longest and longest >= max(known):
        known[longest] = known.get(longest, 0.0)  # weighs nothing, but has to fit
    spread = requests or max(REQUESTS, int(sum(known.values())))
    each = seconds_per_element
    try:
        return buckets.plan(
            {(1, length): weight for length, weight in known.items()},
            max_programs=max_programs,
            steps=spread,
            cost=None if each is None else lambda size, edge: size * edge * each,
            compile_seconds=compile_seconds,
            maximum=longest if longest >= max(known) else 0,
        )
    except buckets.BadLengths as error:
        raise ConfigError(f"plan_buckets: {error}") from None
