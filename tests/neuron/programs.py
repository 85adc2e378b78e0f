"""Random small programs of operators, for tests: built while they run on the CPU, so that every step is a valid one.

A program is a list of steps (operator, numbers of the values it takes, arguments); :func:`replay` runs it on any device.
Inputs are whole numbers, small enough that most results are exact in every dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

FLOATS = (torch.float32, torch.float64, torch.bfloat16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool)
Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(frozen=True)
class Input:
    """A tensor as a view of a larger one: how it is cut out decides strides and offset."""

    base: tuple[int, ...]
    dtype: torch.dtype
    layout: str  # whole, offset, stepped, transposed, expanded
    seed: int

    def make(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        shape = [n + 2 for n in self.base] if self.layout in ("offset", "stepped") else list(self.base)
        if self.layout == "stepped":
            shape[-1] = 2 * self.base[-1] + 1
        values = torch.randint(0 if self.dtype is torch.uint8 else -4, 5, shape, generator=generator).to(self.dtype)
        match self.layout:
            case "offset":
                return values[tuple(slice(1, n + 1) for n in self.base)]
            case "stepped":
                return values[tuple(slice(0, n) for n in self.base[:-1])][..., 1 : 2 * self.base[-1] : 2]
            case "transposed":
                return values.transpose(0, -1)
            case "expanded":
                return values[:1].expand(self.base[0] + 1, *self.base[1:])
            case _:
                return values


@dataclass(frozen=True)
class Step:
    """One call: the operator's name, the values that it takes by number, and its other arguments."""

    name: str
    taken: tuple[int, ...]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Program:
    """Inputs and steps; every input and every result is a value, numbered in order. With `aliased`, one more input is
    the first one turned around, in the same memory.
    """

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    aliased: bool = False

    def make(self) -> tuple[torch.Tensor, ...]:
        """The inputs on the CPU, with new values each time that are always the same."""
        made = tuple(one.make() for one in self.inputs)
        return (*made, made[0].transpose(0, -1)) if self.aliased else made

    def __repr__(self) -> str:
        return "\n".join([f"Program: aliased={self.aliased}", *map(repr, self.inputs), *map(repr, self.steps)])


def _index_put(x: torch.Tensor, dim: int, at: int, value: int) -> torch.Tensor:
    x[(slice(None),) * dim + (at,)] = value
    return x


# What each operator does with its tensors and its other arguments. Names that end in _ write to their first tensor.
CALLS: dict[str, Callable[..., torch.Tensor]] = {
    "transpose": lambda x, a, b: x.transpose(a, b),
    "slice": lambda x, dim, start, step: x[(slice(None),) * dim + (slice(start, None, step),)],
    "select": lambda x, dim, at: x.select(dim, at),
    "unsqueeze": lambda x, dim: x.unsqueeze(dim),
    "expand": lambda x, n: x.unsqueeze(0).expand(n, *x.shape),
    "flatten": lambda x: x.flatten(),
    "reshape": lambda x, n: x.reshape(n, -1),
    "diagonal": lambda x: x.diagonal(0, 0, -1),
    "unfold": lambda x, dim, size: x.unfold(dim, size, 1),
    "contiguous": lambda x: x.contiguous(),
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "maximum": torch.maximum,
    "where": lambda x, y: torch.where(x > 0, x, y),
    "scale": lambda x, a: x * a,
    "add_scalar": lambda x, a: torch.add(x, 1, alpha=a),
    "relu": torch.relu,
    "tanh": torch.tanh,
    "abs": lambda x: x.abs(),
    "clamp": lambda x, low: x.clamp(low, low + 3),
    "masked_fill": lambda x, a: x.masked_fill(x > a, a),
    "equal": lambda x, y: x == y,
    "remainder": lambda x, a: x % a,
    "to": lambda x, dtype: x.to(dtype),
    "flip": lambda x, dim: x.flip(dim),
    "roll": lambda x, n, dim: x.roll(n, dim),
    "cat": lambda x, y, dim: torch.cat([x, y], dim),
    "stack": lambda x, y: torch.stack([x, y], -1),
    "index_select": lambda x, dim, rows: x.index_select(dim, torch.tensor(rows, device=x.device)),
    "pad": lambda x, n: torch.nn.functional.pad(x, (n, 1)),
    "sum": lambda x, dim, keep: x.sum(dim, keep),
    "mean": lambda x, dim: x.mean(dim),
    "amax": lambda x, dim, keep: x.amax(dim, keep),
    "any": lambda x, dim: x.any(dim),
    "cumsum": lambda x, dim: x.cumsum(dim),
    "prod": lambda x, dim: x.clamp(-2, 2).prod(dim),
    "var": lambda x, dim: x.var(dim, correction=0),
    "softmax": lambda x, dim: x.softmax(dim),
    "matmul": lambda x, y: x @ y.transpose(-1, -2),
    "add_": lambda x, y: x.add_(y),
    "mul_": lambda x, a: x.mul_(a),
    "fill_": lambda x, a: x.fill_(a),
    "copy_": lambda x, y: x.copy_(y),
    "clamp_": lambda x, low: x.clamp_(min=low),
    "masked_fill_": lambda x, a: x.masked_fill_(x < a, a),
    "index_put_": _index_put,
    "t_": lambda x: x.transpose_(0, -1),
}
_PAIRS = {"add", "sub", "mul", "maximum", "where", "equal", "cat", "stack", "matmul", "add_", "copy_"}


