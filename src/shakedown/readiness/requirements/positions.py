"""On which line of a TOML text each key and each array element stands.

``tomllib`` gives values without positions, and tomlkit, which keeps every blank, does not give them out either. The text has
been accepted by ``tomllib`` before it comes here, so this reads structure alone: headers, keys, and where values end.
"""

from __future__ import annotations

import tomllib
from bisect import bisect_right
from collections.abc import Callable
from typing import TypeAlias

Place: TypeAlias = tuple[str | int, ...]
_BARE_ENDS = ",]}\n#"


def lines(text: str) -> dict[Place, int]:
    """Line numbers, from 1, by path: ``("cases", 1, "size")``. A table has the line of its header, or of its first key."""
    return _Reader(text).read()


def nearest(found: dict[Place, int], place: Place) -> int:
    """The line of `place`, or of the innermost table around it that the text mentions; 1 where it mentions none."""
    while place:
        if place in found:
            return found[place]
        place = place[:-1]
    return 1


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n") + "\n"
        self.at = 0
        self.starts = [0, *(i + 1 for i, c in enumerate(self.text) if c == "\n")]
        self.found: dict[Place, int] = {}
        self.members: dict[Place, int] = {}  # how many tables an array of tables has so far

    def read(self) -> dict[Place, int]:
        here: Place = ()
        while self._skip(newlines=True):
            if self.text.startswith("[[", self.at):
                keys = self._header("[[", "]]")
                table = self._inside(keys[:-1]) + keys[-1:]
                self._note(table)
                number = self.members[table] = self.members.get(table, -1) + 1
                here = (*table, number)
                self._note(here)
            elif self.text[self.at] == "[":
                here = self._inside(self._header("[", "]"))
                self._note(here)
            else:
                self._pair(here)
        return self.found

    def _header(self, opening: str, closing: str) -> tuple[str, ...]:
        start = self.at
        self.at += len(opening)
        keys = self._keys()
        self.at = self.text.index(closing, self.at) + len(closing)
        self.line_of_header = self._line(start)
        return keys

    def _inside(self, keys: tuple[str, ...]) -> Place:
        """The table that `keys` mean here: within an array of tables, its latest member."""
        place: Place = ()
        for key in keys:
            place = (*place, key)
            if place in self.members:
                place = (*place, self.members[place])
        return place

    def _note(self, place: Place, start: int | None = None) -> None:
        line = self.line_of_header if start is None else self._line(start)
        for length in range(1, len(place) + 1):
            self.found.setdefault(place[:length], line)

    def _line(self, index: int) -> int:
        return bisect_right(self.starts, index)

    def _pair(self, table: Place) -> None:
        start = self.at
        place = table + self._keys()
        self._note(place, start)
        self.at = self.text.index("=", self.at) + 1
        self._value(place)

    def _keys(self) -> tuple[str, ...]:
        """A dotted key; stops behind its last part."""
        keys: list[str] = []
        while True:
            self._skip()
            start = self.at
            if self.text[start] in "\"'":
                self._string()
                keys.append(tomllib.loads(f"key = {self.text[start : self.at]}")["key"])
            else:
                while self.text[self.at] not in " \t.=]":
                    self.at += 1
                keys.append(self.text[start : self.at])
            self._skip()
            if self.text[self.at] != ".":
                return tuple(keys)
            self.at += 1

    def _value(self, place: Place) -> None:
        self._skip()
        first = self.text[self.at]
        if first == "[":
            self._list("]", lambda number: self._element((*place, number)))
        elif first == "{":
            self._list("}", lambda number: self._pair(place))
        elif first in "\"'":
            self._string()
        else:
            while self.text[self.at] not in _BARE_ENDS:
                self.at += 1

    def _element(self, place: Place) -> None:
        self._note(place, self.at)
        self._value(place)

    def _list(self, closing: str, member: Callable[[int], None]) -> None:
        """Members up to `closing`, with commas, comments and line breaks between them."""
        self.at += 1
        number = 0
        while self._skip(newlines=True) and self.text[self.at] != closing:
            if self.text[self.at] == ",":
                self.at += 1
                continue
            member(number)
            number += 1
        self.at += 1

    def _string(self) -> None:
        quote = self.text[self.at]
        mark = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(mark)
        while not self.text.startswith(mark, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(mark)
        for _ in range(2):  # up to two quotation marks may stand before the three that close
            if len(mark) == 3 and self.text[self.at] == quote:
                self.at += 1

    def _skip(self, newlines: bool = False) -> bool:
        """Go over blanks, and with `newlines` over comments and line ends; whether anything is left."""
        while self.at < len(self.text):
            if self.text[self.at] in (" \t\n" if newlines else " \t"):
                self.at += 1
            elif newlines and self.text[self.at] == "#":
                self.at = self.text.index("\n", self.at)
            else:
                return True
        return False
