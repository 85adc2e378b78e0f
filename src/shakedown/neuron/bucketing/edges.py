"""The length that a call is padded to: from edges that are given, or from edges that are opened as lengths come."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from ... import buckets

SHORTEST = 16  # the shortest edge that is opened for a single request
FIRST_REVIEW = 64  # requests; the next review comes after four times as many


class Fixed:
    """Edges that never change."""

    def __init__(self, edges: Iterable[int]) -> None:
        self.known = tuple(sorted(set(edges)))

    def edge_of(self, length: int) -> int | None:
        """The edge that `length` is padded to; None above the last."""
        at = bisect.bisect_left(self.known, length)
        return self.known[at] if at < len(self.known) else None

    @property
    def limit(self) -> str:
        """Why there is no edge for a length, in words."""
        return f"the largest bucket is {self.known[-1]}"


class Online:
    """At most `programs` edges for ever, opened as requests come; the same requests in the same order give the same edges.

    A request that no edge holds, or that the next edge would more than double, opens the next power of two. Half of the
    programs wait until lengths have been seen: then, and each time four times as many were, some are spent where they save
    most (:func:`shakedown.buckets.extended`). With `longest`, the last program is kept for it, so that no length up to it
    is ever refused; without, one is kept for a length above all before.
    """

    def __init__(self, programs: int, longest: int = 0) -> None:
        self.programs, self.longest = programs, longest
        self.known: tuple[int, ...] = ()
        self._seen: dict[int, int] = {}
        self._requests = 0
        self._review = FIRST_REVIEW

    def edge_of(self, length: int) -> int | None:
        """The edge that `length` is padded to; None above `longest`, or where all programs are spent on shorter ones."""
        if self.longest and length > self.longest:
            return None
        self._seen[length] = self._seen.get(length, 0) + 1
        self._requests += 1
        if self._requests == self._review:
            self._review *= 4
            spare = self._left() - self._kept()
            if spare > 0:
                self._open(*buckets.extended(self._seen, self.known, (spare + 1) // 2))
        wanted = max(SHORTEST, 1 << (length - 1).bit_length()) if length else SHORTEST
        wanted = min(wanted, self.longest) if self.longest else wanted
        at = bisect.bisect_left(self.known, length)
        if at == len(self.known):
            left = self._left()
            if not left:
                return None
            if self.longest and left == 1:
                wanted = self.longest
            self._open(wanted)
            return wanted
        waiting = self.programs // 2 if self._review == FIRST_REVIEW else 0
        if 2 * wanted <= self.known[at] and self._left() > max(waiting, self._kept()):
            self._open(wanted)
            return wanted
        return self.known[at]

    @property
    def limit(self) -> str:
        """Why there is no edge for a length, in words."""
        if self.longest:
            return f"the longest that is served is {self.longest}"
        return (
            f"all {self.programs} programs are for shorter ones, {', '.join(map(str, self.known))}; say how long they get, "
            "longest=, and one is kept for it"
        )

    def _left(self) -> int:
        return self.programs - len(self.known)

    def _kept(self) -> int:
        """Programs that are for lengths above all that came so far."""
        return int(not self.longest or self.longest not in self.known)

    def _open(self, *edges: int) -> None:
        self.known = tuple(sorted({*self.known, *edges}))
