"""Arithmetic of 0-d values that stand for Python numbers in a captured step.

Functions of this package rather than :mod:`operator`'s, so that a program that calls them has a key (:mod:`..program_key`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import torch


def add(a: Any, b: Any) -> Any:
    return a + b


def sub(a: Any, b: Any) -> Any:
    return a - b


def mul(a: Any, b: Any) -> Any:
    return a * b


def truediv(a: Any, b: Any) -> Any:
    return a / b


def power(a: Any, b: Any) -> Any:
    return a**b


def negative(a: Any) -> Any:
    return -a


def square_root(a: Any) -> Any:
    return jnp.sqrt(a)


def as_float(a: Any) -> Any:
    return 1.0 * a


def maximum(a: Any, b: Any) -> Any:
    return jnp.maximum(a, b)


def minimum(a: Any, b: Any) -> Any:
    return jnp.minimum(a, b)


# What ``torch.SymFloat`` and its kin are traced as -> the same on traced numbers.
ON_NUMBERS: dict[Any, Callable[..., Any]] = {
    operator.add: add,
    operator.sub: sub,
    operator.mul: mul,
    operator.truediv: truediv,
    operator.pow: power,
    operator.neg: negative,
    torch._sym_sqrt: square_root,
    torch.sym_float: as_float,
    torch.sym_max: maximum,
    torch.sym_min: minimum,
}