def _arguments(draw: Draw, name: str, x: torch.Tensor) -> tuple[Any, ...]:
    """Arguments that suit `x`, which has at least one dimension."""

    def number(low: int, high: int) -> int:
        return int(draw(st.integers(low, high)))

    dim = number(0, x.ndim - 1)
    match name:
        case "transpose":
            return dim, number(0, x.ndim - 1)
        case "slice":
            return dim, number(0, max(0, x.shape[dim] - 1)), number(1, 2)
        case "select":
            return dim, number(-x.shape[dim], x.shape[dim] - 1) if x.shape[dim] else 0
        case "unsqueeze" | "expand" | "pad" | "remainder":
            return (number(0 if name in ("unsqueeze", "pad") else 1, 2),)
        case "reshape":
            return (number(1, 3),)
        case "unfold":
            return dim, number(1, 2)
        case "scale" | "add_scalar" | "mul_":
            return (draw(st.sampled_from([2, -1, 0.5])),)
        case "clamp" | "clamp_" | "masked_fill" | "masked_fill_" | "fill_":
            return (number(0, 2),)
        case "to":
            return (draw(st.sampled_from(DTYPES)),)
        case "flip" | "mean" | "any" | "cumsum" | "prod" | "var" | "softmax":
            return (dim,)
        case "roll":
            return number(-2, 2), dim
        case "cat":
            return (dim,)
        case "index_select":
            rows = st.lists(st.integers(0, max(0, x.shape[dim] - 1)), min_size=1, max_size=3)
            return dim, tuple(draw(rows))
        case "sum" | "amax":
            return dim, draw(st.booleans())
        case "index_put_":
            return dim, 0, number(0, 3)
        case _:
            return ()


@st.composite
def programs(draw: Draw, dtypes: tuple[torch.dtype, ...] = DTYPES, writes: bool = True, most: int = 8) -> Program:
    """A program of 3 to `most` steps on one or two inputs. Steps that the CPU refuses are left out."""
    sizes = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
    layouts = st.sampled_from(["whole", "offset", "stepped", "transposed", "expanded"])
    first = Input(draw(sizes), draw(st.sampled_from(dtypes)), draw(layouts), draw(st.integers(0, 99)))
    inputs = [first]
    if draw(st.booleans()):
        # As the first, so that they fit each other often; in a dtype and a layout of its own.
        inputs.append(Input(first.base, draw(st.sampled_from(dtypes)), draw(layouts), draw(st.integers(0, 99))))
    aliased = writes and draw(st.booleans())
    names = st.sampled_from([name for name in CALLS if writes or not name.endswith("_")])
    values = list(Program(tuple(inputs), (), aliased).make())
    given = len(values)
    expanded = [v.untyped_storage()._cdata for v, one in zip(values, inputs) if one.layout == "expanded"]
    steps: list[Step] = []
    for _ in range(draw(st.integers(3, most))):
        name = draw(names)
        taken = tuple(draw(st.integers(0, len(values) - 1)) for _ in range(1 + (name in _PAIRS)))
        x = values[taken[0]]
        if x.ndim == 0 or any(values[i].numel() > 400 for i in taken) or (name == "t_" and taken[0] < given):
            continue  # an input's own sizes stay as they are
        if name.endswith("_") and any(x.untyped_storage()._cdata == one for one in expanded):
            continue  # AOTAutograd writes the whole input back, which PyTorch refuses where its elements share memory
        step = Step(name, taken, _arguments(draw, name, x))
        try:
            result = CALLS[name](*(values[i] for i in taken), *step.arguments)
        except (RuntimeError, IndexError, TypeError, NotImplementedError):
            continue
        steps.append(step)
        values.append(result)
    return Program(tuple(inputs), tuple(steps), aliased)


def replay(program: Program, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Every value of the program, results only; `inputs` are written to where the program does."""
    values = list(inputs)
    for step in program.steps:
        values.append(CALLS[step.name](*(values[i] for i in step.taken), *step.arguments))
    return values[len(inputs) :]
