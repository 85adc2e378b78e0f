"""Numbered values and the steps between them: what one compiled module computes, in a form that can be read and checked.

A program takes buffers (one-dimensional arrays), numbers and random keys, and gives buffers. Between reading views and
writing them, values are logical: an array with a tensor's sizes. ``print(program)`` shows one line a step::

    v2 = read v0 as float32[8,64]
    v3 = aten.mul.Tensor(v2, v1) : float32[8,64]
    v4 = pack v3 as float32[8,64]
    return v4

A lowering may demand something of its data (:mod:`.lowering.checks`); the program then gives one result more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import torch

from . import events, views
from .dtypes import to_torch
from .errors import LoweringError
from .lowering.checks import Demand, collecting
from .views import View

if TYPE_CHECKING:
    from .profiles.rules import Profile

Parameter = Literal["buffer", "number", "key"]


@dataclass(frozen=True, slots=True)
class Ref:
    """Value number `index` of the program."""

    index: int

    def __repr__(self) -> str:
        return f"v{self.index}"


@dataclass(frozen=True, slots=True)
class Step:
    """``to = kind(...)``. Fields that a kind does not use are None.

    read: ``view`` of buffer ``args[0]``; write: buffer ``args[0]`` with ``view`` replaced by ``args[1]``;
    pack: a fresh buffer for ``args[0]`` in the layout of ``view``; call: ``lowering(*args, **kwargs)``;
    get: item ``view`` of the tuple ``args[0]``.
    """

    kind: Literal["read", "write", "pack", "call", "get"]
    to: Ref
    args: tuple[Any, ...]
    view: View | int | None = None
    name: str = ""
    lowering: Callable[..., Any] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[View, ...] | None = None  # of a call: what the operator's tensors must look like, in order

    def __str__(self) -> str:
        if self.kind == "call":
            given = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.kwargs.items()]
            typed = "" if self.outputs is None else " : " + ", ".join(map(str, self.outputs))
            return f"{self.to} = {self.name}({', '.join(given)}){typed}"
        if self.kind == "write":
            return f"{self.to} = write {self.args[1]} into {self.args[0]} as {self.view}"
        if self.kind == "get":
            return f"{self.to} = {self.args[0]}[{self.view}]"
        return f"{self.to} = {self.kind} {self.args[0]} as {self.view}"


def map_refs(tree: Any, fn: Callable[[Ref], Any]) -> Any:
    """`tree` (lists, tuples, dicts) with every :class:`Ref` replaced by ``fn(ref)``."""
    if isinstance(tree, Ref):
        return fn(tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_refs(t, fn) for t in tree)
    if isinstance(tree, dict):
        return {k: map_refs(v, fn) for k, v in tree.items()}
    return tree


@dataclass(frozen=True, slots=True)
class Program:
    """A finished program; build one with :class:`Builder`. Calling it evaluates its steps (normally under ``jax.jit``).

    The call gives the one result, or the list of them. When it fills `demands`, the results are always a list, which
    ends with the number of the first demand that the data does not meet (int32[], 1 for the first, 0 when all are met).
    ``keeps``: (result, parameter) pairs; where a demand is not met, such a result is the parameter as it was given, so
    that a program may consume what it replaces and still change nothing.
    """

    name: str
    parameters: tuple[Parameter, ...]
    steps: tuple[Step, ...]
    results: tuple[Ref, ...]
    demands: list[Demand] = field(default_factory=list, compare=False)  # of the data; known once the program was traced
    keeps: tuple[tuple[int, int], ...] = ()

    def __call__(self, *inputs: Any) -> Any:
        start_ns = time.perf_counter_ns()
        values: list[Any] = [*inputs, *([None] * len(self.steps))]

        def value_of(ref: Ref) -> Any:
            return values[ref.index]

        with collecting() as demands:
            for step in self.steps:
                demands.operator = step.name
                try:
                    values[step.to.index] = self._evaluate(step, value_of)
                except Exception as error:
                    error.failing_step = step.to.index  # type: ignore[attr-defined]  # whoever splits a graph asks
                    raise
        events.record("trace", self.name, start_ns=start_ns, duration_ns=time.perf_counter_ns() - start_ns)
        results = [values[r.index] for r in self.results]
        self.demands[:] = demands.stated
        if demands.stated:
            broken = demands.first_broken()
            for result, parameter in self.keeps:
                results[result] = jax.numpy.where(broken == 0, results[result], inputs[parameter])
            return [*results, broken]
        return results[0] if len(results) == 1 else results

    def _evaluate(self, step: Step, value_of: Callable[[Ref], Any]) -> Any:
        if step.kind == "call":
            assert step.lowering is not None
            args, kwargs = map_refs(step.args, value_of), map_refs(step.kwargs, value_of)
            return _conform(step, step.lowering(*args, **kwargs))
        first = value_of(step.args[0])
        if step.kind == "get":
            return first[step.view]
        assert isinstance(step.view, View)
        if step.kind == "read":
            return views.read(first, step.view)
        if step.kind == "pack":
            return views.pack(first, step.view)
        return views.write(first, step.view, value_of(step.args[1]))

    def __str__(self) -> str:
        head = ", ".join(f"v{i}: {kind}" for i, kind in enumerate(self.parameters))
        body = "".join(f"  {step}\n" for step in self.steps)
        return f"program {self.name}({head}):\n{body}  return {', '.join(map(repr, self.results))}"

    def verify(self) -> Program:
        """Check that every value is defined once, before its uses, and that results exist. Returns the program.

        Raises:
            AssertionError: naming the step that breaks the rule.
        """
        defined = set(range(len(self.parameters)))
        for step in self.steps:
            used: list[int] = []
            map_refs((step.args, step.kwargs), lambda r, used=used: used.append(r.index))  # type: ignore[misc]
            assert set(used) <= defined, f"uses an undefined value: {step}"
            assert step.to.index not in defined, f"defines a value twice: {step}"
            assert step.kind == "call" or step.view is not None, f"has no view: {step}"
            defined.add(step.to.index)
        assert {r.index for r in self.results} <= defined, f"returns an undefined value: {self.results}"
        return self


def _conform(step: Step, result: Any) -> Any:
    """Hold a lowering to the operator's sizes, and round its result to the operator's dtypes.

    Lowerings compute in the precision that the operator asks for and leave the final rounding to this place.
    """
    if step.outputs is None:
        return result
    arrays = list(result) if isinstance(result, (list, tuple)) else [result]
    flat: list[Any] = []
    for a in arrays:
        flat.extend(a if isinstance(a, (list, tuple)) else [a])
    tensors = [a for a in flat if a is not None]
    if len(tensors) != len(step.outputs):
        raise LoweringError(f"{step.name}: the lowering gave {len(tensors)} values for {len(step.outputs)} outputs")
    rounded = []
    for array, want in zip(tensors, step.outputs):
        array = jax.numpy.asarray(array)
        if tuple(array.shape) != want.size:
            raise LoweringError(
                f"{step.name}: the lowering gave sizes {list(array.shape)}, the operator {list(want.size)}"
            )
        rounded.append(
            array if to_torch(array.dtype) == want.dtype and not array.weak_type else views.cast(array, want.dtype)
        )
    return rounded


def _conjugate(x: jax.Array) -> jax.Array:
    return jnp.conj(x)


def _negative(x: jax.Array) -> jax.Array:
    return jnp.negative(x)


class Builder:
    """Collects parameters, then steps; :meth:`finish` gives the verified :class:`Program`.

    Under a support profile, `profile`, operators compute in the dtypes that it allows.
    """

    def __init__(self, name: str, profile: Profile | None = None) -> None:
        self.name, self.profile = name, profile
        self._parameters: list[Parameter] = []
        self._steps: list[Step] = []

    def _next(self) -> Ref:
        return Ref(len(self._parameters) + len(self._steps))

    def next_index(self) -> int:
        """Number of the value that comes next."""
        return self._next().index

    def parameter(self, kind: Parameter) -> Ref:
        assert not self._steps, "parameters come before steps"
        ref = self._next()
        self._parameters.append(kind)
        return ref

    def _step(self, kind: Any, *args: Any, **fields: Any) -> Ref:
        ref = self._next()
        self._steps.append(Step(kind, ref, args, **fields))
        return ref

    def read(self, buffer: Ref, view: View) -> Ref:
        return self._step("read", buffer, view=view)

    def unmarked(self, value: Ref, tensor: Any) -> Ref:
        """`value` with the lazy conjugation or negation that `tensor` stands for and its buffer does not have; or back.

        What is no tensor has none.
        """
        if isinstance(tensor, torch.Tensor) and tensor.is_conj():
            value = self.call("conj", _conjugate, (value,), {}, None)
        if isinstance(tensor, torch.Tensor) and tensor.is_neg():
            value = self.call("neg", _negative, (value,), {}, None)
        return value

    def write(self, buffer: Ref, view: View, value: Ref) -> Ref:
        return self._step("write", buffer, value, view=view)

    def pack(self, value: Ref, view: View) -> Ref:
        return self._step("pack", value, view=view)

    def get(self, values: Ref, index: int) -> Ref:
        return self._step("get", values, view=index)

    def call(
        self,
        name: str,
        lowering: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        outputs: tuple[View, ...] | None,
    ) -> Ref:
        """Call `lowering`. With `outputs` given, the value is the flat list of the operator's tensors."""
        if self.profile is not None:
            lowering = self.profile.narrowed(name, lowering, outputs)
        return self._step("call", *args, name=name, lowering=lowering, kwargs=kwargs, outputs=outputs)

    def finish(self, results: Sequence[Ref], keeps: Sequence[tuple[int, int]] = ()) -> Program:
        parameters, steps = tuple(self._parameters), tuple(self._steps)
        return Program(self.name, parameters, steps, tuple(results), keeps=tuple(keeps)).verify()
