"""One program out of several: the members' steps in order, renumbered, with only the results that somebody needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...program import Parameter, Program, Ref, Step, map_refs

Wiring = Sequence[Sequence[int]]  # for each member, what its parameters are: result n of the whole, or external ~n


def fuse(name: str, programs: Sequence[Program], wiring: Wiring, kept: Sequence[int]) -> Program:
    """The program that computes `programs` one after the other and returns their results numbered in `kept`.

    Between two members a value is packed into its buffer and read again, so it is rounded as between two executables.
    """
    kinds: dict[int, Parameter] = {}
    for program, inputs in zip(programs, wiring):
        kinds.update({~n: kind for n, kind in zip(inputs, program.parameters) if n < 0})
    parameters = tuple(kinds[i] for i in range(len(kinds)))
    steps: list[Step] = []
    results: list[Ref] = []
    for program, inputs in zip(programs, wiring):
        values = [results[n] if n >= 0 else Ref(~n) for n in inputs]

        def moved(ref: Ref, values: list[Ref] = values) -> Ref:
            return values[ref.index]

        for step in program.steps:
            to = Ref(len(parameters) + len(steps))
            steps.append(replace(step, to=to, args=map_refs(step.args, moved), kwargs=map_refs(step.kwargs, moved)))
            values.append(to)
        results += [values[r.index] for r in program.results]
    return Program(name, parameters, tuple(steps), tuple(results[n] for n in kept)).verify()
