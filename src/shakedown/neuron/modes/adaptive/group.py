"""Segments that have been seen, and the fused programs that run them.

A group is all segments of one code: the same plans, wired in the same way. Its programs differ in which results they
return and which inputs they consume. A program serves a segment when it returns all that is needed and consumes only what
is free, so a group whose tensors live longer in one step than in another soon has a program that serves both.
"""

from __future__ import annotations

import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...lowering.checks import Demand
from ...places import innermost
from ...plan import Plan
from .segment import Segment

_MOST_GROUPS = 2048
_MOST_PROGRAMS = 4  # of a group; the last of them returns everything and consumes nothing


@dataclass(slots=True)
class Fused:
    """One compiled program of a group. ``run`` is None until it is ready; ``error`` says why it never will be.

    ``returns`` and ``consumes`` have one byte for each result and external of the segment.
    """

    returns: bytes
    consumes: bytes
    run: Callable[..., Any] | None = None
    error: str | None = None
    seconds: float = 0.0  # to compile, in the background
    saves: int = 0  # bytes of results that a run does not return
    numbers: tuple[int, ...] = ()  # of the results returned, in order
    temp: int = 0  # bytes that it needs besides its inputs and what it returns
    demands: list[Demand] = field(default_factory=list)  # of the data; then one more result says which is broken

    def __post_init__(self) -> None:
        self.numbers = tuple(i for i, kept in enumerate(self.returns) if kept)

    def serves(self, needed: int, free: int) -> bool:
        return not (needed & ~_bits(self.returns)) and not (_bits(self.consumes) & ~free)


def _bits(flags: bytes) -> int:
    return int.from_bytes(flags, "little")


@dataclass(slots=True)
class Group:
    """All segments of one code."""

    name: str  # the same in every process
    operators: tuple[str, ...]
    lines: tuple[str | None, ...]  # where each was recorded the first time, when stacks are kept
    nbytes: tuple[int, ...]  # of each result
    large: list[int]  # externals that a program may consume
    first_seen: float = field(default_factory=time.time)  # seconds since the epoch
    runs_fused: int = 0
    runs_each: int = 0
    bytes_saved: int = 0  # results that fused runs did not return
    programs: list[Fused] = field(default_factory=list)

    def find(self, needed: bytes, free: bytes) -> Fused | None:
        """The program made for just this, or else a ready one that serves it, or else None."""
        for program in self.programs:
            if program.returns == needed and program.consumes == free and program.run is not None:
                return program
        wanted, given = _bits(needed), _bits(free)
        return next((p for p in self.programs if p.run is not None and p.serves(wanted, given)), None)

    def wants(self, needed: bytes, free: bytes) -> Fused | None:
        """A new program to compile for such segments; None if one is on its way, has failed, or there are enough."""
        wanted, given = _bits(needed), _bits(free)
        if len(self.programs) >= _MOST_PROGRAMS or any(p.serves(wanted, given) for p in self.programs):
            return None
        if any(p.error is not None for p in self.programs):
            return None
        if len(self.programs) == _MOST_PROGRAMS - 1:
            made = Fused(bytes([1] * len(needed)), bytes(len(free)))
        else:
            made = Fused(needed, free)
        made.saves = sum(size for size, kept in zip(self.nbytes, made.returns) if not kept)
        self.programs.append(made)
        return made


class Groups:
    """The groups of this process by code, the least recently seen forgotten first."""

    __slots__ = ("_by_code",)

    def __init__(self) -> None:
        self._by_code: OrderedDict[tuple[Any, ...], Group] = OrderedDict()

    def of(self, segment: Segment, lines: list[str | None]) -> tuple[Group, bool]:
        """(the segment's group, whether it was seen before)."""
        found = self._by_code.get(segment.code)
        if found is not None:
            self._by_code.move_to_end(segment.code)
            return found, True
        plans = [plan for plan, _, _ in segment.entries]
        marks = [item.mark if isinstance(item, Plan) else item for item in segment.code]
        made = self._by_code[segment.code] = Group(
            f"{zlib.crc32(repr(marks).encode()):08x}",
            tuple(plan.operator.name for plan in plans),
            tuple(innermost(line) for line in lines) if lines else (None,) * len(plans),
            tuple(size for plan in plans for size in plan.sizes),
            # What demands something of its data may have to be run again, operator by operator.
            [] if any(plan.program.demands for plan in plans) else segment.large(),
        )
        if len(self._by_code) > _MOST_GROUPS:
            self._by_code.popitem(last=False)
        return made, False

    def all(self) -> list[Group]:
        return list(self._by_code.values())

    def items(self) -> list[tuple[tuple[Any, ...], Group]]:
        """Each group with the code of its segments."""
        return list(self._by_code.items())

    def clear(self) -> None:
        self._by_code.clear()
