"""What all calls of one ATen overload share: its schema read once, its lowering, and its plans."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeAlias

import torch

from . import events
from .lowering import registry

OpOverload: TypeAlias = torch._ops.OpOverload


class Role(IntEnum):
    """What an argument contributes to a plan."""

    STATIC = 0  # part of the key as it is
    TENSOR = 1  # view in the key, buffer as an input; a Python number here becomes an input keyed by its type
    TENSORS = 2
    NUMBER = 3  # an input, keyed by its type alone
    NUMBERS = 4
    GENERATOR = 5


_ROLES = (
    (re.compile(r"^(Optional\[)?Tensor\]?$"), Role.TENSOR),
    (re.compile(r"^(Optional\[)?List\[(Optional\[)?Tensor\]+$"), Role.TENSORS),
    (re.compile(r"^(Optional\[)?(number|float)\]?$"), Role.NUMBER),
    (re.compile(r"^(Optional\[)?List\[(number|float)\]+$"), Role.NUMBERS),
    (re.compile(r"^(Optional\[)?Generator\]?$"), Role.GENERATOR),
)


def _role(argument: Any) -> Role:
    text = str(argument.type)
    return next((role for pattern, role in _ROLES if pattern.match(text)), Role.STATIC)


def qualified_name(op: OpOverload) -> str:
    """``aten::add.Tensor``; the default overload has no suffix (``aten::linear``), as in PyTorch's schemas."""
    overload = op._schema.overload_name
    return f"{op._schema.name}.{overload}" if overload else op._schema.name


# Pointwise, and every step of it rounded in the one way that IEEE 754 allows: no loop that it is compiled into changes its bits.
_ARITHMETIC = {
    *("add", "sub", "rsub", "mul", "div", "neg", "abs", "sqrt", "addcmul", "addcdiv", "lerp", "sign"),
    *("maximum", "minimum", "fmax", "fmin", "clamp", "clamp_min", "clamp_max", "floor", "ceil", "trunc", "round"),
    *("relu", "threshold", "threshold_backward", "hardtanh", "hardtanh_backward", "leaky_relu", "leaky_relu_backward"),
    *("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "where", "masked_fill", "fill", "zero"),
    *("logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_not"),
    *("bitwise_xor", "copy", "_to_copy", "clone"),
}


class Operator:
    """What all calls of one overload share: its schema read once, its lowering, and its plans."""

    __slots__ = (
        "arithmetic",
        "decomposition",
        "draws",
        "functional",
        "kwarg_roles",
        "lowering",
        "name",
        "op",
        "plans",
        "random",
        "roles",
        "specialised",
        "tally",
        "written",
    )

    def __init__(self, op: OpOverload) -> None:
        self.op = op
        self.name = qualified_name(op)
        self.functional = registry.functional_of(op)
        found = registry.lowering_of(op)
        if found is None and self.functional is not None:
            found = registry.lowering_of(self.functional)
        self.lowering = found
        self.decomposition = None
        if found is None and self.functional is not None:
            self.decomposition = registry.decomposition_of(self.functional)
        self.random = found is not None and found.random
        self.draws = found.draws if found is not None else None
        # Number arguments become inputs only under a lowering: tracing a decomposition turns them into constants.
        self.specialised: dict[str, Callable[[Any], bool]] = dict(found.static) if found else {}
        roles = {}
        for argument in op._schema.arguments:
            role = _role(argument)
            if found is None and role in (Role.NUMBER, Role.NUMBERS):
                role = Role.STATIC
            roles[argument.name] = role
        self.roles = tuple((roles[a.name], self.specialised.get(a.name)) for a in op._schema.arguments)
        self.kwarg_roles = {a.name: (roles[a.name], self.specialised.get(a.name)) for a in op._schema.arguments}
        silent = found.mutates if found is not None and found.op is op else ()
        self.written = tuple(
            a.name
            for a in op._schema.arguments
            if (a.alias_info is not None and a.alias_info.is_write) or a.name in silent
        )
        base = op._schema.name.partition("::")[2]
        self.arithmetic = base.removeprefix("_foreach_").removesuffix("_") in _ARITHMETIC
        self.plans: dict[Any, Any] = {}
        self.tally = events.tally(self.name, events.DECOMPOSED if self.decomposition is not None else "")
