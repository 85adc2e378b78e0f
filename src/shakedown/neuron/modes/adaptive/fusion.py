"""One program out of several: the members' steps in order, renumbered, with only the results that somebody needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp

from ...lowering.common import Array, is_complex, is_float
from ...program import Parameter, Program, Ref, Step, map_refs

Wiring = Sequence[Sequence[int]]  # for each member, what its parameters are: result n of the whole, or external ~n


def fuse(name: str, programs: Sequence[Program], wiring: Wiring, kept: Sequence[int]) -> Program:
    """The program that computes `programs` one after the other and returns their results numbered in `kept`.

    Between two members a value is packed into its buffer, sealed, and read again, so it is rounded as between two
    executables. The last parameter is the 0 (int32[]) that the seals need.
    """
    kinds: dict[int, Parameter] = {}
    for program, inputs in zip(programs, wiring):
        kinds.update({~n: kind for n, kind in zip(inputs, program.parameters) if n < 0})
    parameters = (*(kinds[i] for i in range(len(kinds))), "number")
    zero = Ref(len(kinds))
    steps: list[Step] = []
    results: list[Ref] = []
    read = {n for inputs in wiring for n in inputs if n >= 0}

    def append(step: Step) -> Ref:
        to = Ref(len(parameters) + len(steps))
        steps.append(replace(step, to=to))
        return to

    for program, inputs in zip(programs, wiring):
        values = [results[n] if n >= 0 else Ref(~n) for n in inputs]

        def moved(ref: Ref, values: list[Ref] = values) -> Ref:
            return values[ref.index]

        for step in program.steps:
            values.append(append(replace(step, args=map_refs(step.args, moved), kwargs=map_refs(step.kwargs, moved))))
        for result in program.results:
            value = values[result.index]
            if len(results) in read:
                value = append(Step("call", value, (value, zero), name="seal", lowering=sealed))
            results.append(value)
    return Program(name, parameters, tuple(steps), tuple(results[n] for n in kept)).verify()


_BITS = {2: jnp.int16, 4: jnp.int32, 8: jnp.int64}


def sealed(value: Array, zero: Array) -> Array:
    """`value`, bit for bit, but the compiler does not know: its bits are xor-ed with a `zero` that it cannot see through.

    Fusing across operators, LLVM contracts the product of one and the sum of the next into one rounding, and XLA folds layouts
    and factors of one operator into a neighbouring dot, which then sums in another order; no option turns that off, and XLA
    for CPUs removes optimisation barriers before it fuses. A seal can be fused across, but not reasoned through.
    """
    if is_complex(value.dtype):
        return jax.lax.complex(sealed(value.real, zero), sealed(value.imag, zero))
    if not is_float(value.dtype) or value.dtype.itemsize not in _BITS:
        return value
    bits = _BITS[value.dtype.itemsize]
    whole = jax.lax.bitcast_convert_type(value, bits) ^ zero.astype(bits)
    return jax.lax.bitcast_convert_type(whole, value.dtype)
