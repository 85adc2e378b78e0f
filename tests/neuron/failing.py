"""Operators of the device that are made to fail: while they are lowered, compiled or run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch

from shakedown.neuron import dispatch
from shakedown.neuron.errors import LoweringError

ATAN2 = torch.ops.aten.atan2.default
STRICT = "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS"


class Sick(RuntimeError):
    """What :func:`on_the_way` raises."""


def lower_by(monkeypatch: pytest.MonkeyPatch, fn: Callable[..., Any], op: Any = ATAN2) -> None:
    """Have `op` and its variants lowered by `fn`, as if it was written so; plans made before are forgotten."""
    torch.neuron.init()
    for one in {op, torch.ops.aten.atan2_.default} if op is ATAN2 else {op}:
        operator = dispatch.operator_of(one)
        assert operator.lowering is not None
        monkeypatch.setattr(operator, "lowering", dataclasses.replace(operator.lowering, fn=fn))
        operator.plans.clear()


def raising(*args: Any, **kwargs: Any) -> Any:
    """A lowering with a mistake."""
    raise KeyError("no such thing")


def declining(*args: Any, **kwargs: Any) -> Any:
    """A lowering that does not know this case."""
    raise LoweringError("not this case")


def on_the_way(sick: list[bool]) -> Callable[..., Any]:
    """A lowering of atan2 whose program fails, when it is run, while ``sick[0]``."""

    def compute(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if sick[0]:
            raise Sick("the core is gone")
        return np.arctan2(x, y)

    def lowering(x: Any, y: Any, **_: Any) -> Any:
        return jax.pure_callback(compute, jax.ShapeDtypeStruct(x.shape, x.dtype), x, y)

    return lowering
