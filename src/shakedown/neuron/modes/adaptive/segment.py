"""A stretch of the recording: how its operators are wired, which of its values anybody still needs, and running it one by one.

Liveness is read from reference counts. A result that nothing refers to but the recording itself is dead: no storage holds
it, so no tensor can ever ask for it. The same goes for inputs, whose memory a fused program may then use again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import jax

from ... import events, runtime
from ...lowering.checks import Demand
from ...pending import Failed, Pending
from ...plan import Plan

_SPARED_FROM = 1 << 20  # bytes of results: below, giving memory back within the segment costs more than it saves
_DONATED_FROM = 4096  # bytes: below, giving memory back early is not worth a program that depends on it


# One recorded operator: its plan; its inputs, which are values or Pending until Segment turns them into numbers; its results.
# (A plain tuple: it is made for every operator.)
Entry: TypeAlias = tuple[Plan, list[Any], list[Pending]]


class OperatorFailed(Exception):
    """Entry number `index` broke `demand`, or (None) takes what an operator that failed earlier should have given."""

    def __init__(self, index: int, demand: Demand | None, cause: BaseException | None = None) -> None:
        super().__init__(index, demand)
        self.index, self.demand, self.cause = index, demand, cause


class Segment:
    """Entries with numbered inputs: result ``n`` of the segment itself, or ``~n`` for number `n` of ``externals``.

    ``code`` says the same in one tuple: two segments with equal codes can be run by the same program.
    """

    __slots__ = ("code", "done", "entries", "externals", "failed")

    def __init__(self, entries: list[Entry], first: int) -> None:
        """`first` is the number of the entries' first result. Takes the references to inputs out of `entries`."""
        self.entries = entries
        self.done = 0  # how many entries' values are in place
        self.externals: list[Any] = []
        self.failed = False  # whether an external has no value because its operator failed
        externals = self.externals
        code: list[Any] = []
        numbers: dict[int, int] = {}  # id of an external -> its number
        for plan, inputs, _ in entries:
            code.append(plan)
            unique = plan.unique
            for i, value in enumerate(inputs):
                if type(value) is Pending:
                    number = value.number - first
                    if number >= 0:
                        inputs[i] = number
                        continue
                    value = value.value
                    if type(value) is Failed:
                        self.failed = True
                if unique and i in unique:
                    # Numbers that are equal today need not be tomorrow: each has a place of its own.
                    inputs[i] = ~len(externals)
                    externals.append(value)
                    continue
                known = numbers.setdefault(id(value), len(externals))
                if known == len(externals):
                    externals.append(value)
                inputs[i] = ~known
            code += inputs
        self.code = tuple(code)

    def needed(self, others: int = 0) -> bytes:
        """One byte for each result: 1 where a storage, or anything but `others` of the caller's, still refers to it."""
        least = _OF_A_RESULT + others
        return bytes([count > least for count in _result_counts(self.entries)])

    def large(self) -> list[int]:
        """Numbers of the externals that are buffers worth giving away. The same for all segments of one code."""
        return [
            i for i, v in enumerate(self.externals) if isinstance(v, jax.Array) and v.ndim and v.nbytes >= _DONATED_FROM
        ]

    def free(self, among: Iterable[int]) -> bytes:
        """One byte for each external: 1 where it is `among` them and nothing else refers to it."""
        externals, flags = self.externals, bytearray(len(self.externals))
        for i in among:
            flags[i] = _external_count(externals, i) == _OF_AN_EXTERNAL
        return bytes(flags)

    def results(self) -> list[Pending]:
        return [p for _, _, outs in self.entries for p in outs]

    def run_each(self, recover: Callable[[int, list[Any], Exception], list[Any]]) -> None:
        """Run operator by operator, on the executables of plain eager execution, and put the values in place.

        `recover` gives the results of an entry on inputs whose program raised, or raises what is to be raised.

        Raises:
            OperatorFailed: the data do not meet an operator's demand. Values before it are in place.
        """
        results, externals = self.results(), self.externals
        spares = sum([plan.nbytes for plan, _, _ in self.entries]) > _SPARED_FROM
        if spares:
            last_use = {i: index for index, (_, inputs, _) in enumerate(self.entries) for i in inputs}
            needed = self.needed(others=1)
            free = self.free(range(len(externals)))
        for index, (plan, inputs, outs) in enumerate(self.entries):
            given = [results[i].value if i >= 0 else externals[~i] for i in inputs]
            if self.failed:
                for value in given:
                    if type(value) is Failed:
                        raise OperatorFailed(index, None, value.error)
            start_ns = time.perf_counter_ns() if events.listening else 0
            try:
                made = plan.run(*given)
            except Exception as error:
                made, recovered = recover(index, given, error), True
            else:
                recovered = False
                if start_ns:
                    events.emit_execute(plan.operator.name, start_ns)
            if type(made) is not list:
                outs[0].value = made
            else:
                if plan.program.demands and not recovered:
                    broken = runtime.read_int(made.pop())
                    if broken:
                        raise OperatorFailed(index, plan.program.demands[broken - 1])
                for pending, value in zip(outs, made):
                    pending.value = value
            self.done = index + 1
            # Memory is given back where plain eager execution gives it back.
            for i in inputs if spares else ():
                if last_use[i] == index:
                    if i < 0 and free[~i]:
                        externals[~i] = None
                    elif i >= 0 and not needed[i]:
                        results[i].value = None

    def inputs_of(self, index: int) -> list[Any]:
        """The values that entry `index` takes, once all entries before it have run."""
        flat = self.results()
        return [flat[i].value if i >= 0 else self.externals[~i] for i in self.entries[index][1]]

    def abandon(self, index: int, error: BaseException) -> None:
        """Leave everything as if execution had stopped before entry `index`: what it and later ones wrote is as before.

        New tensors that they were to make have no value, and reading one says why.
        """
        flat = self.results()
        for plan, inputs, outs in self.entries[index:]:
            before = [flat[i].value if i >= 0 else self.externals[~i] for i in inputs]
            for pending in outs:
                pending.value = Failed(error)
            for result, parameter in plan.rewrites:
                outs[result].value = before[parameter]
            plan.tally.runs -= 1


def _result_counts(entries: list[Entry]) -> list[int]:
    return [sys.getrefcount(p) for _, _, outs in entries for p in outs]


def _external_count(externals: list[Any], i: int) -> int:
    return sys.getrefcount(externals[i])


# What the recording and the act of counting add differs between versions of Python, so it is counted on things nobody else has.
_OF_A_RESULT = _result_counts([(None, [], [Pending(0)])])[0]  # type: ignore[list-item]
_OF_AN_EXTERNAL = _external_count([Pending(0)], 0)
