"""Work that a traced program (a jaxpr) states: matrix products, what must be read and written, what has no figure."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

_LAYOUT = {"reshape", "transpose", "squeeze", "expand_dims", "pad", "optimization_barrier", "bitcast_convert_type"}
_PARTS = {"slice", "dynamic_slice", "gather"}
_UPDATES = {"dynamic_update_slice": 1, "scatter": 2, "scatter-add": 2, "scatter_add": 2}  # -> argument with the update
_READ_TOO = {"scatter-add", "scatter_add"}  # an update that needs what was there before
_CALLS = {
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "checkpoint",
    "remat",
    "remat2",
    "custom_jvp_call",
    "custom_vjp_call",
}
_REARRANGED = {"broadcast_in_dim", "concatenate", "copy", "rev", "select_n"}  # results keep the dtype of their elements
# Operations for which neither XLA's analysis nor this one has a figure that says how long they take.
_UNSEEN = {
    "cholesky",
    "custom_call",
    "eig",
    "eigh",
    "ffi_call",
    "fft",
    "geqrf",
    "householder_product",
    "io_callback",
    "lu",
    "lu_pivots_to_permutation",
    "pallas_call",
    "pure_callback",
    "qr",
    "ragged_dot",
    "ragged_dot_general",
    "schur",
    "sort",
    "svd",
    "top_k",
    "triangular_solve",
    "tridiagonal",
    "tridiagonal_solve",
}


@dataclass(slots=True)
class Work:
    """``matrix_flops`` by dtype of what is multiplied, two a multiply-add; ``unseen`` counts operations without a figure;
    ``reads`` and ``writes`` are the least bytes of each argument and each result.
    """

    matrix_flops: dict[str, float]
    unseen: Counter[str]
    reads: list[float]
    writes: list[float]


def add(total: dict[str, float], more: dict[str, float]) -> None:
    """Add `more` to `total`, key by key."""
    for key, value in more.items():
        total[key] = total.get(key, 0.0) + value


def work_of(closed: Any) -> Work:
    """The work of one call of a traced program (a ``ClosedJaxpr``)."""
    jaxpr = closed.jaxpr
    walk = _Walk(len(jaxpr.invars))
    values = {var: _Value(argument=i, whole=True) for i, var in enumerate(jaxpr.invars)}
    walk.run(jaxpr, values, 1.0)
    sizes = [_nbytes(var) for var in jaxpr.invars]
    writes = [walk.written(values.get(var) if not _is_literal(var) else None, var) for var in jaxpr.outvars]
    return Work(walk.matrix, walk.unseen, [min(a, b) for a, b in zip(walk.reads, sizes)], writes)


@dataclass(frozen=True, slots=True)
class _Value:
    """What is known of a value: elements of argument number ``argument``, all of them as they came (``whole``), or in
    another layout, or a part of them; ``part`` is the number of the part, which need not be read twice. ``replaced`` bytes
    were replaced by other values, of which ``also_read`` were read before. ``dtype``: what it was before it was widened.
    """

    argument: int | None = None
    whole: bool = False
    part: int | None = None
    replaced: float | None = None
    also_read: float = 0.0
    dtype: str = ""


_NOTHING = _Value()


class _Walk:
    """Goes through the equations in order, into calls and loops. An argument is read where something computes with it."""

    def __init__(self, arguments: int) -> None:
        self.reads = [0.0] * arguments
        self.matrix: dict[str, float] = {}
        self.unseen: Counter[str] = Counter()
        self._parts = 0
        self._parts_read: set[int] = set()

    def _read(self, value: _Value, nbytes: float) -> None:
        if value.argument is None or value.part in self._parts_read:
            return
        if value.part is not None:
            self._parts_read.add(value.part)
        self.reads[value.argument] += nbytes

    def written(self, value: _Value | None, var: Any) -> float:
        """Bytes that a result needs to be written: none for an argument as it came, the replaced part of one."""
        if value is not None and value.argument is not None:
            if value.replaced is not None:
                self.reads[value.argument] += value.also_read
                return min(value.replaced, _nbytes(var))
            if value.whole:
                return 0.0
            self._read(value, _nbytes(var))  # a copy, in another layout or not
        return float(_nbytes(var))

    def run(self, jaxpr: Any, values: dict[Any, _Value], turns: float) -> None:
        """Walk over `jaxpr`, whose arguments are in `values`, where what it makes is put as well."""

        def of(var: Any) -> _Value:
            return _NOTHING if _is_literal(var) else values.get(var, _NOTHING)

        for equation in jaxpr.eqns:
            given = [of(var) for var in equation.invars]
            inner = _called(equation)
            if inner is not None:
                inside = dict(zip(inner.invars, given))
                self.run(inner, inside, turns)
                for out, var in zip(equation.outvars, inner.outvars):
                    values[out] = _NOTHING if _is_literal(var) else inside.get(var, _NOTHING)
                continue
            made = self._moved(equation, given)
            if made is None:
                self._all(equation.invars, given)
                self._computed(equation, given, turns)
            else:
                values.update(zip(equation.outvars, made))

    def _moved(self, equation: Any, given: list[_Value]) -> list[_Value] | None:
        """The results of an operation that only moves elements of an argument; None for any other."""
        name = equation.primitive.name
        first = given[0] if given else _NOTHING
        if name == "convert_element_type":
            source, target = _dtypes(equation)
            if source != target:
                self._all(equation.invars, given)
                wider = target.itemsize >= source.itemsize and target.kind == source.kind
                return [_Value(dtype=(first.dtype or str(source)) if wider else "")]
            return [replace(first, whole=False)]
        if name in _LAYOUT:
            self._all(equation.invars[len(equation.outvars) :], given[len(equation.outvars) :])
            return [replace(value, whole=False) for value in given[: len(equation.outvars)]]
        if name in _PARTS:
            self._all(equation.invars[1:], given[1:])
            self._parts += 1
            return [replace(first, whole=False, part=self._parts if first.part is None else first.part)]
        if name in _UPDATES and first.argument is not None:
            self._all(equation.invars[1:], given[1:])
            size = float(_nbytes(equation.invars[_UPDATES[name]]))
            also = size if name in _READ_TOO else 0.0
            return [
                replace(first, whole=False, replaced=(first.replaced or 0.0) + size, also_read=first.also_read + also)
            ]
        if name == "concatenate" and len({value.argument for value in given}) == 1 and first.argument is not None:
            # A view in the middle of a buffer was replaced: the rest stays as it is.
            changed = [value for value in given if value.replaced is not None]
            if changed:
                bytes_of = sum(value.replaced or 0.0 for value in changed)
                return [_Value(first.argument, replaced=bytes_of, also_read=sum(v.also_read for v in changed))]
        if name in _REARRANGED:
            self._all(equation.invars, given)
            return [_Value(dtype=first.dtype)]
        return None

    def _all(self, variables: list[Any], given: list[_Value]) -> None:
        for var, value in zip(variables, given):
            self._read(value, _nbytes(var))

    def _computed(self, equation: Any, given: list[_Value], turns: float) -> None:
        name = equation.primitive.name
        if name == "dot_general":
            add(self.matrix, {_dtype(equation, given): turns * _product(equation)})
        elif name == "conv_general_dilated":
            add(self.matrix, {_dtype(equation, given): turns * _convolution(equation)})
        elif name == "scan":
            self.unseen["loop (XLA counts one turn)"] += 1
            self._inside(equation.params["jaxpr"].jaxpr, turns * equation.params["length"])
        elif name == "while":
            self.unseen["loop of unknown length"] += 1
            self._inside(equation.params["body_jaxpr"].jaxpr, 0.0)
        elif name == "cond":
            self.unseen["branch"] += 1
            branches = []
            for branch in equation.params["branches"]:
                alone = _Walk(0)
                alone.run(branch.jaxpr, {}, turns)
                branches.append(alone)
            least = min(branches, key=lambda walk: sum(walk.matrix.values()))
            add(self.matrix, least.matrix)
            self.unseen.update(least.unseen)
        elif name in _UNSEEN:
            self.unseen[name] += 1

    def _inside(self, jaxpr: Any, turns: float) -> None:
        alone = _Walk(0)
        alone.run(jaxpr, {}, turns)
        add(self.matrix, alone.matrix)
        self.unseen.update(alone.unseen)


def _dtypes(equation: Any) -> tuple[Any, Any]:
    """Dtypes of the first input and the first output."""
    return equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype


def _is_literal(var: Any) -> bool:
    return hasattr(var, "val")


def _nbytes(var: Any) -> int:
    aval = var.aval
    itemsize = getattr(aval.dtype, "itemsize", 8)  # a random key's dtype has none
    return math.prod(getattr(aval, "shape", ())) * itemsize


def _called(equation: Any) -> Any:
    """The jaxpr of a call that is only a call."""
    if equation.primitive.name not in _CALLS:
        return None
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        found = equation.params.get(key)
        if found is not None:
            inner = getattr(found, "jaxpr", found)
            return inner if len(inner.invars) == len(equation.invars) else None
    return None


def _dtype(equation: Any, given: list[_Value]) -> str:
    """What is multiplied: the narrower operand, as it was before it was widened for this machine."""
    known = [value.dtype or str(var.aval.dtype) for var, value in zip(equation.invars[:2], given[:2])]
    return min(known, key=lambda name: (_bits(name), name))


def _bits(name: str) -> int:
    digits = "".join(c if c.isdigit() else " " for c in name).split()
    return int(digits[0]) if digits else 64


def _product(equation: Any) -> float:
    """2 * batch * M * N * K of a ``dot_general``."""
    (over, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[d] for d in over)


def _convolution(equation: Any) -> float:
    """Two operations for each pair of an output position and a kernel position that meet a real element of the input:
    neither padding nor the zeros of a dilated input are multiplied (as XLA's analysis counts them).
    """
    p = equation.params
    numbers = p["dimension_numbers"]
    left, right = equation.invars[0].aval.shape, equation.invars[1].aval.shape
    out = equation.outvars[0].aval.shape
    pairs = 2.0 * out[numbers.out_spec[0]] * out[numbers.out_spec[1]] * right[numbers.rhs_spec[1]]
    for axis, (low, _) in enumerate(p["padding"]):
        length, kernel = left[numbers.lhs_spec[2 + axis]], right[numbers.rhs_spec[2 + axis]]
        spread, step = p["lhs_dilation"][axis], p["window_strides"][axis]
        met = 0
        for k in range(kernel):
            offset = k * p["rhs_dilation"][axis] - low
            for o in range(out[numbers.out_spec[2 + axis]]):
                position = o * step + offset
                met += 0 <= position <= (length - 1) * spread and position % spread == 0
        pairs *= met
    return pairs
