"""Arithmetic of 0-d values that stand for Python numbers in a captured step."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import torch

# What ``torch.SymFloat`` and its kin are traced as -> the same on traced numbers.
ON_NUMBERS: dict[Any, Callable[..., Any]] = {
    **{
        f: f
        for f in (
            *(
                operator.add,
                operator.sub,
                operator.mul,
                operator.truediv,
                operator.floordiv,
                operator.mod,
                operator.pow,
            ),
            *(operator.neg, operator.pos, operator.abs),
        )
    },
    torch._sym_sqrt: jnp.sqrt,
    torch.sym_float: lambda x: 1.0 * x,
    torch.sym_max: jnp.maximum,
    torch.sym_min: jnp.minimum,
}
