"""Compile and do not run: a process in which every program is lowered, compiled and stored, and none is executed.

With ``SHAKEDOWN_COMPILE_ONLY=1`` buffers are :class:`Hollow`: sizes and a dtype without memory. PyTorch runs as it always does
(views, autograd, ``torch.compile``, optimizers), so the programs are those of a real run, key for key; only where a program
would be called, it is compiled instead (:func:`hollow`). A host that reads a value gets zeros, which is recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import config, events, linking
from .errors import LoweringError
from .executables import Aval

on = False  # for the life of the process, once the runtime has started
_SINGLE = jax.tree_util.tree_structure(0)
_KNOWN_BYTES = (
    1 << 16
)  # a buffer that came from the host keeps its values up to this size: constants of graphs are read


def start() -> None:
    """Read the setting. Called before the first program."""
    global on
    if config.COMPILE_ONLY() and not on:
        on = True
        events.nothing_runs()


class Hollow:
    """What a device value looks like from outside: ``shape``, ``dtype`` (numpy's) and no elements.

    ``values`` are those of a small buffer that came from the host, None for whatever a program would have computed.
    """

    __slots__ = ("__weakref__", "dtype", "shape", "values", "weak_type")

    def __init__(
        self, shape: Sequence[int], dtype: Any, weak_type: bool = False, values: np.ndarray | None = None
    ) -> None:
        self.shape, self.dtype, self.weak_type = tuple(shape), np.dtype(dtype), weak_type
        self.values = values

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def is_deleted(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"Hollow({self.dtype}{list(self.shape)})"


def of_host(array: np.ndarray) -> Hollow:
    """A hollow buffer for `array`, which came from the host."""
    return Hollow(array.shape, array.dtype, values=array.copy() if array.nbytes <= _KNOWN_BYTES else None)


def of_zeros(items: int, dtype: Any) -> Hollow:
    """A hollow buffer of zeros."""
    small = items * np.dtype(dtype).itemsize <= _KNOWN_BYTES
    return Hollow((items,), dtype, values=np.zeros(items, dtype) if small else None)


def read(buffer: Hollow) -> np.ndarray:
    """The elements as far as they are known, else zeros; the latter is an event of its own."""
    if buffer.values is not None:
        return buffer.values
    events.record("unknown", "host read", nbytes=buffer.nbytes)
    return np.zeros(buffer.shape, buffer.dtype)


def constant(buffer: Any) -> Any:
    """The value of a graph's constant, which becomes part of its program.

    Raises:
        LoweringError: it is what a program would have computed.
    """
    if not isinstance(buffer, Hollow):
        return buffer
    if buffer.values is None:
        raise LoweringError("a constant of the graph is computed on the device, and nothing is run here")
    return jnp.asarray(buffer.values)


def aval_of(value: Any) -> Aval:
    """What a program is compiled for when it is to take `value`."""
    if isinstance(value, Hollow):
        return value.shape, value.dtype, value.weak_type
    return linking.aval_of(value)


def hollow(run: Callable[..., Any], shaped: Callable[[Sequence[Aval]], list[Any]]) -> Callable[..., Any]:
    """`run`, from :func:`.runtime.compile`, as a callable that compiles for its inputs and returns hollow results.

    `shaped` makes what JAX traces with out of a signature.
    """
    runner: linking.Runner = run.runner  # type: ignore[attr-defined]
    known: dict[tuple[Aval, ...], Any] = {}
    lock = threading.Lock()

    def compile_for(*inputs: Any) -> Any:
        signature = tuple(map(aval_of, inputs))
        with lock:
            if signature not in known:
                compiled = runner.compiled(signature, shaped(signature))
                executable = compiled._executable
                avals = [(a.shape, a.dtype, bool(a.weak_type)) for a in executable.out_avals]
                known[signature] = avals, compiled._params.out_tree == _SINGLE
        avals, single = known[signature]
        made = [Hollow(*a) for a in avals]
        return made[0] if single else made

    compile_for.runner = runner  # type: ignore[attr-defined]
    return compile_for
