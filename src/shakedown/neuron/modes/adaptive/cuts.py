"""Where the recording is cut into segments: content decides, so that a repeating step is cut at the same places.

A cut depends on the last :data:`WINDOW` operators alone: a rolling hash over their plans' marks, as in content-defined
chunking (Muthitacharoen et al., "A low-bandwidth network file system", 2001). Three rules shape it:

- A segment has at least :data:`LEAST` operators, and the longer it gets the weaker a hash cuts it, so that the limit on
  its length, which would drift through the step, is hardly ever met.
- What was cut once is cut again: the hash at a cut, or at a flush that the program itself caused (a value was read), is
  *known* from then on. So steps without a read are cut where the steps with one are, and periods settle in one round.
- A run of equal operators looks the same everywhere, so nothing inside it is a place to cut.
"""

from __future__ import annotations

import zlib
from typing import Any

LEAST = 32  # operators
_BITS, _SHIFT = 32, 4
WINDOW = _BITS // _SHIFT  # operators that the hash depends on
_MASK = (1 << _BITS) - 1
_KEPT = (
    25,
    25,
    27,
    29,
    31,
)  # bits of the hash that do not count, for each 128 operators: the 7, 7, 5, 3, 1 others are 0
_LAST = len(_KEPT) - 1
_MOST_KNOWN = 4096


def mark_of(name: str, key: tuple[Any, ...]) -> int:
    """A number of 32 bits for the plan of operator `name` and `key`: the same in every process."""
    return zlib.crc32(repr((name, key)).encode())


class Cuts:
    """The hash of the recording, and the places where it has been cut. ``hash`` is rolled by the recorder, in line."""

    __slots__ = ("hash", "known", "limit")

    def __init__(self, limit: int) -> None:
        self.hash = 0
        self.limit = limit  # operators
        self.known: set[int] = set()

    def roll(self, mark: int, length: int) -> bool:
        """Move on by one operator, which is number `length` (from 1) of its segment; whether to cut after it."""
        before = self.hash
        now = self.hash = ((before << _SHIFT) + mark) & _MASK
        if length < LEAST:
            return length >= self.limit
        place = now != before and (now in self.known or not now >> _KEPT[min(length >> 7, _LAST)])
        return place or length >= self.limit

    def learn(self) -> None:
        """Remember this place, so that it is cut here again."""
        if len(self.known) >= _MOST_KNOWN:
            self.known.clear()
        self.known.add(self.hash)

    def restart(self) -> None:
        """Begin a segment: nothing before it counts."""
        self.hash = 0
