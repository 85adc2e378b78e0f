"""Which operator on the CPU something happened in: the innermost one of the same thread that was running all the while."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Within(Generic[T]):
    """Nested intervals by thread, built from (thread, start, end, what), times in ns. `slack` is how far times may be wrong."""

    def __init__(self, intervals: Iterable[tuple[int, int, int, T]], slack: int = 0) -> None:
        self._slack = slack
        self._threads: dict[
            int, tuple[list[int], list[tuple[int, int, int, T]]]
        ] = {}  # starts; (start, end, parent, what)
        grouped: dict[int, list[tuple[int, int, T]]] = {}
        for thread, start, end, what in intervals:
            grouped.setdefault(thread, []).append((start, end, what))
        for thread, items in grouped.items():
            items.sort(key=lambda item: (item[0], -item[1]))
            rows: list[tuple[int, int, int, T]] = []
            open_: list[int] = []
            for start, end, what in items:
                while open_ and rows[open_[-1]][1] < end:
                    open_.pop()
                rows.append((start, end, open_[-1] if open_ else -1, what))
                open_.append(len(rows) - 1)
            self._threads[thread] = [row[0] for row in rows], rows

    def chain(self, thread: int, start: int, end: int) -> Iterator[tuple[int, int, T]]:
        """(start, end, what) of all intervals around `start` to `end` on `thread`, the innermost first."""
        found = self._threads.get(thread)
        if found is None:
            return
        starts, rows = found
        place = bisect_right(starts, start + self._slack) - 1
        while place >= 0:
            begin, finish, parent, what = rows[place]
            if finish + self._slack >= end:
                yield begin, finish, what
            place = parent

    def innermost(self, thread: int, start: int, end: int) -> tuple[int, int, T] | None:
        return next(self.chain(thread, start, end), None)
