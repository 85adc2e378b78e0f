"""How much of what a bucketed function computed was padding, read from the event stream."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .. import events

_DETAIL = re.compile(r"(?:batch (\d+) in (\d+), )?length (\d+) in (\d+): (\d+) of (\d+)( longer)?")


def record(
    name: str,
    length: tuple[int, int],
    batch: tuple[int, int] | None,
    elements: tuple[int, int],
    longer: bool,
    start_ns: int,
    duration_ns: int,
) -> None:
    """Tell the stream of one request: its length and edge, batch and edge, real and computed elements of its first tensor."""
    rows = f"batch {batch[0]} in {batch[1]}, " if batch else ""
    detail = f"{rows}length {length[0]} in {length[1]}: {elements[0]} of {elements[1]}{' longer' if longer else ''}"
    events.record("bucket", name, start_ns=start_ns, duration_ns=duration_ns, detail=detail)


@dataclass(frozen=True)
class Bucket:
    """What one bucket was used for. ``batch`` is None where batches are not padded. ``waste`` is the share of elements."""

    length: int
    batch: int | None
    requests: int
    elements: int
    padding: int

    @property
    def waste(self) -> float:
        return self.padding / self.elements if self.elements else 0.0


@dataclass(frozen=True)
class BucketStats:
    """Requests since the event stream was last cleared, and the ``programs`` that there are for them (of all time).

    ``elements`` were computed, ``padding`` of them added: elements of the first padded argument, which for token ids are
    positions. ``longer`` requests were above the largest bucket, with shapes of their own. ``pad_seconds`` is the time that
    padding the arguments took. ``lengths`` counts requests by length: what ``plan_buckets`` and ``shakedown shapes`` take.
    """

    name: str
    programs: int
    requests: int
    elements: int
    padding: int
    longer: int
    pad_seconds: float
    buckets: tuple[Bucket, ...]
    lengths: dict[int, int]

    @property
    def waste(self) -> float:
        """The share of computed elements that are padding, 0 to below 1."""
        return self.padding / self.elements if self.elements else 0.0


def stats(name: str, programs: int) -> BucketStats:
    """Sum over the stream's rows of `name`."""
    held: dict[tuple[int, int], list[int]] = {}
    lengths: dict[int, int] = {}
    longer, seconds = 0, 0.0
    for row in events.snapshot():
        if row["kind"] != "bucket" or row["name"] != name:
            continue
        found = _DETAIL.fullmatch(row["detail"])
        assert found is not None, row["detail"]
        count, is_longer = row["count"], found[7] is not None
        batch, length, edge, real, computed = (int(found[i] or 0) for i in (2, 3, 4, 5, 6))
        sums = held.setdefault((edge, batch), [0, 0, 0])
        for i, more in enumerate((count, count * computed, count * (computed - real))):
            sums[i] += more
        lengths[length] = lengths.get(length, 0) + count
        longer += count * is_longer
        seconds += row["seconds"]
    rows = tuple(Bucket(edge, batch or None, *sums) for (edge, batch), sums in sorted(held.items()))
    return BucketStats(
        name=name,
        programs=programs,
        requests=sum(row.requests for row in rows),
        elements=sum(row.elements for row in rows),
        padding=sum(row.padding for row in rows),
        longer=longer,
        pad_seconds=seconds,
        buckets=rows,
        lengths=dict(sorted(lengths.items())),
    )
