"""One program out of several: the members' steps in order, renumbered, with only the results that somebody needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp

from ...lowering.common import Array, is_complex, is_float
from ...program import Parameter, Program, Ref, Step, map_refs

Wiring = Sequence[Sequence[int]]  # for each member, what its parameters are: result n of the whole, or external ~n


def fuse(
    name: str, programs: Sequence[Program], arithmetic: Sequence[bool], wiring: Wiring, kept: Sequence[int]
) -> Program:
    """The program that computes `programs` one after the other and returns their results numbered in `kept`.

    It rounds as they do one by one. Between two members a value is packed into its buffer and read again; where both are
    `arithmetic` it is sealed, so that they are still computed in one loop, and elsewhere a barrier keeps them apart. The
    last parameter is the 0 (int32[]) that the seals need.
    """
    kinds: dict[int, Parameter] = {}
    for program, inputs in zip(programs, wiring):
        kinds.update({~n: kind for n, kind in zip(inputs, program.parameters) if n < 0})
    parameters = (*(kinds[i] for i in range(len(kinds))), "number")
    zero = Ref(len(kinds))
    steps: list[Step] = []
    results: list[Ref] = []  # as they are returned
    inside: list[Ref] = []  # as other members read them
    readers: dict[int, bool] = {}  # result that another member reads -> whether all of them are arithmetic
    for simple, inputs in zip(arithmetic, wiring):
        readers.update({n: simple and readers.get(n, True) for n in inputs if n >= 0})

    def append(step: Step) -> Ref:
        to = Ref(len(parameters) + len(steps))
        steps.append(replace(step, to=to))
        return to

    for program, simple, inputs in zip(programs, arithmetic, wiring):
        values = [inside[n] if n >= 0 else Ref(~n) for n in inputs]

        def moved(ref: Ref, values: list[Ref] = values) -> Ref:
            return values[ref.index]

        for step in program.steps:
            values.append(append(replace(step, args=map_refs(step.args, moved), kwargs=map_refs(step.kwargs, moved))))
        for result in program.results:
            value = values[result.index]
            results.append(value)
            if len(inside) in readers:
                apart = sealed if simple and readers[len(inside)] else held
                value = append(Step("call", value, (value, zero), name=apart.__name__, lowering=apart))
            inside.append(value)
    return Program(name, parameters, tuple(steps), tuple(results[n] for n in kept)).verify()


def held(value: Array, zero: Array) -> Array:
    """`value`, behind a barrier: nothing after it is fused with, or folded into, what is before it.

    A sum takes another order in a loop that computes its terms as well, a dot another for another layout, and the polynomial of
    a function is contracted otherwise where its loop is vectorised otherwise.
    """
    return jax.lax.optimization_barrier(value)


_BITS = {2: jnp.int16, 4: jnp.int32, 8: jnp.int64}


def sealed(value: Array, zero: Array) -> Array:
    """`value`, bit for bit, but the compiler does not know: its bits are xor-ed with a `zero` that it cannot see through.

    In one loop, LLVM contracts the product of one operator and the sum of the next into one rounding, and no option turns
    that off. A seal can be fused across, but not reasoned through.
    """
    if is_complex(value.dtype):
        return jax.lax.complex(sealed(value.real, zero), sealed(value.imag, zero))
    if not is_float(value.dtype) or value.dtype.itemsize not in _BITS:
        return value
    bits = _BITS[value.dtype.itemsize]
    whole = jax.lax.bitcast_convert_type(value, bits) ^ zero.astype(bits)
    return jax.lax.bitcast_convert_type(whole, value.dtype)
